"""The benchmarks: every part of them runs, and their numbers are possible."""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

import kformer
from benchmarks import inference, training

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


def run_training(*options):
    """Rows of the table of benchmarks/training.py, as dicts of strings."""
    command = [sys.executable, str(BENCHMARKS / "training.py"), "--quick"]
    command += ["--steps", "1", "--repeats", "1", *options]
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]
    lines = [
        line.strip("|").split("|") for line in process.stdout.splitlines() if line.startswith("|")
    ]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def check(row):
    assert float(row["tokens/s, median"].replace(",", "")) > 0
    assert 0 < float(row["of floor"]) < 1
    assert float(row["first step, s"]) > 0


@pytest.mark.any_backend
def test_operations_are_those_of_the_weights():
    means = dict.fromkeys(("S", "T", "SS", "TT", "ST"), 1.0)  # Pairs of one token each.
    model = kformer.Transformer.from_preset("tiny", training.SHAPES["tiny"][0])
    # Each matrix is multiplied by one vector, the shared table as the projection. Twelve attentions
    # compute scores and contexts besides.
    forward = (
        sum(math.prod(weight.shape) for weight in model.trainable_weights if len(weight.shape) == 2)
        + 12 * 2 * model.hidden_dim
    )
    assert training.operations_of("tiny", means) == 6 * forward


@pytest.mark.any_backend
def test_windows_repeat_after_a_step_of_each_shape(tmp_path):
    options = argparse.Namespace(
        folder=tmp_path, source=None, target=None, shapes=["tiny"], batch_tokens=512, max_shapes=4
    )
    training.make(options)
    dataset = training.open_dataset(options)
    dataset.choose(8)
    batches = [dataset.batch_at(step)[1] for step in range(len(dataset.opening) + 16)]
    opening, window, again = batches[: len(dataset.opening)], batches[-16:-8], batches[-8:]
    assert {labels.shape for labels in opening[1:]} == {labels.shape for labels in window}
    assert len(opening) == 1 + len({labels.shape for labels in window}) > 2
    assert all((first == second).all() for first, second in zip(window, again, strict=True))


@pytest.mark.any_backend
def test_the_core_of_a_search_takes_ids(tmp_path, backend):
    (tmp_path / "run").symlink_to(pathlib.Path(__file__).parent / "frozen_run")
    options = argparse.Namespace(threads=1)
    core = inference.Core(tmp_path, options, "greedy", backend=backend)
    # One best of each text: as many tokens as are measured, the last of them the end.
    assert core(["noon", "half past four"]).shape == (2, 1, inference.STEPS)


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_of_a_peer():
    (row,) = run_training("--backends", "torch", "--systems", "torch")
    assert (row["system"], row["/ torch"], row["/ KerasHub"]) == ("torch", "1.00", "")
    check(row)


@pytest.mark.slow
def test_training_of_kformer(backend):
    plain, packed = run_training("--backends", backend, "--systems", "kformer", "--packed")[:2]
    assert (plain["system"], plain["backend"], packed["system"]) == (
        "kformer",
        backend,
        "kformer-tuned-packed",
    )
    check(plain)
    check(packed)


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("recipe", ["student", "taught", "diversified", "roundtrip"])
def test_a_student_of_two_teachers(tmp_path, recipe):
    data = tmp_path / "data"
    data.mkdir()
    for name, split, count in (
        ("train", "train", 300),
        ("val", "valid", 20),
        ("test2016", "test", 20),
    ):
        pairs = kformer.examples.generate_pairs(count, split=split, categories=("time",))
        for language, side in (("en", "source"), ("zh", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (data / f"{name}.{language}").write_text(text, encoding="utf-8")
    words = f"--to zh --test --recipe {recipe} --teachers 2 --seeds 1 --epochs 1 --vocabulary 360"
    command = [sys.executable, str(BENCHMARKS / "multi30k.py"), str(data)]
    command += ["--work", str(tmp_path / "work"), "--jobs", "2", *words.split()]
    first, again = (subprocess.run(command, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == 0, first.stderr[-3000:]
    rows = [
        [
            line
            for line in run.stdout.splitlines()
            if line.startswith(("| 2 teachers", f"| {recipe}"))
        ]
        for run in (first, again)
    ]
    assert len(rows[0]) == 2 and rows[0] == rows[1], "a second call finds everything done"
    assert (
        "BLEU: nrefs:1|case:mixed|eff:no|tok:none|" in first.stdout
        and "chrF: nrefs:1|case:mixed|eff:yes|nc:6|nw:0" in first.stdout
    )
    backward = "-2" if recipe in ("diversified", "roundtrip") else ""
    paths = [
        tmp_path / "work" / f"{recipe}-tok-en-zh-2{backward}.{side}"
        for side in ("source", "target")
    ]
    # Not by splitlines: a teacher after one epoch says control characters, which end no line here.
    taught = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in paths]
    given = [
        (data / f"train.{language}").read_text(encoding="utf-8").splitlines()
        for language in ("en", "zh")
    ]
    last = tmp_path / "work" / "tok-en-zh-roundtrip-1-last"
    assert last.exists() == (recipe == "roundtrip")
    if last.exists():
        options = json.loads((last / "paths.json").read_text(encoding="utf-8"))
        assert options["start_from"] == str(last.with_name("tok-en-zh-roundtrip-1")) and options[
            "train_source"
        ] == str(data / "train.en")
    refused = subprocess.run([*command, "--epochs", "2"], capture_output=True, text=True)
    assert refused.returncode != 0 and "so epochs stays 1" in " ".join(refused.stderr.split())
    # A duplicate pair is learnt once. After one epoch the teachers' translations may be empty.
    assert len(taught[0]) == len(taught[1]) and set(zip(*given, strict=True)) <= set(
        zip(*taught, strict=True)
    )


@pytest.mark.any_backend
def test_the_texts_and_methods_of_fine_tuning(tmp_path):
    from benchmarks import fine_tuning

    for name, languages in (("old", ("de", "en")), ("new", ("zh", "en"))):
        (tmp_path / name).mkdir()
        for part, count in (("train", 9), ("val", 2), ("test", 3)):
            for language in languages:
                lines = (f"{name} {part} {language} {i}\n" for i in range(count))
                (tmp_path / name / f"{part}.{language}").write_text("".join(lines))
    options = argparse.Namespace(old=tmp_path / "old", new=tmp_path / "new", work=tmp_path)
    options.old_source, options.new_source, options.target = "de", "zh", "en"
    options.old_test = options.new_test = "test"
    options.pairs, options.seen = 4, 3
    text = fine_tuning.write_texts(options)
    read = {path.name: path.read_text().splitlines() for path in text.iterdir()}
    # What the first model has seen of the new text is no part of the fine-tuning.
    assert read["new-train.source"] == [f"new train zh {i}" for i in range(4)]
    assert read["first.target"][3:] == ["old train en 3", *(f"new train en {i}" for i in (6, 7, 8))]
    assert len(read["both.source"]) == 18
    assert fine_tuning.method_arguments("full", text, "old") == []
    assert fine_tuning.method_arguments("lora-8", text, "old") == ["--lora-rank", "8"]
    mixed = fine_tuning.method_arguments("mixed-lora-32", text, "new")
    assert mixed[:3] == ["--lora-rank", "32", "--general-source"]
    assert mixed[3] == text / "new-train.source" and "--general-valid-target" in mixed
