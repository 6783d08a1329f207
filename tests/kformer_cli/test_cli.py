"""The command line: its output, its errors, and a training that is killed and resumed."""

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np
import pytest
import sacrebleu

import kformer
from kformer.evaluation.scores import EvaluationResult
from kformer.export.saved_model.reader import read_metadata
from kformer.saving import load_run
from kformer.saving.checkpoints import fingerprint
from kformer.training import average_checkpoints
from kformer.translating import streaming
from kformer.utils.checksums import without_checksum
from kformer_cli import environment
from kformer_cli.main import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "frozen_run"
SAVED_MODEL = ROOT / "saved_models" / "frozen"
TIMES = [
    "half past four in the afternoon",
    "ten minutes to seven in the morning",
    "9:05 pm",
    "noon",
]


@pytest.fixture
def kformer_main(capfdbinary, monkeypatch):
    """A function that runs a command in this process and returns its exit code, standard output and
    standard error.
    """

    def run(*arguments, stdin=b""):
        with contextlib.ExitStack() as undo:
            for name, value in dict(os.environ).items():
                undo.callback(os.environ.__setitem__, name, value)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            capfdbinary.readouterr()
            code = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Files of a small parallel corpus: dict of name to path."""
    folder = tmp_path_factory.mktemp("corpus")
    paths = {}
    for split, count in (("train", 240), ("valid", 30)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories="time")
        for side in ("source", "target"):
            paths[f"{split}_{side}"] = folder / f"{split}.{side}"
            paths[f"{split}_{side}"].write_text(
                "".join(getattr(pair, side) + "\n" for pair in pairs), encoding="utf-8"
            )
    return paths


@pytest.fixture(scope="module")
def small_run(tmp_path_factory, corpus):
    """A run directory with a very small untrained model, from which trainings may start."""
    tokenizer = kformer.Tokenizer.train(
        [corpus["train_source"], corpus["train_target"]], vocabulary_size=400, model_type="unigram"
    )
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "num_heads": 2,
    }
    model = kformer.Transformer(tokenizer.vocabulary_size, **sizes, dropout=0.2, max_length=48)
    return kformer.Translator(model, tokenizer).save(tmp_path_factory.mktemp("small") / "run")


def train_arguments(corpus, output, **options):
    """The arguments of `kformer train`."""
    options = {**corpus, "output": output, **options}
    return [
        "train",
        *(
            part
            for name, value in options.items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ),
    ]


def error_of(result):
    """The error line of a failed command, after checks that hold for every failure."""
    code, out, err = result
    assert code in (1, 2, 130)
    assert out == b""
    assert "Traceback" not in err
    # What Ctrl-C ended is no error.
    start = "interrupted" if code == 130 else "error: "
    (line,) = [line for line in err.splitlines() if line.startswith(start)]
    assert err.endswith(line + "\n")
    return line.removeprefix("error: ")


# ---- the entry point ----


@pytest.mark.heavy
@pytest.mark.any_backend
def test_help_needs_no_keras_and_the_backend_is_set_before_it_is_imported():
    code = """if True:
        import os, sys
        from kformer_cli.main import main
        assert main([]) == main(["train", "--help"]) == 0
        train = ["train", "--output", "run"]
        wrong = [["tarin"], ["train", "--ouput", "run"], [*train, "--epochs", "many"]]
        wrong += [[*train, "--dropout", "2"], [*train, "--preset", "huge"]]
        assert [main(arguments) for arguments in wrong] == [2] * 5
        assert not {"keras", "kformer", "tensorflow", "jax", "torch"} & set(sys.modules)
        os.environ["KERAS_BACKEND"] = "torch"
        sides = ["--source", "x", "--target", "x"]
        assert main(["score", "--backend=jax", "--threads", "1", *sides, "nowhere"]) == 1
        assert main(["translate", "nowhere"]) == main(["import", "nowhere", "--output", "x"]) == 1
        assert main(["export", "nowhere", "--output", "x", "--dtype", "int4"]) == 2
        assert main(["translate", "x", "--beam-size", "0"]) == 2
        files = ["--train-source", "nowhere", "--train-target", "nowhere"]
        assert main([*train, "--resume"]) == main(["serve", "en-de=nowhere"]) == 1
        assert main([*train, *files]) == 1
        assert not {"keras", "kformer", "tensorflow", "jax", "torch"} & set(sys.modules)
        import keras
        assert keras.backend.backend() == "jax" and os.environ["OMP_NUM_THREADS"] == "1"
    """
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for command in (
        "quickstart",
        "train",
        "translate",
        "evaluate",
        "score",
        "export",
        "--resume",
        "1 is one training",
    ):
        assert command in process.stdout
    assert "error: The --source file 'x' does not exist" in process.stderr
    assert process.stderr.splitlines()[-1] == (
        "error: The --train-source file 'nowhere' does not exist; give the path of a UTF-8 text "
        "file with one sentence per line."
    )
    assert "error: --preset must be one of tiny, small, base, big" in process.stderr


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["--backend", "mxnet", "translate", "x"],
            "--backend is 'mxnet', but must be one of tensorflow, jax, torch.",
        ),
        (
            ["translate", "x", "--threads=none"],
            "--threads must be a whole number of at least 1, but 'none' was given.",
        ),
        (["tarin"], "No such command 'tarin'"),
        (["train"], "Missing option '--output'"),
        (["translate"], "Missing argument 'RUN_OR_SAVED_MODEL'"),
        (["translate", "x", "--beam-size", "wide"], "Invalid value for '--beam-size'"),
        (["translate", "x", "--n-best", "0"], "Invalid value for '--n-best'"),
        (["translate", "x", "--temperature", "2"], "are for --sample"),
        (
            ["export", str(RUN), "--output", "x", "--format", "tflite"],
            "--format is 'tflite', but must be one of saved_model, ctranslate2",
        ),
        (
            ["export", str(RUN), "--output", "x", "--format", "ctranslate2", "--beam-size", "4"],
            "ctranslate2 holds no search options",
        ),
        (
            ["export", str(RUN), "--output", "x", "--format", "hf", "--signatures", "n_best"],
            "--signatures is for the format saved_model, not for hf.",
        ),
        (
            ["export", str(RUN), "--output", "x", "--format", "onnx", "--signatures", ""],
            "--signatures is for the format saved_model, not for onnx.",
        ),
        (["import", "folder"], "Missing option '--output'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(kformer_main, arguments, words):
    result = kformer_main(*arguments)
    assert words in error_of(result)
    assert result[0] == 2


@pytest.mark.any_backend
def test_a_backend_that_is_not_installed_is_an_error(kformer_main, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    result = kformer_main("translate", "x", "--backend", "jax")
    assert (
        error_of(result)
        == "The backend 'jax' is not installed here: run `pip install \"kformer[jax]\"`, or choose "
        "another --backend."
    )
    assert result[0] == 2


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "error, code, words",
    [
        (KeyboardInterrupt(), 130, "interrupted."),
        (MemoryError(), 1, "there is not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 1, "there is not enough"),
        (RuntimeError("RESOURCE_EXHAUSTED: Failed to allocate 9"), 1, "there is not enough"),
        (type("ResourceExhaustedError", (Exception,), {})("OOM"), 1, "there is not enough memory"),
        (PermissionError(13, "Permission denied", "/there/x"), 1, "Permission denied: '/there/x'."),
        (
            ZeroDivisionError("a\nb"),
            1,
            "ZeroDivisionError: a b (Run again with KFORMER_TRACEBACK=1 to see where.)",
        ),
    ],
)
def test_any_exception_is_one_line(kformer_main, monkeypatch, error, code, words):
    def app(**_):
        raise error

    monkeypatch.setattr("kformer_cli.app.app", app)
    result = kformer_main("score")
    assert words in error_of(result)
    assert result[0] == code
    monkeypatch.setenv("KFORMER_TRACEBACK", "1")
    assert "Traceback" in kformer_main("score")[2]


@pytest.mark.any_backend
def test_a_long_message_loses_its_middle(kformer_main, monkeypatch):
    def app(**_):
        raise ValueError("the file has " + "x, " * 10**6 + ": remove it.")

    monkeypatch.setattr("kformer_cli.app.app", app)
    message = error_of(kformer_main("score"))
    assert message.startswith("the file has x, x,") and message.endswith("x, : remove it.")
    assert " ... " in message and len(message) < 2100


# ---- bad input ----


class BadFiles:
    """Files and folders with something wrong in them."""

    def __init__(self, folder):
        self.folder = folder
        self.good = self._file("good.txt", b"noon\n")
        self.two = self._file("two.txt", b"noon\nnoon\n")
        self.empty = self._file("empty.txt", b"")
        self.invalid = self._file("bytes.txt", b"noon\ncaf\xe9\n")
        self.missing = folder / "missing.txt"
        self.gzip = self._file("text.gz", gzip.compress(b"noon\n"))
        self.newer, self.half, self.other = (folder / name for name in ("newer", "half", "other"))
        self._file("newer/config.json", b'{"format_version": 1000}')
        self._file("half/config.json", b'{"format_version": 1}')
        (self.half / "tokenizer").mkdir()
        self._file("other/thesis.tex", b"")

    def _file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def train(self, source, target, *more, output=None):
        sides = ["--train-source", source, "--train-target", target]
        return ["train", "--output", output or self.folder / "run", *sides, *more]


def bad_trainings(bad):
    """Command lines of `train` with something wrong, and words of the error."""
    return [
        (bad.train(bad.missing, bad.good), "missing.txt' does not exist"),
        (bad.train(bad.good, bad.two), f"1 line in '{bad.good}', but 2 in '{bad.two}'"),
        (bad.train(bad.empty, bad.empty), "empty.txt' is empty"),
        (
            bad.train(bad.invalid, bad.two),
            f"Line 2 of the text file '{bad.invalid}' is not valid UTF-8",
        ),
        (bad.train(bad.folder, bad.good), "is a folder"),
        (
            bad.train(bad.good, bad.good, "--valid-source", bad.gzip, "--valid-target", bad.good),
            "text.gz' is compressed by gzip: decompress it first (gunzip)",
        ),
        (
            bad.train(bad.good, bad.good, "--valid-source", bad.good),
            "give --valid-source and --valid-target",
        ),
        (
            bad.train(bad.good, bad.good, "--preset", "huge"),
            "--preset must be one of tiny, small, base, big, paper_base",
        ),
        (
            bad.train(bad.good, bad.good, "--norm", "both"),
            "norm must be one of pre, post, but 'both' was given",
        ),
        (
            bad.train(bad.good, bad.good, "--dropout", "1.5"),
            "dropout must be in [0, 1), but 1.5 was given",
        ),
        (
            bad.train(bad.good, bad.good, "--model-option", "rope"),
            "a model option is NAME=VALUE, as gated=true, but 'rope' was given",
        ),
        (
            bad.train(bad.good, bad.good, "--model-option", "gate=true"),
            "There is no model option 'gate': choose among activation, attention_",
        ),
        (
            bad.train(bad.good, bad.good, "--epochs", "0"),
            "epochs must be a whole number of at least 1, but 0 was given",
        ),
        (bad.train(bad.good, bad.good, "--precision", "int8"), "precision must be one of float32"),
        (
            bad.train(bad.good, bad.good, "--start-from", RUN, "--preset", "tiny"),
            "With --start-from the model is the one of",
        ),
        (bad.train(bad.good, bad.good, "--start-from", bad.missing), "missing.txt"),
        (bad.train(bad.good, bad.good, output=bad.good), "is a file"),
        (
            bad.train(bad.good, bad.good, output=bad.other),
            "is not empty and holds no training (it has thesis.tex)",
        ),
        (bad.train(bad.good, bad.good, output=bad.newer), "install a newer kformer"),
        (
            ["train", "--output", bad.folder / "new", "--resume"],
            "by --train-source and --train-target.",
        ),
    ]


def bad_translations(bad):
    """Command lines of `translate`, `evaluate` and `score` with something wrong."""

    def compare(source, reference, *more):
        return ["evaluate", RUN, "--source", source, "--reference", reference, *more]

    return [
        (["translate", bad.folder / "nowhere"], "There is no run directory or SavedModel"),
        (
            ["translate", bad.other],
            "neither a run directory (it lacks config.json) nor a SavedModel",
        ),
        (["translate", bad.newer], "install a newer kformer"),
        (["translate", bad.half], "has no model.keras yet"),
        (["translate", RUN, "--input", bad.missing], "missing.txt' does not exist"),
        (
            ["translate", RUN, "--input", bad.good, "--output", bad.folder / "no" / "out.txt"],
            "of the output file does not exist",
        ),
        (["translate", RUN, "--input", bad.good, "--output", bad.folder], "Is a directory"),
        (
            ["translate", RUN, "--beam-size", "0"],
            "--beam-size must be a whole number of at least 1, but 0 was given",
        ),
        (
            ["translate", RUN, "--beam-size", "2", "--n-best", "3"],
            "raise --beam-size to 3, or lower --n-best",
        ),
        (["translate", SAVED_MODEL, "--beam-size", "5"], "was exported with --beam-size=4"),
        (["translate", SAVED_MODEL, "--sample"], "was exported with --sample=False"),
        (
            ["translate", SAVED_MODEL, "--repetition-penalty", "1.5"],
            "was exported with --repetition-penalty=1.0",
        ),
        (["translate", SAVED_MODEL, "--n-best", "9"], "was exported with the 4 best"),
        (compare(bad.good, bad.two), "1 line in"),
        (compare(bad.empty, bad.empty), "empty.txt' is empty"),
        (compare(bad.invalid, bad.two), "Line 2 of the source file"),
        (
            compare(bad.good, bad.good, "--tokenize", "moses"),
            "tokenize must be one of 13a, char",
        ),
        (["score", RUN, "--source", bad.good, "--target", bad.two], "1 line in"),
        (["score", SAVED_MODEL, "--source", bad.good, "--target", bad.good], "is not a run"),
    ]


def bad_exports(bad):
    """Command lines of `export` and `import` with something wrong."""
    return [
        (
            ["export", bad.folder / "nowhere", "--output", bad.folder / "saved"],
            "There is no run directory",
        ),
        (["export", RUN, "--output", bad.folder, "--format", "onnx"], "exists already"),
        (
            ["export", RUN, "--output", bad.folder / "x", "--dtype", "int4"],
            "dtype must be one of float32, bfloat16, int8, but 'int4' was given",
        ),
        (
            ["export", RUN, "--output", bad.folder / "x", "--format", "hf", "--dtype", "int8"],
            "dtype must be one of float32, float16, bfloat16",
        ),
        (
            [
                "export",
                RUN,
                "--output",
                bad.folder / "x",
                "--format",
                "ctranslate2",
                "--dtype",
                "int4",
            ],
            "--dtype must be one of",
        ),
        (["import", bad.folder / "nowhere", "--output", bad.folder / "x"], "There is nothing at"),
        (
            ["import", bad.folder, "--output", bad.folder / "x"],
            "has no config.json, so it is no folder as Hugging Face's library writes it",
        ),
        (["import", RUN, "--output", bad.folder], "There is something at"),
        (
            ["import", RUN, "--output", bad.folder / "x"],
            "a run of kformer already: `kformer translate` takes it as it is",
        ),
        (
            ["translate", RUN, "--target-language", "fr"],
            "This model has no choice of languages",
        ),
        (
            ["translate", SAVED_MODEL, "--target-language", "fr"],
            "This model has no choice of languages",
        ),
        (
            ["translate", SAVED_MODEL, "--source-language", "fr"],
            "only a run takes --source-language",
        ),
        (["translate", SAVED_MODEL, "--dtype", "int8"], "give the run, or export the run again"),
        (["translate", RUN, "--dtype", "int4"], "must be one of float32, bfloat16, int8"),
    ]


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_bad_input_is_one_clear_line(kformer_main, tmp_path):
    bad = BadFiles(tmp_path)
    for arguments, words in [*bad_trainings(bad), *bad_translations(bad), *bad_exports(bad)]:
        result = kformer_main(*arguments, stdin=b"noon\n")
        assert result[0], arguments
        line = error_of(result)
        assert words in line, (arguments, line)
    assert not (tmp_path / "no").exists() and not (tmp_path / "saved").exists()


@pytest.mark.any_backend
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere"
)
def test_a_folder_that_cannot_be_written_is_one_clear_line(kformer_main, corpus, tmp_path):
    tmp_path.chmod(0o500)
    assert error_of(kformer_main(*train_arguments(corpus, tmp_path / "run"))).startswith(
        "Permission denied"
    )


# ---- translate, score, evaluate, export ----


@pytest.mark.any_backend(quickest="torch")
def test_every_input_line_has_exactly_one_output_line(kformer_main, tmp_path):
    lines = [
        TIMES[0].encode(),
        b"",
        b"9:05\xff pm",
        "noon\u2028noon\x85noon\x0b".encode(),
        b"noon\r",
        b" ",
        b"noon\tnoon",
        TIMES[1].encode(),
    ]
    text = b"\xef\xbb\xbf" + b"\n".join(
        lines
    )  # a byte order mark at the start, no newline at the end
    code, out, err = kformer_main("translate", RUN, "--beam-size", "1", stdin=text)
    assert code == 0, err
    found = out.decode().removesuffix("\n").split("\n")
    decoded = [line.decode(errors="replace").removesuffix("\r") for line in lines]
    expected = kformer.Translator.load(RUN)(decoded, beam_size=1)
    assert len(found) == len(lines)
    assert found == [streaming.one_line(line) for line in expected]
    assert (
        found[0] == "下午四点半"
        and found[1] == ""
        and found[5] == ""
        and found[7] == "早上六点五十分"
    )

    (tmp_path / "in.txt").write_bytes(text)
    code, out, err = kformer_main(
        "translate",
        RUN,
        "--beam-size",
        "1",
        "--input",
        tmp_path / "in.txt",
        "--output",
        tmp_path / "out.txt",
    )
    assert (code, out) == (0, b"") and f"{len(lines)} lines in " in err
    assert (tmp_path / "out.txt").read_bytes().decode() == "".join(line + "\n" for line in found)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_saved_model_translates_as_the_run_it_was_made_from(kformer_main):
    text = "".join(line + "\n" for line in TIMES).encode()
    runs = [
        kformer_main("translate", model, "--n-best", "3", stdin=text)
        for model in (RUN, SAVED_MODEL)
    ]
    assert [code for code, _, _ in runs] == [0, 0], runs
    assert runs[0][1] == runs[1][1]
    rows = [line.split("\t") for line in runs[0][1].decode().splitlines()]
    assert [len(row) for row in rows] == [3] * len(TIMES)
    code, out, err = kformer_main("translate", SAVED_MODEL / "1", "--beam-size", "4", stdin=text)
    assert (code, out.decode().splitlines()) == (0, [row[0] for row in rows]), err


@pytest.mark.any_backend(quickest="torch")
def test_scores_are_those_that_the_score_command_gives(kformer_main, tmp_path):
    (tmp_path / "source").write_text("".join(line + "\n" for line in TIMES))
    code, out, _ = kformer_main(
        "translate", RUN, "--n-best", "2", "--scores", "--input", tmp_path / "source"
    )
    rows = [line.split("\t") for line in out.decode().splitlines()]
    assert code == 0 and [len(row) for row in rows] == [4] * len(TIMES)
    # Each source twice, with its two translations. (The second may be the first in other pieces,
    # which have the same text.)
    pairs = [
        (line, row[i], float(row[i + 1]))
        for line, row in zip(TIMES, rows, strict=True)
        for i in (0, 2)
        if i == 0 or row[2] != row[0]
    ]
    assert len(pairs) > len(TIMES)
    for i, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(pair[i] + "\n" for pair in pairs), encoding="utf-8")
    code, out, _ = kformer_main(
        "score", RUN, "--source", tmp_path / "source", "--target", tmp_path / "target"
    )
    assert code == 0
    assert [float(line) for line in out.decode().splitlines()] == pytest.approx(
        [score for _, _, score in pairs], abs=1e-3
    )


@pytest.mark.any_backend
def test_length_limits_apply_in_every_command_that_searches(kformer_main, tmp_path):
    limits = {"length_ratio": 0.5, "length_offset": 1}
    arguments = ["--length-ratio", "0.5", "--length-offset", "1", "--beam-size", "2"]
    translator = kformer.Translator.load(RUN)
    expected = translator(TIMES, beam_size=2, **limits)
    assert expected != translator(TIMES, beam_size=2)
    (tmp_path / "source").write_text("".join(line + "\n" for line in TIMES))
    source = ["--source", tmp_path / "source"]
    outputs = [
        "--output-source",
        tmp_path / "students.en",
        "--output-target",
        tmp_path / "students.zh",
    ]
    for command, name in (
        (
            ["translate", RUN, "--input", tmp_path / "source", "--output", tmp_path / "translated"],
            "translated",
        ),
        (
            [
                "evaluate",
                RUN,
                *source,
                "--reference",
                tmp_path / "source",
                "--output",
                tmp_path / "evaluated",
            ],
            "evaluated",
        ),
        (["distill", RUN, *source, *outputs], "students.zh"),
    ):
        code, _, err = kformer_main(*command, *arguments)
        assert code == 0, err
        assert (tmp_path / name).read_text(encoding="utf-8").splitlines() == expected, name


@pytest.mark.any_backend
def test_penalties_on_repetition_apply_in_every_command_that_searches(kformer_main, tmp_path):
    flags = ("--repetition-penalty", "0.2", "--no-repeat-ngram-size", "3", "--beam-size", "1")
    options = {"repetition_penalty": 0.2, "no_repeat_ngram_size": 3, "beam_size": 1}
    translator = kformer.Translator.load(RUN)
    expected = translator(TIMES, **options)
    assert expected != translator(TIMES, beam_size=1)
    stdin = "".join(text + "\n" for text in TIMES).encode()
    code, out, _ = kformer_main("translate", RUN, *flags, stdin=stdin)
    assert code == 0 and out.decode().splitlines() == expected
    for name, texts in (("source", TIMES), ("reference", expected)):
        (tmp_path / name).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    files = ("--source", tmp_path / "source", "--reference", tmp_path / "reference")
    code, out, _ = kformer_main("evaluate", RUN, *files, *flags, "--tokenize", "char", "--json")
    assert code == 0 and json.loads(out)["bleu"] > 99.9
    output = ("--output", tmp_path / "saved", "--format", "onnx")
    pytest.importorskip("onnx")
    assert kformer_main("export", RUN, *output, *flags)[0] == 0
    search = json.loads((tmp_path / "saved" / "kformer.json").read_text("utf-8"))["search"]
    assert {name: search[name] for name in options} == options


@pytest.mark.any_backend(quickest="torch")
def test_a_truncated_source_is_a_warning(kformer_main):
    code, out, err = kformer_main(
        "translate", RUN, "--beam-size", "1", stdin=b"noon\n" + b"noon " * 60 + b"\nnoon\n"
    )
    assert code == 0 and out.count(b"\n") == 3
    assert "warning: 1 source line was longer than the model's limit and cut (line 2)." in err


def test_evaluate_prints_the_scores_of_sacrebleu(kformer_main, tmp_path):
    pairs = kformer.examples.generate_pairs(20, seed=3, split="test", categories="time")
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for name, lines in (("source", sources), ("reference", targets)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    files = [
        "--source",
        tmp_path / "source",
        "--reference",
        tmp_path / "reference",
        "--output",
        tmp_path / "out",
    ]
    code, out, err = kformer_main(
        "evaluate", RUN, *files, "--tokenize", "zh", "--beam-size", "1", "--json"
    )
    assert code == 0, err
    hypotheses = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    bleu = sacrebleu.corpus_bleu(hypotheses, [targets], tokenize="zh")
    found = json.loads(out)
    assert found["bleu"] == pytest.approx(bleu.score) and 50 < bleu.score < 100
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [targets]).score)
    assert "tok:zh" in found["bleu_signature"] and found["sentences"] == len(sources)


@pytest.mark.any_backend
def test_evaluate_prints_two_lines(kformer_main, monkeypatch, tmp_path):
    result = EvaluationResult(
        12.345,
        67.891,
        "nrefs:1|tok:13a",
        "nc:6",
        "BLEU = 12.35 70.0/20.0/9.0/4.0 (BP = 1.000)",
        ["x"],
        [],
        0.39,
    )
    monkeypatch.setattr("kformer.evaluation.scores.evaluate", lambda *_, **__: result)
    (tmp_path / "file").write_text("x\n")
    code, out, err = kformer_main(
        "evaluate", RUN, "--source", tmp_path / "file", "--reference", tmp_path / "file"
    )
    assert code == 0, err
    assert (
        out.decode()
        == "BLEU  12.35   70.0/20.0/9.0/4.0 (BP = 1.000)   nrefs:1|tok:13a\nchrF  67.89   nc:6\n"
    )
    assert "shorter than their references (0.39 times the words)" in err
    assert "a higher --length-penalty" in err


@pytest.mark.any_backend
def test_evaluate_prints_a_row_for_each_direction_and_the_mean(kformer_main, tmp_path):
    pairs = kformer.examples.generate_pairs(8, seed=3, split="test", categories="time")
    for name, lines in (("en", [p.source for p in pairs]), ("zh", [p.target for p in pairs])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path = tmp_path / "tests.yaml"
    path.write_text(
        "validation:\n  en-zh: {source: en, target: zh}\n  en-en: {source: en, target: en}\n"
    )
    code, _, err = kformer_main("evaluate", RUN, "--corpora", path)
    assert code == 1 and "must be two languages, but both are en" in err
    path.write_text(path.read_text().replace("en-en", "en-de"))
    code, out, err = kformer_main("evaluate", RUN, "--corpora", path)
    assert code == 0, err
    head, *rows, mean = out.decode().splitlines()
    assert head.split() == ["direction", "BLEU", "chrF", "signatures"]
    assert [row.split()[0] for row in rows] == ["en-zh", "en-de"]
    assert "tok:zh" in rows[0] and "tok:13a" in rows[1]
    for column in (1, 2):
        values = [float(row.split()[column]) for row in rows]
        assert float(mean.split()[column]) == pytest.approx(sum(values) / 2, abs=0.01)
    code, out, _ = kformer_main("evaluate", RUN, "--corpora", path, "--json")
    found = json.loads(out)
    assert f"{found['directions']['en-zh']['bleu']:.2f}" == rows[0].split()[1]
    assert found["mean"]["bleu"] > 0
    for more, sentence in (
        (["--source", tmp_path / "en"], "--corpora is not for --source: leave one out."),
        (["--output", tmp_path / "out"], "--corpora is not for --output"),
        (["--source-language", "en"], "--corpora is not for --source-language"),
        (["--target-language", "zh"], "--corpora is not for --target-language"),
    ):
        code, _, err = kformer_main("evaluate", RUN, "--corpora", path, *more)
        assert code == 2 and sentence in err
    code, _, err = kformer_main("evaluate", RUN, "--source", tmp_path / "en")
    assert code == 2 and "Give --source and --reference, or --corpora." in err
    path.write_text("clean: none\n")
    code, _, err = kformer_main("evaluate", RUN, "--corpora", path)
    assert code == 1 and "has no validation sets" in err


@pytest.mark.any_backend
def test_clean_reports_what_it_leaves_out_and_never_ignores_exclude(kformer_main, tmp_path):
    lines = ["old houses stand here\talte Häuser stehen hier", "a test\tein Test", "a\t", "b\tb"]
    (tmp_path / "x.tsv").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "test.de").write_text("Alte Häuser stehen hier!\n", encoding="utf-8")
    path, report = tmp_path / "corpora.yaml", tmp_path / "report.json"
    words = ["clean", "--corpora", path, "--exclude", tmp_path / "test.de", "--report", report]
    for command in (words, ("train", "--corpora", path)):
        code, _, err = kformer_main(*command, "--output", tmp_path / "none")
        assert code == 1 and "corpora.yaml' does not exist; give the path of a YAML file" in err
    path.write_text("corpora: {x: {files: x.tsv, languages: en-de}}\nclean: none\n")
    code, _, err = kformer_main(*words, "--output", tmp_path / "none")
    assert code == 1 and "corpus 'x' is cleaned without the rule overlap" in err
    assert not (tmp_path / "none").exists()
    path.write_text("corpora: {x: {files: x.tsv, languages: en-de}}\n")
    code, out, err = kformer_main(*words, "--output", tmp_path / "out")
    assert code == 0 and out.decode() == f"{tmp_path / 'out'}\n"
    assert re.search(r"x +read +4\n.*rejected: overlap +1\n.*kept +1\n", err, re.DOTALL)
    counts = json.loads(report.read_text(encoding="utf-8"))["x"]
    rejected = {rule: entry["count"] for rule, entry in counts["rejected"].items()}
    assert rejected == {"empty": 1, "overlap": 1, "identical": 1}
    assert (tmp_path / "out" / "x.de").read_text(encoding="utf-8") == "ein Test\n"


@pytest.mark.any_backend
def test_lines_that_come_slowly_are_translated_at_once():
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as lines, open(write_end, "wb", buffering=0) as pipe:
        chunks = streaming.chunks_of_lines(lines, 3)
        pipe.write(b"a\nb\n")
        assert next(chunks) == ["a", "b"]  # though the pipe is open still
        pipe.write(b"c\nd\ne\nf")
        pipe.close()
        assert list(chunks) == [["c", "d", "e"], ["f"]]


@pytest.mark.any_backend
def test_an_output_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(RuntimeError), streaming.open_output(path) as out:
        out.write(b"new")
        raise RuntimeError
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.any_backend
@pytest.mark.skipif(os.name == "nt", reason="modes and links are POSIX's")
def test_an_output_file_keeps_its_mode_and_a_link_to_it(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("out")
    with streaming.open_output(link) as out:
        out.write(b"new")
    assert link.is_symlink() and path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.any_backend
def test_closed_streams_are_one_clear_line(kformer_main, monkeypatch, tmp_path):
    class Closed:
        def TextIOWrapper(self, stream):
            return None

        BytesIO = io.BytesIO

    monkeypatch.setitem(globals(), "io", Closed())
    line = error_of(kformer_main("translate", RUN))
    assert line == "Standard input is closed: give the text to translate by --input."
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ValueError, match="Standard output is closed: give a file by --output"):
        streaming.open_output(None).__enter__()


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux alone has this device")
def test_a_full_device_is_one_line_that_names_it(kformer_main, tmp_path):
    code, _, err = kformer_main("translate", RUN, "--output", "/dev/full", stdin=b"noon\n")
    assert code == 1
    assert err.splitlines()[-1] == (
        "error: No space left on device (free some, or write elsewhere): '/dev/full'."
    )
    (tmp_path / "text").write_text("noon\n")
    sides = f"--source {tmp_path / 'text'} --target {tmp_path / 'text'}"
    for arguments, named in (
        (f"translate {RUN} --input {tmp_path / 'text'}", "'standard output'"),
        (f"score {RUN} {sides}", "standard output"),
    ):
        command = [sys.executable, "-m", "kformer_cli", *arguments.split()]
        with open("/dev/full", "wb") as full:
            process = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
        lines = process.stderr.decode().splitlines()
        assert process.returncode == 1
        assert lines[-1].startswith("error: No space left on device") and named in lines[-1]


@pytest.mark.heavy
@pytest.mark.any_backend
def test_export_writes_the_next_version_with_its_options(kformer_main, tmp_path):
    (tmp_path / "text").write_text("下午四点半\n")
    shortlist = ("--shortlist", tmp_path / "text", "--early-stopping")
    limits = ("--length-ratio", "1.5", "--length-offset", "9")
    code, out, err = kformer_main(
        "export", RUN, "--output", tmp_path / "times", "--beam-size", "2", *shortlist, *limits
    )
    assert code == 0, err
    assert out.decode() == f"{tmp_path / 'times' / '1'}\n"
    options = read_metadata(tmp_path / "times" / "1")["search"]
    assert (options["length_ratio"], options["length_offset"]) == (1.5, 9)
    assert options["early_stopping"] is True and options["shortlist"] == list(
        kformer.Translator.load(RUN).shortlist(["下午四点半"])
    )
    code, out, err = kformer_main(
        "translate", tmp_path / "times", "--beam-size", "2", stdin=TIMES[0].encode()
    )
    assert (code, out.decode()) == (0, "下午四点半\n"), err


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("format", "options", "file"),
    [
        ("ctranslate2", ("--dtype", "int8"), "model.bin"),
        ("onnx", ("--dtype", "float16", "--beam-size", "2"), "decoder_step.onnx"),
        ("hf", ("--beam-size", "1"), "model.safetensors"),
    ],
)
def test_other_formats_and_import_of_an_export(kformer_main, tmp_path, format, options, file):
    code, out, err = kformer_main(
        "export", RUN, "--output", tmp_path / "out", "--format", format, *options
    )
    assert (code, out.decode()) == (0, f"{tmp_path / 'out'}\n"), err
    assert (tmp_path / "out" / file).stat().st_size > 10_000
    if format != "hf":
        return
    code, out, err = kformer_main("import", tmp_path / "out", "--output", tmp_path / "run")
    assert (code, out.decode()) == (0, f"{tmp_path / 'run'}\n"), err
    code, out, err = kformer_main("translate", tmp_path / "run", stdin=TIMES[0].encode())
    assert (code, out.decode()) == (0, "下午四点半\n"), err


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "command, number",
    [("train", 12), ("translate", 11), ("evaluate", 10), ("distill", 10), ("export", 10)],
)
def test_help_has_what_matters_first_and_help_all_everything(capsys, monkeypatch, command, number):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    flags = {}
    for option in ("--help", "--help-all"):
        assert main([command, option]) == 0
        text = capsys.readouterr().out
        assert not re.search(r"…|<\w+>|<int|<list", text)
        assert max(map(len, text.splitlines())) <= 80
        flags[option] = set(re.findall(r"(?<=[│ ] )--[a-z-]+(?=  )", text))
        assert f"kformer {command} --help-all" in text or option == "--help-all"
    assert len(flags["--help"]) == number + 2  # Both helps are options, too.
    assert flags["--help"] < flags["--help-all"]


@pytest.mark.any_backend
@pytest.mark.parametrize("words", [[], ["plot"], ["plot", "attention"], ["align"], ["serve"]])
def test_help_shows_no_types_of_python(capsys, words):
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--help" in text and not re.search(r"<\w+>|<int|<list|\[\[RUN", text)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "words, completed",
    [("kformer tra", {"train", "translate"}), ("kformer train --steps", {"--steps"})],
)
def test_the_tab_key_completes_commands_and_options(capfd, monkeypatch, words, completed):
    monkeypatch.setenv("_KFORMER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0 and set(capfd.readouterr().out.split()) == completed


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_who_types_sees_a_prompt_and_no_rate(monkeypatch, capfd, tmp_path):
    assert typed(TIMES[0], monkeypatch) == 0
    out, err = capfd.readouterr()
    assert out == "下午四点半\n"
    assert err == "Type a sentence and press Enter; Ctrl-D ends.\n> > \n"
    report = tmp_path / "report"
    code = typed("Call a@b.org", monkeypatch, "--coverage", str(report), "--strict")
    assert code == 1 and capfd.readouterr().err.endswith(f"(--strict): see '{report}'.\n")
    assert json.loads(report.read_text(encoding="utf-8"))["missing"][0]["text"] == "a@b.org"


def typed(text, monkeypatch, *options):
    """The exit status of `kformer translate` where somebody types a line."""
    import pty

    leader, follower = pty.openpty()
    os.write(leader, text.encode() + b"\n\x04")
    with open(follower, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        code = main(["translate", str(SAVED_MODEL), *options])
    os.close(leader)
    return code


# ---- train ----


def losses(run):
    """The loss of each step as the history has it: list of str."""
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1))
    return [row["loss"] for row in rows]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "flags, packed", [([], None), (["--packed"], True), (["--no-packed"], False)]
)
def test_packed_has_two_flags_and_a_default(
    kformer_main, monkeypatch, corpus, tmp_path, flags, packed
):
    asked = {}
    monkeypatch.setattr(
        kformer.trainer,
        "train_run",
        lambda output, **options: asked.update(options) or argparse.Namespace(path=output),
    )
    code, _, err = kformer_main(*train_arguments(corpus, tmp_path / "run"), *flags)
    assert code == 0 and asked["packed"] is packed, err


@pytest.mark.any_backend
def test_model_options_are_read_as_json_or_text(kformer_main, monkeypatch, corpus, tmp_path):
    asked = {}
    monkeypatch.setattr(
        kformer.trainer,
        "train_run",
        lambda output, **options: asked.update(options) or argparse.Namespace(path=output),
    )
    pairs = (
        "position_encoding=rope",
        "gated=true",
        "num_heads=8",
        "head_dim=null",
        "attention_scale=0.5",
    )
    code, _, err = kformer_main(
        *train_arguments(corpus, tmp_path / "run"),
        *(part for pair in pairs for part in ("--model-option", pair)),
    )
    expected = {
        "position_encoding": "rope",
        "gated": True,
        "num_heads": 8,
        "head_dim": None,
        "attention_scale": 0.5,
    }
    assert code == 0 and asked["model_options"] == expected, err
    assert (
        kformer_main(*train_arguments(corpus, tmp_path / "run"))[0] == 0
        and asked["model_options"] is None
    )


@pytest.mark.any_backend
def test_options_of_regularisation_reach_the_training(kformer_main, monkeypatch, corpus, tmp_path):
    asked = {}
    monkeypatch.setattr(
        kformer.trainer,
        "train_run",
        lambda output, **options: asked.update(options) or argparse.Namespace(path=output),
    )
    numbers = {
        "dropout": 0.2,
        "attention_dropout": 0.1,
        "activation_dropout": 0.15,
        "word_dropout": 0.05,
    }
    numbers |= {
        "label_smoothing": 0.2,
        "consistency": 4.0,
        "weight_decay": 0.01,
        "ema": 0.99,
        "cooldown": 0.4,
        "teacher_weight": 0.5,
    }
    numbers |= {"accumulate": 3, "quality_every": 50, "patience": 7, "valid_every": 2}
    words = {"select": "bleu", "precision": "mixed_bfloat16", "log_dir": "board"}
    flags = [
        part
        for name, value in (numbers | words).items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    train = train_arguments(corpus, tmp_path / "run")
    code, _, err = kformer_main(*train, *flags, "--teacher", RUN, "--teacher", RUN)
    assert code == 0 and {**asked, **numbers, **words, "teachers": [str(RUN)] * 2} == asked, err
    code, _, err = kformer_main(*train, "--subword-sampling", "0.3", "--for", "transformers")
    assert code == 0 and (asked["subword_sampling"], asked["made_for"]) == (0.3, "transformers")


@pytest.mark.heavy
@pytest.mark.any_backend
def test_an_ensemble_on_the_command_line(kformer_main, tmp_path):
    model, tokenizer, _ = load_run(RUN)
    random = np.random.default_rng(4)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.05 * random.normal(size=weight.shape))
    other = kformer.Translator(model, tokenizer).save(tmp_path / "other")
    together, pairs = (
        kformer.Translator.load([RUN, other]),
        kformer.examples.generate_pairs(20, split="test", categories="time"),
    )
    for side in ("source", "target"):
        (tmp_path / side).write_text(
            "".join(getattr(pair, side) + "\n" for pair in pairs), encoding="utf-8"
        )
    code, out, err = kformer_main(
        "translate", RUN, "--ensemble", other, "--scores", "--input", tmp_path / "source"
    )
    rows = [line.split("\t") for line in out.decode().splitlines()]
    expected = [
        translation.hypotheses[0]
        for translation in together.translate([pair.source for pair in pairs])
    ]
    assert code == 0 and [row[0] for row in rows] == [hypothesis.text for hypothesis in expected], (
        err
    )
    assert [float(row[1]) for row in rows] == pytest.approx(
        [hypothesis.score for hypothesis in expected], abs=1e-3
    )
    alone = kformer_main("translate", RUN, "--scores", "--input", tmp_path / "source")[1]
    assert alone != out
    files = (
        "--source",
        tmp_path / "source",
        "--reference",
        tmp_path / "target",
        "--tokenize",
        "zh",
        "--json",
    )
    code, out, err = kformer_main("evaluate", RUN, "--ensemble", other, *files)
    result = kformer.evaluation.evaluate(
        together, [pair.source for pair in pairs], [pair.target for pair in pairs], tokenize="zh"
    )
    assert code == 0 and json.loads(out)["bleu"] == pytest.approx(result.bleu), err


def start_training(arguments, run, ready=None):
    """Starts `kformer train` in a process of its own, and waits until it is ready: by default until
    its first checkpoint.
    """
    ready = ready or checkpoint_steps
    backend = ["--backend", keras.backend.backend()]
    command = [sys.executable, "-m", "kformer_cli", *map(str, arguments), *backend]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline and not ready(run):
        time.sleep(0.01)
    return process


def has_steps(run, least=1):
    """Whether the history has so many steps; it is written every 100 steps and after each epoch."""
    path = run / "history.csv"
    return path.exists() and path.read_bytes().count(b"\n") > least


def checkpoint_steps(run):
    names = (path.name for path in (run / "checkpoints").glob("step-*"))
    return sorted(int(name.removeprefix("step-")) for name in names)


@pytest.mark.slow
@pytest.mark.any_backend(quickest="torch")
def test_a_killed_training_resumes_with_the_same_losses(kformer_main, corpus, small_run, tmp_path):
    options = {
        "start_from": small_run,
        "batch_tokens": 256,
        "max_shapes": 2,
        "checkpoint_every": 7,
        "learning_rate": 0.01,
        "warmup_steps": 10,
    }
    code, out, err = kformer_main(*train_arguments(corpus, tmp_path / "whole", **options, epochs=2))
    assert code == 0 and out.decode() == f"{tmp_path / 'whole'}\n", err
    expected = losses(tmp_path / "whole")

    killed = tmp_path / "killed"
    arguments = train_arguments(corpus, killed, **options, epochs=9)
    process = start_training(arguments, killed)
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1].decode()
    assert process.returncode == -signal.SIGKILL, errors
    step = checkpoint_steps(killed)[-1]
    assert 0 < step < len(expected)

    assert "holds a training already: go on with it by --resume," in error_of(
        kformer_main(*arguments)
    )
    line = error_of(kformer_main("train", "--output", killed, "--resume", "--batch-tokens", "512"))
    assert "began with --batch-tokens=256 and can only go on like that, not with 512" in line
    # It goes on with the options that it began with; the length may change.
    code, _, err = kformer_main("train", "--output", killed, "--resume", "--epochs", "2")
    assert code == 0 and f"resume: at step {step} of {len(expected)}" in err
    assert losses(killed) == expected
    assert fingerprint(kformer.Translator.load(killed).model) == fingerprint(
        kformer.Translator.load(tmp_path / "whole").model
    )
    check_average(kformer_main, killed, tmp_path / "averaged")
    check_other_text(kformer_main, killed, corpus["train_source"])


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM for other processes")
def test_ctrl_c_and_sigterm_save_a_checkpoint(kformer_main, corpus, small_run, tmp_path):
    """Each process has one thread: more may add the same numbers in another order."""
    threads = ["--threads", "1"]
    options = {
        "start_from": small_run,
        "batch_tokens": 256,
        "max_shapes": 1,
        "checkpoint_every": 1000,
        "learning_rate": 0.01,
        "warmup_steps": 10,
    }
    options |= {"ema": 0.9}
    run = tmp_path / "run"
    arguments = train_arguments(corpus, run, **options, epochs=200)
    process = start_training([*arguments, *threads], run, ready=has_steps)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=120)[1].decode()
    (first,) = checkpoint_steps(run)
    resume = f"`kformer train --output {run} --resume` goes on from step {first:,}.\n"
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert errors.endswith(f"\ninterrupted; {resume}") and "SIGTERM: saving" in errors
    # Again, after the resume.
    command = ["train", "--output", run, "--resume", *threads]
    process = start_training(command, run, ready=lambda run: has_steps(run, first + 1))
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1].decode()
    second = checkpoint_steps(run)[-1]
    assert process.returncode == 130 and second > first, errors
    assert f"resume: at step {first:,} of " in errors
    assert f"goes on from step {second:,}.\n" in errors
    code, _, errors = kformer_main(*command, "--steps", second + 3)
    assert code == 0 and f"resume: at step {second:,} of {second + 3:,}" in errors
    whole = train_arguments(corpus, tmp_path / "whole", **options, steps=second + 3)
    assert kformer_main(*whole, *threads)[0] == 0
    assert losses(run) == losses(tmp_path / "whole")
    models = [load_run(folder)[0] for folder in (run, tmp_path / "whole")]
    assert fingerprint(models[0]) == fingerprint(models[1])


@pytest.mark.any_backend
def test_an_interruption_without_a_checkpoint_does_not_promise_one(
    kformer_main, monkeypatch, corpus
):
    def interrupted(output, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(kformer.trainer, "train_run", interrupted)
    line = error_of(kformer_main(*train_arguments(corpus, "nowhere")))
    assert line == "interrupted before the training began; nothing was written."
    with contextlib.ExitStack() as undo:
        run = pathlib.Path(undo.enter_context(tempfile.TemporaryDirectory()))
        (run / "config.json").write_text("{}")
        line = error_of(kformer_main(*train_arguments(corpus, run)))
        assert line == (
            f"interrupted before the first checkpoint; `kformer train --output {run} --resume` "
            "begins at step 0."
        )


def check_average(kformer_main, run, output):
    """The mean of the checkpoints that were kept is a run of its own."""
    # What a killed average leaves does not stand in the way.
    (output / ".partial-abc").mkdir(parents=True)
    aside = (run / "model.keras").rename(output.with_name("model.keras"))
    code, out, err = kformer_main("average", run, "--last", "2", "--output", output)
    assert code == 0 and out.decode() == f"{output}\n", err
    aside.rename(run / "model.keras")
    averaged, steps = average_checkpoints(run, 2)
    model, _, config = load_run(output)
    assert fingerprint(model) == fingerprint(averaged) != fingerprint(load_run(run)[0])
    assert config["averaged_steps"] == steps
    assert kformer_main("translate", output, stdin=b"noon\n")[0] == 0
    line = error_of(kformer_main("average", run, "--output", run))
    assert "whose model the average would replace" in line
    # It replaces an average, and nothing else.
    assert kformer_main("average", run, "--last", "1", "--output", output)[0] == 0
    shutil.copytree(RUN, output.with_name("imported"))
    line = error_of(kformer_main("average", run, "--output", output.with_name("imported")))
    assert "holds a run that `kformer average` did not make" in line
    line = error_of(kformer_main("average", output, run, "--output", output))
    assert "holds one of the runs, whose model the average would replace" in line


def check_other_text(kformer_main, run, source):
    """A resumed training refuses another text than it began with."""
    changed = run.with_name("changed")
    changed.write_text(source.read_text().replace("past", "after"))
    paths = without_checksum(json.loads((run / "paths.json").read_text()))
    paths["train_source"] = str(changed)
    (run / "paths.json").write_text(json.dumps(paths))
    line = error_of(kformer_main("train", "--output", run, "--resume", "--epochs", "3"))
    assert "is not the text that its training began with" in line


@pytest.mark.heavy
@pytest.mark.any_backend
def test_plots(kformer_main, tmp_path):
    run = str(RUN)
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    code, _, errors = kformer_main(
        "plot",
        "attention",
        run,
        "--source",
        "twenty past five",
        "--layer",
        "1",
        "--output",
        str(picture),
    )
    assert code == 0 and str(picture) in errors and picture.read_bytes()[:4] == b"\x89PNG"
    code, _, _ = kformer_main(
        "plot", "attention", run, "--source", "twenty past five", "--output", str(page)
    )
    assert code == 0 and "content-security-policy" in page.read_text(encoding="utf-8")
    for arguments in (["positions", run, "--count", "9"], ["positions", run, "--similarity"]):
        code, _, errors = kformer_main("plot", *arguments, "--output", str(picture))
        assert code == 0 and picture.read_bytes()[:4] == b"\x89PNG", errors
    (tmp_path / "text").write_text("\n".join(TIMES), encoding="utf-8")
    sizes = ["--length", "4", "--length", "9", "--beam-size", "1", "--json"]
    arguments = ["lengths", run, "--source", str(tmp_path / "text"), *sizes]
    code, out, errors = kformer_main("plot", *arguments, "--output", str(tmp_path / "l.svg"))
    assert code == 0 and all(float(time) > 0 for time in json.loads(out)["seconds"].values()), (
        errors
    )
    assert "<svg" in (tmp_path / "l.svg").read_text(encoding="utf-8")
    for arguments, words in (
        (["attention", run, "--source", "a", "--output", str(tmp_path / "a.txt")], "ends in .png"),
        (
            ["attention", run, "--source", "a", "--layer", "0", "--output", str(picture)],
            "--layer counts from 1, but 0",
        ),
        (["training", run, "--output", str(picture)], "history.csv does not exist"),
    ):
        code, _, errors = kformer_main("plot", *arguments)
        assert code == 1 and words in errors and errors.count("\n") == 1
