"""Commands about one of the languages of a model."""

import pathlib

import pytest

from kformer.evaluation import timing
from kformer.trainer import resume
from kformer.trainer.lines import Text
from kformer_cli.main import main
from tests.two_languages import CODES, TEXTS, new_translator

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(scope="module")
def translators():
    german = new_translator()
    return german, german.for_languages(target="fr")


@pytest.fixture
def folder(tmp_path, monkeypatch, translators):
    monkeypatch.chdir(tmp_path)
    translators[0].save("run")
    pathlib.Path("s").write_text("".join(f"{text}\n" for text in TEXTS))
    return tmp_path


def test_words_are_aligned_and_calibrated_in_a_language(folder, translators):
    targets = ["quarter to four", "noon noon", "ten six to", "half past"]
    pathlib.Path("t").write_text("".join(f"{text}\n" for text in targets))
    texts = ["--source", "s", "--target", "t"]
    assert main(["align", "run", *texts, "--target-language", "fr", "--output", "found"]) == 0
    found = pathlib.Path("found").read_text().splitlines()
    german, french = (each.align(TEXTS, targets) for each in translators)
    assert found == [" ".join(f"{i}-{j}" for i, j in each) for each in french]
    assert french != german
    assert main(["calibrate", "run", *texts, "--target-language", "fr", "--json"]) == 0


def test_a_language_needs_a_run(folder, capsys):
    assert main(["align", "--source", "s", "--target", "s", "--target-language", "fr"]) == 2
    assert "--target-language is for a run: give one" in capsys.readouterr().err


def test_the_attention_behind_a_translation_into_a_language(folder, translators, capsys):
    arguments = ["--source", TEXTS[1], "--target-language", "fr", "--output", "a.html"]
    assert main(["plot", "attention", "run", *arguments]) == 0
    assert f"{translators[1](TEXTS[1])}\n" in capsys.readouterr().err
    assert "fr" in pathlib.Path("a.html").read_text("utf-8")


def test_a_document_names_its_language_where_no_option_does(folder, translators):
    unit = f"<trans-unit><source>{TEXTS[1]}</source></trans-unit>"
    page = f'<xliff version="1.2"><file target-language="fr">{unit}</file></xliff>'
    pathlib.Path("a.xliff").write_text(page, "utf-8")
    german, french = (
        each.document(page, "xliff", target_language=code)
        for each, code in zip(translators, CODES, strict=True)
    )
    assert german != french
    for options, expected in (
        ([], french),
        (["--target-language", "de"], german),
        (["--language-pair", "en-de"], german),
    ):
        arguments = ["translate", "run", "--document", "a.xliff", "--output", "b.xliff", *options]
        assert main(arguments) == 0
        assert pathlib.Path("b.xliff").read_text("utf-8") == expected


def test_the_time_of_translations_into_a_language(folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    translators = []
    monkeypatch.setattr(
        timing, "time_by_length", lambda *each, **_: translators.append(each[0]) or {4: 0.1}
    )
    arguments = ["plot", "lengths", "run", "--source", "s", "--output", "l.svg"]
    assert main([*arguments, "--target-language", "fr"]) == 0
    assert translators[0].tokenizer.target_language == "fr"
    assert main([*arguments, "--target-language", "es"]) == 1
    assert "'es' is unknown; choose one of de, fr." in capsys.readouterr().err


def test_a_run_of_both_directions_teaches_both(folder, translators, capsys):
    german, french = translators
    outputs = ["--output-source", "a", "--output-target", "b"]
    arguments = ["--source", "s", "--reference", "s", "--backward", "run", *outputs]
    codes = ["--source-language", "de", "--target-language", "fr"]
    assert main(["distill", "run", *arguments, *codes]) == 0
    sources, targets = (pathlib.Path(name).read_text("utf-8").splitlines() for name in "ab")
    pairs = [*zip(TEXTS, french(TEXTS, beam_size=5), strict=True)]
    pairs += zip(german(TEXTS, beam_size=5), TEXTS, strict=True)
    pairs = [pair for pair in dict.fromkeys(pairs) if all(pair)]
    assert [*zip(sources, targets, strict=True)] == pairs
    assert main(["distill", "run", "--source", "s", *outputs, "--target-language", "es"]) == 1
    assert "'es' is unknown; choose one of de, fr." in capsys.readouterr().err


def test_lists_of_tokens_lack_a_language_without_lines(folder, capsys):
    texts = ["--target", "s", "--json"]
    assert main(["shortlist", "run", "--source", "s", *texts]) == 0
    assert "warning: no line begins with >>fr<<, and translations into" in capsys.readouterr().err
    pathlib.Path("tagged").write_text("".join(f">>fr<< {text}\n" for text in TEXTS[:-1]) + "ten\n")
    assert main(["shortlist", "run", "--source", "tagged", *texts]) == 0
    assert not capsys.readouterr().err


def test_lists_of_the_own_text_of_a_run_are_of_its_language(folder, monkeypatch, capsys):
    """Which is not the default of the model that the training began with."""
    texts = [Text("s", "s", ("en", "fr"))]
    monkeypatch.setattr(resume, "training_texts_of", lambda run: texts)
    monkeypatch.setattr(resume, "validation_of", lambda run: texts)
    assert main(["shortlist", "run", "--json"]) == 0
    assert "warning: no line begins with >>de<<, and translations into" in capsys.readouterr().err
