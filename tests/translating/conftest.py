"""What the tests of pairs share: the frozen run and texts that it translates."""

import pathlib

import pytest

import kformer

FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


@pytest.fixture
def translator():
    return kformer.Translator.load(FROZEN)


@pytest.fixture(scope="module")
def texts():
    pairs = kformer.examples.generate_pairs(40, seed=5, split="test", categories=("time",))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]
