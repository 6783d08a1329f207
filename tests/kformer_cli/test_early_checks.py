"""Mistakes that are answered before anything is imported."""

import importlib
import os

import pytest

from kformer_cli.main import main

pytestmark = pytest.mark.any_backend
RUN = "tests/frozen_run"
# Commands that would write the file {0}, which they read.
READ_AND_WRITE = [
    "align --source {0} --target other --output {0}",
    "align --source other --target {0} --output {0}",
    "align --source other --target other --gold {0} --output {0}",
    f"card {RUN} --scores {{0}} --output {{0}}",
    f"distill {RUN} --source {{0}} --output-source {{0}} --output-target new",
    f"distill {RUN} --source other --reference {{0}} --closest --output-source new "
    "--output-target {0}",
    f"evaluate {RUN} --source {{0}} --reference other --output {{0}}",
    f"evaluate {RUN} --source other --reference {{0}} --output {{0}}",
    f"plot lengths {RUN} --source {{0}} --output {{0}}",
    f"translate {RUN} --input {{0}} --output {{0}}",
    f"translate {RUN} --input {{0}} --output {{0}} --workers 2",
    f"translate {RUN} --document {{0}} --output {{0}}",
    f"translate {RUN} --input other --glossary {{0}} --output {{0}}",
    f"translate {RUN} --input other --terms {{0}} --output {{0}}",
    f"translate {RUN} --input other --forbidden-terms {{0}} --output {{0}}",
    f"translate {RUN} --input other --prefix {{0}} --output {{0}}",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of files, and commands that fail as soon as they import kformer."""
    (tmp_path / "train.en").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "utf16.en").write_text("a\nb\n", encoding="utf-16")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.json", "history.csv"):
        (run / name).write_text("{}", encoding="utf-8")

    def imported():
        raise AssertionError("it was to answer before it imports anything")

    os.mkfifo(tmp_path / "pipe")
    for name in ("training", "plotting", "formats", "distillation", "serving", "translation"):
        monkeypatch.setattr(
            importlib.import_module(f"kformer_cli.{name}"), "quiet_imports", imported
        )
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "hub" in name else find_spec(name)
    )
    return tmp_path


@pytest.mark.parametrize(
    "words, expected",
    [
        ("train --train-source {0}/train.en --train-target {0}/train.en --output {0}/run",
         "run holds a training already: go on with it by --resume, replace it by --overwrite, or "),
        ("train --output {0}/absent --resume", "absent to go on with: give the folder of one, or "
         "the text of a new one by --train-source and --train-target."),
        (f"translate {RUN} --document {{0}}/page.pdf",
         "page.pdf' does not exist; give the path of a document, such as text, HTML, Markdown "
         "or DOCX."),
        ("train --train-source {0}/utf16.en --train-target {0}/train.en --output {0}/new",
         "is UTF-16, not UTF-8: convert it first (iconv -f UTF-16 -t UTF-8)."),
        ("train --train-source {0}/train.en --train-target {0}/train.en --output {0}/new "
         "--effort 2 --teachers-from {0}/run",
         "run has no teachers to take: give a training with an effort"),
        ("train --train-source {0}/train.en --train-target {0}/train.en --valid-source {0}/pipe "
         "--valid-target {0}/train.en --output {0}/new",
         "pipe' is a pipe, which can be read only once, and this needs it several times: write it"),
        ("train --train-source {0}/train.en --train-target {0}/train.en --output {0}/new "
         "--effort 2 --monolingual-source {0}/pipe", "The --monolingual-source '"),
        (f"serve {RUN} --api-keys {{0}}/pipe", "pipe' is a pipe, which can be read only once"),
        (f"distill {RUN} --source {{0}}/train.en --output-source {{0}}/a --output-target {{0}}/a",
         "--output-source and --output-target name one file"),
        (f"distill {RUN} --source {{0}}/train.en --output-source {{0}}/a --output-target {{0}}/b "
         "--keep-original", "--keep-original needs the target side of the training text: give it"),
        (f"plot attention {RUN} --source noon --output {{0}}/a.bmp",
         "ends in .png, .svg, .pdf, but"),
        (f"plot attention {RUN} --source= --output {{0}}/a.png",
         "--source is empty, so there is no attention: give a sentence."),
        (f"plot attention {RUN} --source noon --head 1 --mean --output {{0}}/a.html",
         "A page has all layers and heads: leave out --head, --mean, or write a .png."),
        (f"plot positions {RUN} --output {{0}}/nowhere/a.png", "does not exist; make it first."),
        (f"plot training {RUN} --output {{0}}/a.txt", "ends in .png, .svg, .pdf, but"),
        (f"plot lengths {RUN} --source {{0}}/train.en --output {{0}}/a.txt",
         "ends in .png, .svg, .pdf, but"),
        (f"serve {RUN} --api-keys {{0}}/train.en", "line 1: an API key has at least 16 characters"),
        (f"serve {RUN} --api-keys {{0}}/absent", "No such file or directory: "),
        (f"serve {RUN} --port 70000", "--port must be a whole number from 0 to 65535, but"),
        ("import someone/model --output {0}/new",
         'not installed here: run `pip install "kformer[interop]"`'),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_before_the_imports(folder, capsys, words, expected):
    assert main([word.format(folder) for word in words.split()]) in (1, 2)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, package",
    [
        ("plot attention {RUN} --source noon --output {0}/a.png", "matplotlib"),
        ("plot positions {RUN} --output {0}/a.png", "matplotlib"),
        ("plot training {RUN} --output {0}/a.png", "matplotlib"),
        ("plot lengths {RUN} --source {0}/train.en --output {0}/a.png", "matplotlib"),
        ("export {RUN} --output {0}/a --format ctranslate2", "ctranslate2"),
    ],
)
def test_a_missing_package_is_named_before_the_imports(folder, capsys, monkeypatch, words, package):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    assert main(words.format(folder, RUN=RUN).split()) == 1
    assert f"{package}, which is not installed here: run `pip install" in capsys.readouterr().err


@pytest.mark.parametrize("words", READ_AND_WRITE)
@pytest.mark.parametrize("output", ["text.png", "link.png", "hard.png"])
def test_no_output_is_an_input(tmp_path, monkeypatch, capsys, words, output):
    for name in ("text.png", "other"):
        (tmp_path / name).write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "link.png").symlink_to("text.png")
    os.link(tmp_path / "text.png", tmp_path / "hard.png")
    before, _, after = words.rpartition("{0}")
    words = f"{before.format(tmp_path / 'text.png')}{tmp_path / output}{after}".split()
    run = os.path.abspath(RUN)
    monkeypatch.chdir(tmp_path)
    assert main([run if word == RUN else word for word in words]) == 1
    assert "would replace the input" in capsys.readouterr().err
    assert (tmp_path / "text.png").read_text(encoding="utf-8") == "a\nb\n"


def test_standard_output_is_no_input(tmp_path, capfd):
    """A shell's `>> text`: each translation would be translated, too, without end."""
    text = tmp_path / "text"
    text.write_text("noon\n", encoding="utf-8")
    kept = os.dup(1)
    try:
        with open(text, "ab") as file:
            os.dup2(file.fileno(), 1)
        assert main(["translate", RUN, "--input", str(text)]) == 1
    finally:
        os.dup2(kept, 1)
    assert "would replace the input" in capfd.readouterr().err


def test_a_training_is_refused_in_the_words_of_python(tmp_path):
    from kformer_options.model_folders import training_exists

    expected = "go on with it by resume=True, replace it by overwrite=True, or"
    assert expected in str(training_exists(tmp_path))
