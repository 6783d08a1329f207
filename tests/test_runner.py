"""`python -m tests`: which CPU cores and which files each process gets."""

import os
import types

import pytest

from tests.__main__ import _PROCESSES, BACKENDS, shares
from tests.conftest import share_of_files

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("cores", "jobs", "expected"),
    [
        ({0, 1}, 2, ["0", "1"]),
        ({5, 3, 9, 7}, 2, ["3,7", "5,9"]),
        ({2, 4, 6}, 2, ["2,6", "4"]),
        ({0, 1, 2, 3}, 1, [""]),
        ({1}, 2, ["", ""]),
    ],
)
def test_each_process_has_cores_of_its_own(monkeypatch, cores, jobs, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    assert shares(jobs) == expected


def test_a_system_that_cannot_choose_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert shares(2) == ["", ""]


def test_every_file_is_in_one_share():
    items = [types.SimpleNamespace(path=path) for path in "aabccccde"]
    assert share_of_files(items, "") == (items, []) == share_of_files(items, "1/1")
    first, second = share_of_files(items, "1/2"), share_of_files(items, "2/2")
    assert [item.path for item in first[0]] == [*"aacccce"] and second == first[::-1]


def test_the_processes_have_every_file_of_every_backend():
    for name in (*BACKENDS, "any"):
        shares = sorted(share for backend, share in _PROCESSES if backend == name)
        count = len(shares)
        assert shares == [""] or shares == [f"{i + 1}/{count}" for i in range(count)]
