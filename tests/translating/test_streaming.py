"""Lines of a file or pipe through a translator."""

import os
import pathlib
import time

import pytest

import kformer
from kformer.translating import streaming
from kformer.translating.translation import Hypothesis, Translation
from kformer_cli.main import main

FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


@pytest.fixture
def environment():
    """The command line sets environment variables; they are restored."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_samples_depend_on_the_line_number_alone(environment, tmp_path):
    """Batch size and chunks change no sample, and no two lines share random numbers."""
    text = "ten minutes to nine in the evening"
    (tmp_path / "in").write_text(f"{text}\n" * 40, encoding="utf-8")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    sampled = []
    for batch_size in (64, 1, 3):
        options = ["--sample", "--temperature", "9", "--seed", "4", "--batch-size", batch_size]
        assert main([*map(str, ("translate", FROZEN, *files, *options))]) == 0
        sampled.append((tmp_path / "out").read_text(encoding="utf-8").split("\n"))
    assert sampled[0] == sampled[1] == sampled[2]
    assert len(set(sampled[0][:40])) == 40, "at this temperature no two samples are equal"
    translator = kformer.Translator.load(FROZEN)
    options = {"sampling": True, "temperature": 9.0, "seed": 4}
    parts = [translator([text] * 20, first_index=start, **options) for start in (0, 20)]
    assert [streaming.one_line(line) for line in sum(parts, [])] == sampled[0][:40]


@pytest.mark.any_backend(quickest="torch")
def test_the_bound_of_a_text_is_an_option(environment, tmp_path, capfd):
    (tmp_path / "in").write_text("half past four\nseven\n", encoding="utf-8")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    assert main([*map(str, ("translate", FROZEN, *files, "--max-text-bytes", 9))]) == 0
    assert "1 source line was longer" in capfd.readouterr().err
    expected = kformer.Translator.load(FROZEN)(["half past", "seven"])
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == expected
    export = ["export", FROZEN, "--output", tmp_path / "x", "--format", "hf"]
    assert main([*map(str, (*export, "--max-text-bytes", 9))]) == 2
    words = " ".join(capfd.readouterr().err.split())
    assert "--max-text-bytes is for the format saved_model" in words


class Cutter:
    """Marks every line as truncated."""

    def __init__(self):
        self.indices = []

    def translate(self, texts, first_index):
        self.indices.append(first_index)
        return [Translation([Hypothesis(text, 0.0, 0.0, [])], True) for text in texts]


@pytest.mark.any_backend
def test_the_report_of_truncated_lines_does_not_grow(capsys):
    """The number of lines that were cut and the first ten are kept, not all of them."""
    cutter, written = Cutter(), []
    lines = (b"a\n" for _ in range(5000))
    found = streaming.translate_lines(lines, cutter.translate, written.extend, chunk_lines=100)
    assert len(written) == found.count == 5000 and found.first == [*range(1, 11)]
    assert cutter.indices == sorted(set(cutter.indices))
    streaming.warn_truncated(found)
    streaming.warn_truncated([7])
    streaming.warn_truncated([])
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("warning: 5000 source lines were longer than the model's limit")
    assert printed[0].endswith("(lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...).")
    assert printed[1].endswith("was longer than the model's limit and cut (line 7).")
    assert len(printed) == 2


@pytest.mark.any_backend
def test_long_lines_do_not_fill_the_memory():
    """Lines are read ahead up to a number of bytes, and a chunk ends there, too."""
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield b"a" * 4_000_000 + b"\n"

    counts, ahead = [], []
    for chunk in streaming.chunks_of_lines(lines(), 64):
        time.sleep(0.05)
        counts.append(len(chunk))
        ahead.append(len(read) - sum(counts))
        assert all(len(line) == 4_000_000 for line in chunk)
    assert sum(counts) == 100 and max(counts) <= 16 and max(ahead) <= 18
