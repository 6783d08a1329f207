"""`kformer translate --mbr`: of many samples the one that is most like the others."""

import io
import pathlib
import sys

import pytest

import kformer
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN, SAVED_MODEL = ROOT / "tests" / "frozen_run", ROOT / "saved_models" / "frozen"
TEXTS = ["noon", "half past four"]


@pytest.fixture
def translate(monkeypatch, capfd):
    """A function of options to the exit code, standard output and standard error."""

    def run(*options, model=RUN):
        text = "".join(f"{line}\n" for line in TEXTS).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return main(["translate", str(model), *options]), *capfd.readouterr()

    return run


def test_the_same_as_in_python(translate):
    code, out, err = translate(
        "--mbr", "8", "--temperature", "2", "--seed", "3", "--n-best", "6", "--batch-size", "1"
    )
    options = {"mbr": 8, "temperature": 2.0, "seed": 3, "n_best": 6}
    expected = kformer.Translator.load(RUN)(TEXTS, **options)
    assert code == 0 and [line.split("\t") for line in out.splitlines()] == expected, err


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options, model, message",
    [
        (["--mbr", "1"], RUN, "must be a whole number of at least 2"),
        (["--mbr", "4", "--n-best", "5"], RUN, "raise --mbr to 5, or lower --n-best"),
        (["--mbr", "4", "--sample"], RUN, "--mbr is not for --sample"),
        (["--mbr", "4", "--alternatives", "2"], RUN, "--mbr is not for --alternatives"),
        (["--temperature", "2"], RUN, "are for --sample and --mbr"),
        (["--mbr", "4"], SAVED_MODEL, "leave --mbr out, or give the run"),
    ],
)
def test_errors_name_the_remedy(translate, options, model, message):
    code, out, err = translate(*options, model=model)
    assert code and not out and message in " ".join(err.split()), err
