"""Rows of sentences that are done: no longer computed, and nothing else changes."""

import dataclasses
import functools

import numpy as np
import pytest
from keras import ops

from kformer.decoding import (
    Constraints,
    Searcher,
    SearchOptions,
    SearchResult,
    beam_search,
    decoder_for,
    sample,
    search,
)
from kformer.decoding.beam_huggingface import huggingface_beam_search
from kformer.utils import backend
from tests.decoding.small_models import (
    BEAM,
    LIMITS,
    PAD,
    assert_same,
    limits_of,
    search_once,
    sentences,
    transformer,
)
from tests.decoding.toys import Toy, compiled

IMPORTED = dataclasses.replace(BEAM, mode="huggingface", length_penalty=1.0)
LONG = {"max_length": 60, "length_ratio": 9.0, "length_offset": 40}
OPTIONS = {
    "greedy": SearchOptions(beam_size=1, **LIMITS),
    "beam": BEAM,
    "beam, early stop": dataclasses.replace(BEAM, n_best=2, early_stopping=True),
    "shortlist, prefix": dataclasses.replace(BEAM, shortlist=tuple(range(5, 16)), prefix_ids=(4,)),
    "huggingface": dataclasses.replace(IMPORTED, forced_end=False),
    "huggingface, at once": dataclasses.replace(IMPORTED, early_stopping=True),
    "sampling": SearchOptions(sampling=True, n_best=3, temperature=1.5, seed=3, **LIMITS),
}
shrinks = pytest.mark.skipif(
    backend.uses_static_shapes(), reason="no shape may change inside a loop"
)


@pytest.fixture(scope="module")
def model():
    return transformer()


@shrinks
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_dropping_rows_changes_nothing(model, options):
    """Sentences in a row that end at different times; ids and scores are those of a search that
    keeps them all.
    """
    results = [
        search_once(model, options, sentences(16), drop_finished=drops) for drops in (True, False)
    ]
    assert_same(*results, atol=1e-5)
    assert len(set((results[0].ids[:, 0] != PAD).sum(axis=1))) >= 4, (
        "the sentences must end at different times"
    )


@shrinks
@pytest.mark.parametrize("width", [1, 4])
def test_what_is_done_is_not_computed(width):
    """A step has the rows of the sentences that are not done, and at most a third more."""
    toy, limits = Toy(seed=12, sentences=16, end=-60.0), np.arange(16, dtype="int32") * 2
    rows = []

    def step(ids, state):
        rows.append(ids.shape[0] // width)
        return toy.step(ids, state)

    def run(**arguments):
        common = {"steps": 31, "constraints": Constraints(toy.special), **arguments}
        tensor = ops.convert_to_tensor(limits)
        if width > 1:
            return beam_search(step, toy.state(width), tensor, beam_size=width, **common)[:3]
        return sample(step, toy.state(1), tensor, **common)[:2]

    dropped = run(drop_finished=True)
    steps, rows = rows, []
    kept = run()
    for one, other in zip(dropped, kept, strict=True):
        one, other = (ops.convert_to_numpy(part) for part in (one, other))
        np.testing.assert_allclose(
            one[:, :1] if width > 1 else one, other[:, :1] if width > 1 else other, atol=1e-5
        )
    assert rows == [16] * 31
    # Sentence i ends at step 2 i.
    left = [sum(limit >= step for limit in limits) for step in range(31)]
    assert len(steps) == 31 and steps[0] == 16 and steps[-1] == 1
    assert all(count <= now <= count * 4 / 3 + 1 for now, count in zip(steps, left, strict=True))


@shrinks
def test_one_sentence_is_one_loop():
    """A batch of one is never paused, and one without sentences takes no step."""
    toy, rows = Toy(seed=3, sentences=1), []

    def step(ids, state):
        rows.append(ids.shape[0])
        return toy.step(ids, state)

    constraints, limits = Constraints(toy.special), ops.convert_to_tensor([9])
    found, score, _ = sample(step, toy.state(1), limits, constraints, steps=10, drop_finished=True)
    assert rows == [1] * len(rows) and found.shape == (1, 10) and np.isfinite(float(score[0]))
    rows.clear()
    nothing = ops.zeros((0,), dtype="int32")
    state = {"hidden": ops.zeros((0, 8))}
    sample(step, state, nothing, constraints, steps=10, drop_finished=True)
    assert rows == []


@pytest.mark.skipif(not backend.uses_static_shapes(), reason="memory grows with the hypotheses")
def test_sentences_that_need_more_steps_get_them(model):
    """The cache has the capacity that most translations need; the few that need more are searched
    again, with the same result.
    """
    options, source_ids = (
        SearchOptions(sampling=True, n_best=2, temperature=4.0, seed=1, **LONG),
        sentences(16),
    )
    calls, searcher = [], Searcher(model, options)
    run = searcher._run

    def counting(*arrays, steps):
        calls.append((len(arrays[0]), steps))
        return run(*arrays, steps=steps)

    searcher._run = counting
    found = searcher(source_ids)
    assert [steps for _, steps in calls] == [48, 64] and calls[1][0] < 16
    limits = limits_of(source_ids, options)
    at_once = functools.partial(search, decoder_for(model), options=options, steps=64)
    expected, is_done = compiled(at_once)(
        *map(ops.convert_to_tensor, (source_ids, limits, np.arange(16, dtype="int32")))
    )
    assert ops.convert_to_numpy(is_done).all()
    assert_same(found, SearchResult(*map(ops.convert_to_numpy, expected)))
    assert (found.ids[:, :, 48:] != PAD).any()


@pytest.mark.parametrize(
    ("run", "at_limit"), [(beam_search, "end"), (huggingface_beam_search, "any")]
)
def test_unfinished_sentences_are_reported(run, at_limit):
    """After too few steps `is_done` is `False` for the sentences whose results are not final."""
    toy, limits = Toy(seed=5, sentences=6, end=-60.0), np.array([2, 30, 4, 30, 30, 1], "int32")
    constraints = Constraints(toy.special, forbidden={0, 1}, at_limit=at_limit)

    def cut_off(state, limits):
        return run(toy.step, state, limits, constraints, beam_size=2, steps=8)

    found = compiled(cut_off)(toy.state(2), ops.convert_to_tensor(limits))
    assert ops.convert_to_numpy(found.is_done).tolist() == [True, False, True, False, False, True]
