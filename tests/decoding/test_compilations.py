"""A search is compiled a few times only, for any sequence of batches."""

import dataclasses
import importlib
import pathlib

import keras
import numpy as np
import pytest

import kformer
from kformer.decoding import Searcher, SearchOptions
from tests.decoding.small_models import sentences, transformer

SEARCH_MODULE = importlib.import_module("kformer.decoding.searcher")
FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"
# As an imported model's: no limit that depends on the source.
IMPORTED = SearchOptions(beam_size=1, max_length=70, length_ratio=1e9, mode="huggingface")


@pytest.fixture
def compilations(monkeypatch):
    """The shapes of the sources for which a search was traced (and compiled, on JAX).

    PyTorch, which compiles nothing, adds one at each call.
    """
    shapes = []
    search = SEARCH_MODULE.search

    def counting(model, source_ids, *args, **kwargs):
        shapes.append(
            (*source_ids.shape, kwargs["steps"])
            if keras.backend.backend() == "jax"
            else tuple(source_ids.shape)
        )
        return search(model, source_ids, *args, **kwargs)

    monkeypatch.setattr(SEARCH_MODULE, "search", counting)
    return shapes


def test_two_hundred_batches_of_mixed_size(compilations, backend):
    searcher = Searcher(transformer(num_decoder_layers=1), IMPORTED)
    rng, counts = np.random.default_rng(0), []
    for batch in range(200 if backend != "torch" else 20):
        rows, length = rng.integers(1, 5), rng.integers(1, 33)
        found = searcher(sentences(rows, length, seed=batch))
        assert len(found.ids) == rows
        counts.append(len(compilations))
    if backend == "torch":
        assert len(compilations) == len(counts)  # Nothing is compiled.
    elif backend == "tensorflow":
        assert compilations == [(None, None)]
    else:
        # Rows are padded to 1, 2 or 4, lengths to 16 or 32; where hypotheses are long, the search
        # is compiled once more, with a capacity for all steps.
        assert len(compilations) == len(set(compilations)) <= 3 * 2 * 2
        assert {shape[:2] for shape in compilations} == {
            (rows, length) for rows in (1, 2, 4) for length in (16, 32)
        }
        assert counts[99] == counts[-1], "nothing new after a while"


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX alone compiles each shape")
def test_nothing_is_compiled_beside_the_search():
    """What surrounds a search runs in NumPy: JAX would compile it operation by operation."""
    import jax

    events = []

    def listen(event, *args, **kwargs):
        if event.endswith("backend_compile_duration"):
            events.append(event)

    searcher = Searcher(
        transformer(num_decoder_layers=1), SearchOptions(beam_size=1, max_length=20)
    )
    searcher(sentences(4, 8))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for rows, length in ((4, 8), (3, 5), (4, 16), (3, 1)):
            searcher(sentences(rows, length))
        assert events == []
        searcher(sentences(2, 8))
        assert len(events) == 1
    finally:
        jax.monitoring.clear_event_listeners()


def test_seeds_and_limits_compile_nothing(compilations, backend):
    """Callers change the seed of samples and the greatest length from call to call."""
    translator = kformer.Translator.load(FROZEN)
    texts = ["half past four", "ten to six"]
    options = [
        {"seed": seed, "max_length": 25 + seed, "length_offset": 3 * seed} for seed in range(6)
    ]
    sampled = {
        tuple(translator(texts, sampling=True, temperature=2.0, **changed)) for changed in options
    }
    assert len(sampled) >= 3
    if backend != "torch":
        assert len(compilations) == 1
    short = translator.translate(texts, sampling=True, temperature=2.0, seed=5, max_length=2)
    assert all(len(result.hypotheses[0].ids) <= 3 for result in short)


@pytest.mark.any_backend
def test_what_a_compiled_search_depends_on():
    options = SearchOptions(beam_size=2, seed=3, max_length=9)
    assert (
        options.compiled_part
        == dataclasses.replace(
            options, seed=7, max_length=99, length_ratio=1.0, length_offset=5
        ).compiled_part
    )
    for change in (
        {"beam_size": 3},
        {"min_length": 2},
        {"length_penalty": 1.0},
        {"shortlist": (5,)},
    ):
        assert options.compiled_part != dataclasses.replace(options, **change).compiled_part
