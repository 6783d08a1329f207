"""`kformer translate` with documents, glossaries, long lines and --strict."""

import json
import pathlib

import pytest

import kformer
from kformer.documents import Glossary
from kformer_cli.main import main
from tests.two_languages import new_translator

pytestmark = pytest.mark.any_backend(quickest="torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "frozen_run"
PAGE = '<html lang="en"><p class="x">Half past <b>four</b>. See https://x.org/a: noon.</p></html>\n'


@pytest.fixture
def translate(tmp_path, monkeypatch, capfd):
    """A function of options to the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("page.html").write_text(PAGE, encoding="utf-8")
    pathlib.Path("terms.tsv").write_text("noon\t中午\nmidnight\t午夜\n", encoding="utf-8")

    def run(*options):
        return main(["translate", str(RUN), *options]), *capfd.readouterr()

    return run


def test_the_sentences_to_look_at_first(translate):
    pathlib.Path("page.md").write_text("noon\n\nCall 555 at a@b.org\n", encoding="utf-8")
    code, _, err = translate("--document", "page.md", "--coverage", "report")
    rows = [json.loads(line) for line in pathlib.Path("report").read_text().splitlines()]
    assert code == 0 and "may have left out or added something: see 'report'" in err
    assert rows[0]["probability"] >= rows[1]["probability"]
    first, third = sorted(rows, key=lambda row: row["line"])
    assert (first["line"], third["line"], first["source"]) == (1, 3, "noon")
    assert "555" in [span["text"] for span in third["missing"]]
    assert translate("--document", "page.md", "--coverage", "r", "--retry")[0] == 2


@pytest.mark.heavy
def test_a_document(translate):
    options = ("--glossary", "terms.tsv", "--language-pair", "en-zh", "--output", "out.html")
    code, _, err = translate("--document", "page.html", *options)
    found = pathlib.Path("out.html").read_text(encoding="utf-8")
    assert code == 0 and found.startswith('<html lang="zh"><p class="x">'), err
    assert [found.count(part) for part in ("<b>", "</b>", "https://x.org/a", "中午")] == [1] * 4
    assert "noon\t中午\tfound 1, used 1" in err and "midnight" not in err
    translator = kformer.Translator.load(RUN)
    glossary = Glossary.load("terms.tsv")
    same = translator.document(PAGE, "html", glossary=glossary, target_language="zh")
    assert same == found


def test_long_lines(translate):
    lines = ["half past four. noon", "", "noon, " * 60 + "noon", "noon"]
    pathlib.Path("lines").write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, out, err = translate("--input", "lines", "--strict")
    assert code == 1 and out.count("\n") == 4
    assert "With --split such lines" in err and "1 part of the text had to be cut" in err
    code, out, err = translate("--input", "lines", "--strict", "--split")
    found = out.split("\n")
    assert code == 0 and len(found) == 5 and found[1] == "", err
    assert found[2].count("中午") > 4 and found[3] == kformer.Translator.load(RUN)("noon")


@pytest.mark.heavy
@pytest.mark.parametrize("beam", ["1", "4"])
def test_a_limit_of_tokens_that_holds_little(translate, beam):
    """What is kept stays, a sentence is parted between its words, and a cut is told."""
    pathlib.Path("text").write_text("half past four 7 km `code`, noon %s {name}\n")
    options = ("--document", "text", "--beam-size", beam, "--max-length")
    code, out, err = translate(*options, "2")
    assert code == 0 and [out.count(part) for part in ("7 km", "`code`", "%s", "{name}")] == [1] * 4
    assert "of the text had to be cut: raise --max-length" in err
    assert "--strict" in translate(*options, "2", "--strict")[2]
    code, out, err = translate(*options, "12")
    assert (code, out.count("四点半"), "cut" in err) == (0, 1, False)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options", [["--target-language", "fr"], ["--language-pair", "en-fr"]], ids=str
)
def test_a_document_into_one_of_several_languages(translate, options, capfd):
    translator = new_translator()
    translator.save("run")
    assert main(["translate", "run", "--document", "page.html", *options]) == 0
    expected = translator.document(PAGE, "html", target_language="fr")
    assert capfd.readouterr().out == expected and expected.startswith('<html lang="fr">')


@pytest.mark.parametrize(
    "options, message",
    [
        (["--document", "absent"], "The --document file 'absent' does not exist"),
        (["--document", "page.html", "--format", "xlsx"], "format must be one of text, html,"),
        (["--document", "page.html", "--n-best", "2"], "--document gives one translation"),
        (["--document", "page.html", "--split"], "leave --input and --split out"),
        (["--document", "page.html", "--alternatives", "2"], "--document is not for --altern"),
        (["--format", "html"], "--format is for --document"),
        (["--glossary", "absent", "--input", "page.html"], "'absent' does not exist"),
        (["--language-pair", "pt-BR-en", "--split", "--input", "page.html"], "Write pt_BR-en."),
        (["--language-pair", "en-zh-Hans", "--split", "--input", "page.html"], "Write en-zh_Hans."),
        (["--language-pair", "de", "--split", "--input", "page.html"], "two codes, such as de-en"),
        (
            ["--document", "page.html", "--language-pair", "en-de", "--target-language", "fr"],
            "--language-pair en-de and --target-language fr name two target languages",
        ),
        (
            ["--split", "--language-pair", "en-de", "--source-language", "fr"],
            "--language-pair en-de and --source-language fr name two source languages",
        ),
        (
            ["--split", "--language-pair", "sr@latin-en", "--source-language", "fr"],
            "--language-pair sr@latin-en and --source-language fr name two source languages",
        ),
    ],
)
def test_what_is_refused(translate, options, message):
    code, out, err = translate(*options)
    assert code != 0 and out == "" and message in " ".join(err.replace("│", " ").split()), err
