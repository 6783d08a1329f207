"""What `kformer speed` measures: every engine translates as the run does, or has a remark."""

import json
import pathlib
import types

import pytest

from kformer import Translator
from kformer.decoding import SearchOptions
from kformer.export import engine_speed, engines
from kformer.export.engine_speed import EngineSpeed, best_engine, compare_engines, measure
from kformer.trainer import resume
from kformer.trainer.lines import Text
from kformer_cli.main import main
from tests.two_languages import CODES, new_translator

RUN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"
TEXTS = ["half past four", "quarter to six", "noon", "five o'clock"]

pytestmark = pytest.mark.any_backend(quickest="torch")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(engine_speed, "_SECONDS", 0.001)


def work(engine, tmp_path, **changes):
    settings = {
        "engine": engine,
        "folder": str(tmp_path),
        "run": str(RUN),
        "languages": ("en", "zh"),
    }
    settings |= {"texts": TEXTS, "beam_sizes": [1], "batch_sizes": [1, 3], "has_references": True}
    return settings | changes


@pytest.mark.parametrize("name, beams", [("ctranslate2", [1]), ("onnx", [1, 4])])
def test_an_engine_translates_as_the_run_does(tmp_path, name, beams):
    for package in engines.ENGINES[name].packages:
        pytest.importorskip(package)
    texts = [*TEXTS, ""]
    result = measure(work(name, tmp_path, texts=texts, beam_sizes=beams, batch_sizes=[1, 3]))
    translate = Translator.load(RUN)
    expected = [(beam, translate(texts, beam_size=beam)) for beam in beams]
    assert result["translations"] == expected and result["remark"] is None
    assert [cell[:2] for cell in result["speeds"]] == [
        (beam, size) for beam in beams for size in (1, 3)
    ]
    assert all(speed > 0 for *_, speed in result["speeds"])


def test_a_language_of_several(tmp_path):
    translator = new_translator()
    translator.save(tmp_path / "run")
    changes = {"run": str(tmp_path / "run"), "languages": ("en", "fr"), "batch_sizes": [3]}
    result = measure(work("torch", tmp_path, **changes))
    assert result["translations"] == [(1, translator(TEXTS, target_language="fr", beam_size=1))]


def test_one_translation_of_each_text_and_no_samples(tmp_path):
    """Whatever the search of an imported model is."""
    translator = Translator.load(RUN)
    expected = translator(TEXTS, beam_size=1)
    for number, search in enumerate(({"n_best": 2}, {"sampling": True})):
        translator.options = SearchOptions(max_length=20, **search)
        translator.save(tmp_path / f"{number}")
        result = measure(work("torch", tmp_path, run=str(tmp_path / f"{number}")))
        assert result["translations"] == [(1, expected)]


def test_the_validation_set_is_of_the_languages_that_are_given(tmp_path, monkeypatch, capsys):
    run, sets, measured = tmp_path / "run", [], []
    new_translator().save(run)
    for code in CODES:
        (tmp_path / code).write_text(f"to {code}\n", encoding="utf-8")
        sets.append(Text(tmp_path / code, tmp_path / code, ("en", code)))
    monkeypatch.setattr(resume, "validation_of", lambda run: sets)
    monkeypatch.setattr(engine_speed, "best_engine", lambda results: None)

    def compare(run, texts, references, languages, **settings):
        measured.append((texts, languages))
        return []

    monkeypatch.setattr(engine_speed, "compare_engines", compare)

    def speed(*arguments):
        return main(["speed", str(run), "--json", *arguments]), capsys.readouterr().err

    assert speed()[0] == speed("--target-language", "fr")[0] == 0
    assert measured == [(["to de"], ("en", "de")), (["to fr"], ("en", "fr"))]
    code, error = speed("--target-language", "it")
    assert code == 1 and "has validation sets of en-de, en-fr alone: give texts of other" in error
    code, error = speed("--target-language", "it", "--source", str(tmp_path / "de"))
    assert code == 1 and "it" in error and len(measured) == 2


def test_what_an_engine_has_not_and_what_is_missing(tmp_path, monkeypatch):
    def opened(translator, folder, beam_size, dtype):
        if beam_size > 1:
            raise ValueError("greedy alone")
        return lambda texts: [text.upper() for text in texts]

    fake = engines.Engine("float32", opened, "onnx", (), "torch", "run {run}")
    absent = fake._replace(packages=("no_such_engine",))
    monkeypatch.setattr(engine_speed, "ENGINES", {"fake": fake, "absent": absent})
    translator = types.SimpleNamespace(options=SearchOptions())
    translator.for_direction = lambda source, target: translator
    monkeypatch.setattr(engine_speed, "load_run_translator", lambda run, dtype: translator)
    monkeypatch.setattr(
        engine_speed,
        "_measured_aside",
        lambda engine, work: measure({**work, "folder": str(tmp_path)}),
    )
    texts, said = [f"it is {text} in the morning" for text in TEXTS], []
    references = [text.upper() for text in texts]
    sizes = {"beam_sizes": [1, 4], "batch_sizes": [2]}
    results = compare_engines(RUN, texts, references, **sizes, report=said.append)
    fast, none = results
    assert list(fast.speeds) == [(1, 2)] and fast.remark == "greedy alone"
    assert fast.bleu == {1: pytest.approx(100)}
    assert 'pip install "kformer[onnx]"' in none.remark and not none.speeds
    assert best_engine(results) is fast and best_engine([none]) is None
    assert len(said) == 2 and said[0].startswith("speed: fake, 1 of 2; at most")
    with pytest.raises(ValueError, match="no engine 'warp': choose among fake, absent"):
        compare_engines(RUN, TEXTS, engines=["warp"], **sizes)


def test_the_engine_to_take_is_fast_everywhere_and_translates_as_well():
    def result(name, *speeds, bleu=30.0, beams=(1, 4)):
        cells = dict(zip(((beam, 1) for beam in beams), speeds, strict=True))
        return EngineSpeed(name, cells, dict.fromkeys(beams, bleu), None)

    results = [
        result("slow", 1.0, 2.0, bleu=30.2),
        result("good", 3.0, 2.0),
        result("worse", 9.0, 9.0, bleu=29.0),
        result("greedy", 99.0, beams=(1,)),
    ]
    assert best_engine(results).name == "good"


@pytest.mark.heavy
def test_the_command_measures_in_other_processes(tmp_path, capsys):
    pytest.importorskip("torch")
    source, reference = tmp_path / "en", tmp_path / "zh"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    reference.write_text("\n".join(Translator.load(RUN)(TEXTS)) + "\n", encoding="utf-8")
    files = ["--source", str(source), "--reference", str(reference)]
    sizes = ["--beam-size", "4", "--batch-size", "2"]
    assert main(["speed", str(RUN), *files, *sizes, "--engine", "torch", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (engine,) = result["engines"]
    assert (result["best"], engine["bleu"]["4"]) == ("torch", pytest.approx(100))
    assert engine["speeds"][0]["sentences_per_second"] > 0
    assert main(["speed", str(RUN), "--engine", "torch"]) == 1
    assert "has no validation set: give texts to translate by --source" in capsys.readouterr().err
