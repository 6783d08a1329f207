"""`python -m tests`: which CPU cores each process gets."""

import os

import pytest

from tests.__main__ import shares

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
