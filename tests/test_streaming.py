"""Lines of a file or pipe through a translator."""

import os
import pathlib

import pytest

import kformer
from kformer import streaming
from kformer_cli.main import main

FROZEN = pathlib.Path(__file__).parent / "frozen_run"


@pytest.fixture
def environment():
    """The command line sets environment variables; they are restored."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


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
