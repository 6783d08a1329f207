"""The benchmarks: each script has help, and runs with the smallest sizes."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

import kformer
from benchmarks.common import tokenizer_of

ROOT = pathlib.Path(__file__).parent.parent
HELPERS = {"common", "peers", "toolkit_files"}
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in HELPERS)
FROZEN = ROOT / "tests" / "frozen_run"


@pytest.mark.any_backend
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_begins_with_the_docstring(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    help_text, text = capsys.readouterr().out, script.read_text(encoding="utf-8")
    assert text.split('"""')[1].splitlines()[0] in help_text
    assert f"python benchmarks/{script.name}" in help_text


@pytest.mark.any_backend
def test_pages_name_scripts_and_parts_that_are_there():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.name != "CHANGELOG.md"]
    commands = re.findall(r"benchmarks/(\w+)\.py(?: ([a-z_-]+))?", "\n".join(texts))
    assert len(commands) > 30
    for script, part in commands:
        code = (ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8")
        assert not part or f'"{part}"' in code or f"def {part}(" in code, (script, part)


@pytest.mark.any_backend
def test_the_raw_figures_are_those_that_the_page_names():
    figures = json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    cells = [row.strip("|").split("|")[-1] for row in page.splitlines() if row.startswith("|")]
    names = set(re.findall(r"[a-z][a-z0-9-]+", ",".join(cells)))
    assert figures.keys() <= names
    for measurement in figures.values():
        assert measurement["cpu"] and re.search("benchmarks/|^kformer ", measurement["command"])
        assert {len(row) for row in measurement["rows"]} == {len(measurement["columns"])}


@pytest.mark.any_backend
def test_the_interval_has_the_tokenizer_of_the_score():
    assert tokenizer_of({"bleu_signature": "nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp"}) == "zh"


def run(script, *arguments, backend="torch"):
    """The rows of the tables that a script prints, lists of cells, without their heads."""
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", *arguments]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend}
    process = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    assert f"python benchmarks/{script}.py" in process.stdout, "the command is printed"
    lines = [line for line in process.stdout.splitlines() if line.startswith("|")]
    heads = [index - 1 for index, line in enumerate(lines) if set(line) <= set("|-")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for index, line in enumerate(lines)
        if index not in heads and not set(line) <= set("|-")
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a corpus of generated pairs: `train`, `val` and `test` in two languages."""
    folder = tmp_path_factory.mktemp("data")
    for name, split, count in (("train", "train", 300), ("val", "valid", 20), ("test", "test", 20)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories=("time",))
        for language, side in (("en", "source"), ("zh", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


slow = pytest.mark.slow
once = pytest.mark.any_backend(quickest="torch")


@slow
@once
def test_training_beside_torch():
    options = ("--quick", "--steps", 1, "--repeats", 1, "--backends", "torch")
    ours, theirs = run("training", *options, "--systems", "kformer,torch")
    assert (ours[2], theirs[2], theirs[6]) == ("kformer", "torch", "1.00")
    assert all(
        float(row[3].replace(",", "")) > 0 and 0 < float(row[5]) < 1 for row in (ours, theirs)
    )


@slow
@once
def test_inference_of_shapes_and_of_a_run(data):
    options = ("--searches", "greedy", "--systems", "core-torch", "--repeats", 1)
    (row,) = run("inference", "--quick", "--batches", 2, *options)
    assert row[:4] == ["tiny", "greedy", "2", "core-torch"] and float(row[6]) > 0
    files = ("--source", data / "test.en", "--reference", data / "test.zh", "--sentences", 4)
    (row,) = run("inference", "--run", FROZEN, *files, *options)
    assert row[:4] == ["run", "greedy", "64", "core-torch"] and 0 <= float(row[6]) <= 100


@slow
@once
def test_operations_of_a_saved_model(data):
    folder = ROOT / "saved_models" / "frozen" / "1"
    options = ("--source", data / "test.en", "--sentences", 1, "--repeats", 1, "--top", 2)
    *rows, (label, cell), (_, untraced) = run("operations", folder, *options)
    assert label == "all" and len(rows) == 3 and int(cell.split(", ")[0].replace(",", "")) > 1000
    assert float(untraced.split()[0]) > 0


@slow
@once
def test_quality_beside_torch(data, tmp_path):
    options = ("--to", "zh", "--work", tmp_path / "work", "--pairs", 250, "--backend", "torch")
    options += ("--rates", 0.005, "--dropouts", "0.2,0.3", "--finalists", 1)
    options += ("--train-options", "--steps 20 --preset tiny")
    rows = run("quality", "peers", data, *options)
    assert rows == run("quality", "peers", data, *options), "a second call finds all of it done"
    assert [row[0] for row in rows] == ["kformer", "torch, trial", "torch, trial", "torch"]
    assert len({row[4] for row in rows}) == 1, "as many parameters"
    assert rows[1][10] == "" != rows[3][10], "the test set is opened last"


@slow
@once
def test_quality_of_searches_and_of_confidence(data):
    test = ("--source", data / "test.en", "--reference", data / "test.zh")
    ways = ("--ways", "greedy,mbr-2,terms", "--temperatures", 1, "--sentences", 4)
    rows = run("quality", "search", FROZEN, *test, *ways, "--tokenize", "zh")
    assert [row[0] for row in rows] == ["greedy", "mbr-2, temperature 1", "terms"]
    valid = ("--valid-source", data / "val.en", "--valid-target", data / "val.zh")
    rows = run("quality", "confidence", FROZEN, *valid, *test)
    assert [row[0] for row in rows[:2]] == ["the validation set", "the test set"]
    assert len(rows) == 7 and all(0 <= float(row[2]) <= 1 for row in rows[:2])


@slow
@once
def test_efforts(data, tmp_path):
    options = ("--effort", 1, "--seeds", 1, "--to", "zh", "--test", "test", "--tokenize", "zh")
    options += ("--backend", "torch", "--option", "--steps 6 --preset tiny")
    (row,) = run("efforts", data, "--work", tmp_path, *options)
    assert row[:3] == ["1", "1", "its training"] and int(row[8].replace(",", "")) > 0


@slow
@once
def test_students(data, tmp_path):
    shape = "student-ssru"
    options = ("--shapes", shape, "--kinds", "taught,alone", "--to", "zh", "--test", "test")
    options += ("--backend", "torch", "--option", "--steps 3 --no-choose-search")
    options += ("--speed", "--lists", 50)
    rows = run("students", data, "--work", tmp_path, *options)
    assert rows == run("students", data, "--work", tmp_path, *options), "it finds all done"
    taught, alone, speed, with_lists = rows
    assert taught[:3] == [shape, "taught", "1"] and alone[:3] == [shape, "alone", "1"]
    assert taught[3] == alone[3]
    assert speed[:2] == [shape, ""] and with_lists[:3] == [shape, "50", "200"]
    assert all(float(cell) > 0 for cell in (*speed[7:], *with_lists[7:]))


@slow
@once
def test_formats_return_the_ids_of_kformer(data, tmp_path):
    files = ("--source", data / "test.en", "--reference", data / "test.zh", "--work", tmp_path)
    options = ("--limit", 4, "--formats", "ctranslate2-float32")
    rows = run("formats", "others", FROZEN, *files, *options)
    assert [row[5:7] for row in rows[2:]] == [["4 of 4", "4 of 4"]] * 2


@slow
@once
def test_interop(data, tmp_path):
    text = ("--train-source", data / "train.en", "--train-target", data / "train.zh")
    options = ("--shape", "small", "--accept", "--steps", 8, "--backends", "torch")
    (row,) = run("interop", "shapes", *text, *options, "--work", tmp_path)
    assert float(row[2]) < 1e-4 and row[3:5] == ["64 of 64", "64 of 64"]


@slow
@once
def test_memory():
    rows = run("memory", "corpus", "--pairs", 2000, "--batches", 2, "--train-steps", 1)
    assert rows[-1][0] == "1 steps of fit, tiny, torch"
    (row,) = run("memory", "attention", "--backends", "torch", "--lengths", 64, "--repeats", 1)
    assert row[:2] == ["torch", "64"] and all(float(cell) > 0 for cell in row[2:8:2])


@slow
@once
def test_devices():
    rows = run("devices", "--parts", "plan")
    assert rows[0][:3] == ["base", "8", "NVLink"]


@slow
@once
def test_documents():
    rows = run("documents", "--share", 0.01)
    assert {row[1] for row in rows} >= {"html", "srt", "po", "markdown"}
    assert {row[4] for row in rows} == {"none"}


@slow
@once
def test_corpora(tmp_path):
    rows = run("corpora", "readers", "--work", tmp_path, "--count", 200)
    assert len(rows) == 13 and {row[1] for row in rows} == {"200", "20"}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The folder that the parts of the campaign share."""
    return tmp_path_factory.mktemp("campaign")


@slow
@once
@pytest.mark.skipif(sys.platform != "linux", reason="the campaign forks processes")
@pytest.mark.parametrize(
    "part",
    ["trainings", "commands --only translate", "damage", "writers", "malicious", "lying_hub"]
    + ["power_cut --only training"],
)
def test_reliability(part, campaign):
    options = ("--count", 2, "--backends", "torch", "--work", campaign)
    *_, (name, tried, failed) = run("reliability", *part.split(), *options)
    assert name == "all" and int(tried) > 0 == int(failed)


@slow
@once
def test_serving():
    rows = run("serving", "same", "--count", 2)
    assert len(rows) == 5 and {row[2] for row in rows} == {"2 of 2"}
