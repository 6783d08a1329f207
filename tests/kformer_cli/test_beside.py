"""Files with what each line of a text is asked for: terms, forbidden terms and prefixes."""

import pathlib

import pytest

from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN, SAVED_MODEL = ROOT / "tests" / "frozen_run", ROOT / "saved_models" / "frozen"


@pytest.fixture
def translate(tmp_path, monkeypatch, capfd):
    """A function of files and options to the exit code, standard output and standard error of
    `kformer translate`; "text" is the text.
    """
    monkeypatch.chdir(tmp_path)

    def run(*options, model=RUN, **files):
        for name, content in {"text": "noon\nseven o'clock\n", **files}.items():
            pathlib.Path(name).write_text(content, encoding="utf-8")
        code = main(["translate", str(model), "--input", "text", *options])
        return code, *capfd.readouterr()

    return run


def test_each_line_has_its_terms_and_its_prefix(translate):
    files = {"terms": "上午|下午\n \n", "never": "\n点\t八\n", "prefix": "\n七\n"}
    asked = ("--terms", "terms", "--forbidden-terms", "never", "--prefix", "prefix")
    code, out, err = translate(*asked, "--batch-size", "1", **files)
    first, second = out.splitlines()
    assert code == 0 and "午" in first and second.startswith("七") and "点" not in second, err


def test_an_error_names_the_line(translate):
    asked = ("--prefix", "prefix", "--max-length", "3")
    code, out, err = translate(*asked, prefix="\n十二点三十分\n")
    assert code == 1 and out == ""
    assert "terms of line 2 need 7 tokens, but --max-length is 3" in " ".join(err.split())


def test_alternatives_are_columns(translate):
    code, out, err = translate("--alternatives", "3", "--prefix", "prefix", prefix="\n七\n")
    first, second = (line.split("\t") for line in out.splitlines())
    assert code == 0 and len(set(first)) == len(first) == len(second) == 3, err
    assert all(text.startswith("七") for text in second)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options, model, message",
    [
        (["--terms", "one"], RUN, "2 lines in the text, but 1 in 'one' (--terms)"),
        (["--prefix", "absent"], RUN, "The --prefix file 'absent' does not exist"),
        (["--terms", "two", "--beam-size", "1"], RUN, "need a beam, but --beam-size is 1"),
        (["--alternatives", "2", "--n-best", "2"], RUN, "two lists"),
        (
            ["--terms", "two", "--workers", "1", "--output", "o"],
            RUN,
            "--terms is not for --workers",
        ),
        (["--alternatives", "2"], SAVED_MODEL, "A SavedModel takes --terms or --prefix alone"),
        (["--terms", "two"], SAVED_MODEL, "has no signature constrained"),
    ],
)
def test_errors_name_the_remedy(translate, options, model, message):
    code, out, err = translate(*options, model=model, one="上午\n", two="上午\n\n")
    assert code and not out and message in " ".join(err.split()), err
