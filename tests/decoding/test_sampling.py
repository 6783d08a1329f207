"""Greedy search and sampling against NumPy."""

import importlib

import numpy as np
import pytest
from keras import ops

from kformer.decoding import Sampling, sample
from tests.decoding.toys import Special, Toy, compiled, constraints_of, cut, oracle_greedy

SAMPLING_MODULE = importlib.import_module("kformer.decoding.sampling")
SPECIAL = Special()


def run(toy, limits, row_numbers=None, greedy=True, **arguments):
    """`sample` over a toy: ids and scores as NumPy arrays."""
    steps = int(max(limits, default=0)) + 1
    constraints, options = constraints_of(toy.special, arguments)
    sampling = None if greedy else Sampling(**options)

    def search(state, limits, row_numbers):
        return sample(
            toy.step,
            state,
            limits,
            constraints,
            sampling=sampling,
            row_numbers=row_numbers,
            steps=steps,
        )

    numbers = np.arange(len(limits)) if row_numbers is None else row_numbers
    limits, numbers = (
        ops.convert_to_tensor(np.asarray(values, dtype="int32")) for values in (limits, numbers)
    )
    found = compiled(search)(toy.state(1), limits, numbers)
    assert ops.convert_to_numpy(found.is_done).all()
    return [ops.convert_to_numpy(result) for result in found[:2]]


class Table:
    """A decoder without memory: the same logits at each step, in all rows or one row of a table for
    each.
    """

    special = SPECIAL

    def __init__(self, logits, rows=None):
        logits = np.asarray(logits, dtype="float32")
        self.logits = logits if rows is None else np.tile(logits, (rows, 1))

    def state(self, width):
        return (ops.convert_to_tensor(self.logits),)

    def step(self, ids, state):
        return state[0], state


def log_softmax(logits):
    logits = np.asarray(logits, dtype="float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# Greedy search.


@pytest.mark.parametrize(
    ("min_length", "special"),
    [(0, Special()), (3, Special()), (0, Special(0, 0, 1)), (1, Special(7, 11, 7))],
)
def test_greedy_takes_the_most_probable_token(min_length, special):
    toy, rows = Toy(seed=22, sentences=40, special=special, end=2.5), 40
    limits = np.random.default_rng(0).integers(0, 13, rows).clip(min_length)
    ids, scores = run(toy, limits, min_length=min_length)
    assert ids.dtype == "int32" and scores.dtype == "float32"
    early = 0
    for row in range(rows):
        expected, score = oracle_greedy(toy, row, int(limits[row]), min_length)
        assert cut(ids[row], special) == expected
        np.testing.assert_allclose(scores[row], score, atol=1e-4)
        np.testing.assert_allclose(scores[row], toy.score(row, expected), atol=1e-4)
        early += len(expected) <= limits[row]
    assert early >= rows / 2 and len({len(cut(row, special)) for row in ids}) >= 4


def test_greedy_takes_the_first_of_equals():
    ids, _ = run(Table(np.zeros((2, 9))), [2, 2], min_length=2)
    np.testing.assert_array_equal(ids, [[3, 3, 2]] * 2)


def test_empty_batch():
    for greedy in (True, False):
        ids, scores = run(Toy(seed=0, sentences=0), [], greedy=greedy)
        assert ids.shape == (0, 1) and scores.shape == (0,)


# A second implementation of the random numbers, which are the same on every backend and in every
# version.


def numpy_uniform(columns, seed, rows, step):
    """Uniform numbers `[R, columns]` of rows with the given numbers at a step."""

    def shift(x, bits):
        return x ^ (x >> np.uint32(bits))

    def mix(x):
        return shift(shift(shift(x, 16) * np.uint32(0x85EBCA6B), 13) * np.uint32(0xC2B2AE35), 16)

    golden = np.uint32(0x9E3779B9)
    key = np.array([1], dtype="uint32")
    for counter in (seed, rows, step):
        key = mix(key ^ mix(np.atleast_1d(counter).astype("uint32") + golden))
    bits = mix(key)[:, None] + mix(np.arange(columns, dtype="uint32") + golden)
    bits = mix(shift(bits * np.uint32(0x85EBCA6B), 15) * np.uint32(0xC2B2AE35))
    return (bits >> np.uint32(8)).astype("float64") * 2.0**-24 + 2.0**-25


def numpy_sample(toy, limit, rows, *, seed, temperature=1.0, top_k=0, top_p=1.0):
    """One row sampled by Gumbel's trick, token by token."""
    special, hidden, ids = toy.special, toy.start[rows], []
    while not ids or ids[-1] != special.end_id:
        log_p, hidden = toy.log_probabilities(ids[-1] if ids else special.start_id, hidden)
        logits = log_p / temperature
        logits[list(special.forbidden)] = -np.inf
        order = np.arange(len(logits))
        if top_k or top_p < 1:
            order = np.argsort(-logits, kind="stable")[: top_k or None]
            probabilities = np.exp(logits[order] - logits[order].max())
            probabilities /= probabilities.sum()
            kept = (
                np.searchsorted(np.cumsum(probabilities), top_p) + 1
            )  # the fewest whose sum reaches p
            order = order[:kept]
        noise = -np.log(-np.log1p(-numpy_uniform(len(logits), seed, rows, len(ids))[0]))
        token = int(order[np.argmax(logits[order] + noise[: len(order)])])
        ids.append(special.end_id if len(ids) >= limit else token)
    return tuple(ids)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": 0},
        {"seed": 2**31 - 1, "temperature": 0.7, "top_k": 4},
        {"seed": 7, "temperature": 1.5, "top_p": 0.8},
        {"seed": 8, "top_k": 6, "top_p": 0.7},
    ],
)
def test_samples_are_the_same_on_every_backend(arguments):
    """Ids as NumPy samples them, on each backend. Scores are those of the unfiltered model."""
    toy = Toy(seed=21, sentences=40)
    ids, scores = run(toy, [12] * 40, greedy=False, **arguments)
    for row in range(40):
        sampled = cut(ids[row], SPECIAL)
        assert sampled == numpy_sample(toy, 12, row, **arguments)
        np.testing.assert_allclose(scores[row], toy.score(row, sampled), atol=1e-4)
    greedy = [oracle_greedy(toy, row, 12)[0] for row in range(40)]
    assert (
        sum(cut(row, SPECIAL) != expected for row, expected in zip(ids, greedy, strict=True)) > 20
    )


