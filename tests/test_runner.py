"""`python -m tests`: which CPU cores and which files each process gets."""

import os
import pathlib
import types

import pytest

from tests.__main__ import BACKENDS, cores_of_jobs, parse, processes_of
from tests.conftest import few_values, files_of_process, pytest_ignore_collect

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
    assert cores_of_jobs(jobs) == expected


def test_a_system_that_cannot_choose_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores_of_jobs(2) == ["", ""]


def test_every_file_is_in_one_share():
    files = files_of_process("each", "1/1")
    assert pathlib.Path(__file__) in files
    shares = [files_of_process("each", f"{index}/3") for index in (1, 2, 3)]
    assert sorted(sum(shares, [])) == files
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_files_of_other_processes_are_not_read(monkeypatch):
    monkeypatch.delenv("KFORMER_TESTS", raising=False)
    file = pathlib.Path(__file__)
    assert pytest_ignore_collect(file) is None
    monkeypatch.setenv("KFORMER_TESTS", "each")
    shares = []
    for index in (1, 2):
        monkeypatch.setenv("KFORMER_TEST_FILES", f"{index}/2")
        assert pytest_ignore_collect(file.parent) is None
        shares.append(pytest_ignore_collect(file))
    assert shares in ([True, None], [None, True])


def test_few_values_of_a_parameter_occur():
    def item(path, name, **indices):
        case = {"callspec": types.SimpleNamespace(indices=indices)} if indices else {}
        return types.SimpleNamespace(path=path, originalname=name, **case)

    cases = [item("a", "f", x=x, y=y) for x in range(5) for y in range(2)]
    plain = [item("a", "g"), item("b", "f", x=0)]
    chosen = [cases[index] for index in (0, 1, 8)]
    assert few_values([*cases, *plain]) == [*chosen, *plain]


def test_all_means_every_file_of_every_backend():
    processes = processes_of(["torch", "jax", "tensorflow"], True)
    for backend, kind in (("torch", "any"), *((name, "each") for name in BACKENDS)):
        shares = [share for *process, share in processes if process == [backend, kind]]
        assert shares == [f"{index + 1}/{len(shares)}" for index in range(len(shares))] != []


def test_the_short_form_has_one_backend_whole_and_a_smoke_test_of_the_others():
    kinds = {(backend, kind) for backend, kind, _ in processes_of(["jax", "tensorflow"], False)}
    assert kinds == {("tensorflow", "short"), ("jax", "smoke")}


def test_without_pytest_a_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        parse([])
    assert 'the tests need pytest: pip install -e ".[test]"' in capsys.readouterr().err
