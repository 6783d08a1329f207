"""`kformer align RUN`, `kformer calibrate`, and the columns of `kformer translate`."""

import json
import pathlib
import shutil

import pytest

import kformer
from kformer.saving.run_directory import read_config, update_config
from kformer.translating import retry
from kformer.translating.word_alignment import without_calibration
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend(quickest="torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN, SAVED_MODEL = ROOT / "tests" / "frozen_run", ROOT / "saved_models" / "frozen"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = kformer.examples.generate_pairs(30, seed=5, split="test", categories=("time",))
    for name, lines in (("s", [p.source for p in pairs]), ("t", [p.target for p in pairs])):
        pathlib.Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shutil.copytree(RUN, "run")
    return tmp_path


SIDES = ["--source", "s", "--target", "t"]


@pytest.mark.heavy
def test_a_run_is_calibrated_and_aligns(folder, capfd):
    update_config("run", {"coverage": {"languages": ["en", "zh"]}})
    before = read_config("run")
    assert main(["calibrate", "run", *SIDES, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["coverage"] == {}, "too few pairs: what was fitted before is gone"
    assert read_config("run") == {**before, **found}, "nothing else of the run changes"
    assert main(["align", "run", *SIDES, "--output", "found"]) == 0
    sources, targets = (
        pathlib.Path(name).read_text(encoding="utf-8").splitlines() for name in ("s", "t")
    )
    expected = kformer.Translator.load("run").align(sources, targets)
    lines = pathlib.Path("found").read_text().splitlines()
    assert lines == [" ".join(f"{i}-{j}" for i, j in each) for each in expected]
    capfd.readouterr()
    assert main(["align", "run", *SIDES, "--gold", "found"]) == 0
    assert capfd.readouterr().out == "AER  0.0000\n"
    assert main(["calibrate", "run", *SIDES, "--alignments", "found"]) == 0
    out = capfd.readouterr().out
    assert "temperature" in out and "alignment error rate 0.0000" in out
    # Without a run the statistical aligner is compared.
    assert main(["align", *SIDES, "--gold", "found", "--json"]) == 0
    assert 0 <= json.loads(capfd.readouterr().out)["alignment_error_rate"] <= 1


@pytest.mark.parametrize(
    "line, message",
    [("0:0", "Line 2 of the alignment file"), ("0-99", "names the words 0-99"), (None, "differ")],
)
def test_wrong_alignments_are_refused(folder, capfd, line, message):
    lines = ["0-0"] * 30 if line is not None else ["0-0"]
    if line is not None:
        lines[1] = line
    pathlib.Path("gold").write_text("".join(f"{each}\n" for each in lines))
    assert main(["align", *SIDES, "--gold", "gold"]) == 1
    assert message in " ".join(capfd.readouterr().err.split())


@pytest.mark.heavy
def test_columns_of_translations(folder, capfd):
    command = ["translate", "run", "--input", "s", "--alignment", "--confidence"]
    assert main([*command, "--output", "out"]) == 0
    translator = kformer.Translator.load("run")
    sources = pathlib.Path("s").read_text(encoding="utf-8").splitlines()
    lines = pathlib.Path("out").read_text(encoding="utf-8").splitlines()
    for line, each in zip(lines, translator(sources, alignment=True, confidence=True), strict=True):
        text, aligned, mean, words = line.split("\t")
        assert text == each.text
        assert aligned == " ".join(f"{i}-{j}" for i, j in each.alignment)
        assert float(mean) == pytest.approx(each.confidence.mean, abs=1e-4)
        assert len(words.split()) == len(each.words)
    for options, model in ((["--n-best", "2"], "run"), ([], SAVED_MODEL)):
        code = main(["translate", str(model), "--input", "s", "--alignment", *options])
        assert code and "--alignment" in capfd.readouterr().err


@pytest.mark.heavy
def test_a_report_of_coverage(folder, capfd):
    lines = [*pathlib.Path("s").read_text(encoding="utf-8").splitlines()[:3], "call a@b.org"]
    pathlib.Path("s").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["translate", "run", "--input", "s", "--output", "out", "--coverage", "report"]
    assert main(command) == 0
    assert "may have left out or added something: see 'report'" in capfd.readouterr().err
    rows = [json.loads(line) for line in pathlib.Path("report").read_text().splitlines()]
    translations = pathlib.Path("out").read_text(encoding="utf-8").splitlines()
    expected = kformer.Translator.load("run")(lines, coverage=True)
    for number, (row, line, each) in enumerate(zip(rows, lines, expected, strict=True), 1):
        assert row["line"] == number and row["source"] == line
        assert row["translation"] == each.text == translations[number - 1]
        assert row["probability"] == each.coverage.probability
    assert "address" in [span["kind"] for span in rows[3]["missing"]]
    assert main([*command, "--strict", "--retry"]) == 1
    assert "(--strict)" in capfd.readouterr().err
    # A SavedModel tells what needs no model.
    assert main(["translate", str(SAVED_MODEL), *command[2:]]) == 0
    (span,) = json.loads(pathlib.Path("report").read_text().splitlines()[3])["missing"]
    assert span["text"] == "a@b.org"
    for options in (["--retry"], ["--coverage", "r", "--n-best", "2"], ["--coverage", "s"]):
        assert main(["translate", "run", "--input", "s", *options])
        assert "overage" in (err := capfd.readouterr().err) or "replace" in err


def test_a_second_search_has_the_options_of_the_first(folder, monkeypatch, capfd):
    calls = []

    def record(translator, texts, results, coverages, **options):
        calls.append(options)
        return results, coverages

    monkeypatch.setattr(retry, "retranslate", record)
    command = ["translate", "run", "--input", "s", "--output", "out", "--coverage", "r", "--retry"]
    options = ["--beam-size", "2", "--length-penalty", "0.5", "--batch-size", "30"]
    assert main([*command, *options]) == 0
    assert calls == [{"beam_size": 2, "length_penalty": 0.5, "n_best": 1, "batch_size": 30}]
    # What belongs to each line would be lost.
    assert main([*command, "--forbidden-terms", "t"])
    assert "--forbidden-terms" in capfd.readouterr().err


def test_a_calibration_is_that_of_one_model():
    config = {"search": {}, "confidence": {"temperature": 1.1}, "coverage": {}}
    measured = {"layer": 0, "head": 1, "after": True, "error": 0.2}
    guided = {"layer": 0, "head": 0, "after": True}
    assert without_calibration({**config, "alignment": measured}) == {"search": {}}
    assert without_calibration({**config, "alignment": guided}) == {
        "search": {},
        "alignment": guided,
    }
    assert without_calibration({"search": {}}) == {"search": {}}