def test_a_row_depends_on_its_number_alone():
    toy = Toy(seed=22, sentences=8)
    ids, scores = run(toy, [9] * 8, greedy=False, seed=3)
    again, _ = run(toy, [9] * 8, greedy=False, seed=3)
    np.testing.assert_array_equal(ids, again)
    assert (run(toy, [9] * 8, greedy=False, seed=4)[0] != ids).any(axis=1).sum() >= 4

    chosen = [6, 1, 4]
    toy.start = toy.start[chosen]
    some, some_scores = run(toy, [9, 9, 9], row_numbers=chosen, greedy=False, seed=3)
    np.testing.assert_array_equal(some, ids[chosen])
    np.testing.assert_allclose(some_scores, scores[chosen], atol=1e-5)
    # The same sentence with other numbers has other samples.
    toy.start = np.repeat(toy.start[:1], 8, axis=0)
    many, _ = run(toy, [9] * 8, greedy=False, seed=3)
    assert len({cut(row, SPECIAL) for row in many}) >= 5


# The distribution. Seeds are fixed, so these tests have the same result every time.

LOGITS = np.array(
    [3.0, 2.0, 0.3, 1.0, -1.0, 0.2, 0.9, -0.4]
)  # padding and start are likely, but never sampled
WORDS = [2, 3, 4, 5, 6, 7]
ROWS = 6000


def assert_frequencies(tokens, logits):
    """Chi-square: the counts of the tokens fit the softmax of `logits` (minus infinity for tokens
    that may not occur).
    """
    logits = np.asarray(logits, dtype="float64")
    probabilities = np.exp(logits) / np.exp(logits).sum()
    counts = np.bincount(tokens, minlength=len(logits))
    possible = probabilities > 0
    expected = probabilities[possible] * counts.sum()
    assert (counts[~possible] == 0).all() and (counts[possible] > 0)[expected > 12].all()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = possible.sum() - 1
    assert statistic <= freedom + 4 * (2 * freedom) ** 0.5


def only(tokens, logits=LOGITS):
    """The logits of some tokens; the others' are minus infinity."""
    return np.where(np.isin(np.arange(len(logits)), tokens), logits, -np.inf)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ({}, WORDS),
        ({"temperature": 0.5}, WORDS),
        ({"temperature": 2.0, "top_k": 3}, [2, 3, 6]),
        ({"top_p": 0.6}, [3, 6, 2]),  # 0.31 + 0.28 is below 0.6
        ({"top_k": 4, "top_p": 0.5}, [3, 6]),
        ({"top_p": 1e-6}, [3]),
        ({"min_length": 1, "top_k": 100}, WORDS[1:]),
    ],
)
def test_samples_follow_the_filtered_softmax(arguments, tokens):
    ids, scores = run(Table(LOGITS, ROWS), [2] * ROWS, greedy=False, seed=5, **arguments)
    logits = only(tokens) / arguments.get("temperature", 1.0)
    assert_frequencies(ids[:, 0], logits)
    # The second token does not depend on the first, nor on the row before.
    goes_on = ids[:, 0] != SPECIAL.end_id
    second = only(tokens if "min_length" not in arguments else WORDS) / arguments.get(
        "temperature", 1.0
    )
    for first in set(tokens) - {SPECIAL.end_id}:
        assert_frequencies(ids[goes_on & (ids[:, 0] == first), 1], second)
        assert_frequencies(ids[1:, 0][ids[:-1, 0] == first], logits)
    # A score is the probability under the model itself, with any filter.
    log_p = log_softmax(LOGITS)
    expected = [sum(log_p[token] for token in cut(row, SPECIAL)) for row in ids[:50]]
    np.testing.assert_allclose(scores[:50], expected, atol=1e-4)


def test_extreme_uniform_numbers_never_sample_a_forbidden_token(monkeypatch):
    """A uniform number that rounds to 1 must not turn into infinite noise: minus infinity plus
    infinity is NaN.
    """
    largest = np.float32(1 - 2.0**-25)
    assert largest == 1

    def uniform(rows, columns, key):
        return ops.where(
            ops.arange(columns) < 3, largest, ops.full((rows, columns), 0.5, dtype="float32")
        )

    monkeypatch.setattr(SAMPLING_MODULE, "uniform", uniform)
    for filters in ({}, {"top_k": 7}):
        ids, _ = run(Table(LOGITS, 4), [1] * 4, greedy=False, min_length=1, **filters)
        assert set(ids[:, 0].tolist()) <= set(WORDS[1:])


def test_equal_logits_are_filtered_alike_on_every_backend():
    """Of equally likely tokens, those that stand first are kept."""
    ids, _ = run(Table(np.zeros(9), 200), [1] * 200, greedy=False, top_k=3, min_length=1)
    assert set(ids[:, 0].tolist()) == {3, 4, 5}
