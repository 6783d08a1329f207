"""Searches with a real Transformer: cache, compiled searchers, scores."""

import dataclasses
import importlib
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import (
    Constraints,
    LayerDecoder,
    Scorer,
    Searcher,
    SearchOptions,
    SearchResult,
    SpecialTokens,
    beam_search,
)
from kformer.decoding.constraints import best_tokens
from kformer.decoding.decoders import reorder
from kformer.utils import backend
from tests.decoding.small_models import (
    BEAM,
    END,
    LIMITS,
    PAD,
    SPECIAL,
    START,
    assert_same,
    limits_of,
    rows_of,
    sentences,
    transformer,
)
from tests.decoding.toys import LOOP_MODULE, compiled, cut, oracle_penalty

SEARCH_MODULE = importlib.import_module("kformer.decoding.searcher")


@pytest.fixture(scope="module")
def model():
    return transformer()


@pytest.fixture(scope="module")
def source_ids():
    return sentences(16)


@pytest.fixture(scope="module")
def searcher(model):
    return Searcher(model, BEAM)


@pytest.fixture(scope="module")
def result(searcher, source_ids):
    """What the beam finds for the sentences."""
    return searcher(source_ids)


@pytest.fixture(scope="module")
def greedy(model, source_ids):
    return Searcher(model, SearchOptions(beam_size=1, **LIMITS))(source_ids)


@pytest.fixture(scope="module")
def scorer(model):
    return Scorer(model)


@pytest.fixture(scope="module")
def log_probabilities(model):
    """A function of source ids and ids `[B, L]` to log-probabilities `[B, L, V]` at each id, in one
    pass without cache.
    """

    @compiled
    def forward(source_ids, target_ids):
        return model({"source_ids": source_ids, "target_ids": target_ids}, training=False)

    def at(source_ids, ids):
        target_ids = np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        logits = forward(ops.convert_to_tensor(source_ids), ops.convert_to_tensor(target_ids))
        logits = ops.convert_to_numpy(logits).astype("float64")
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    return at


def scores_of(scorer, source_ids, result):
    """The scores of all hypotheses of a result by the scorer, `[B, N]`."""
    rows, width, length = result.ids.shape
    labels = result.ids.reshape(-1, length)
    lengths = [len(cut(row, SPECIAL)) for row in labels]
    return scorer(np.repeat(source_ids, width, axis=0), labels, lengths).reshape(rows, width)


def test_outputs_are_worth_comparing(result, greedy, source_ids):
    """Lengths vary, most outputs end before their limit, and beam search finds what greedy search
    does not.
    """
    best = [cut(row, SPECIAL) for row in result.ids[:, 0]]
    limits = limits_of(source_ids)
    assert sum(len(ids) <= limit for ids, limit in zip(best, limits, strict=True)) >= len(best) / 2
    greedy_best = [cut(row, SPECIAL) for row in greedy.ids[:, 0]]
    assert (
        sum(len(ids) <= limit for ids, limit in zip(greedy_best, limits, strict=True))
        >= len(best) / 2
    )
    assert len({len(ids) for ids in best}) >= 5 and len(set(best)) >= 10
    assert sum(one != other for one, other in zip(best, greedy_best, strict=True)) >= 5


def test_result_has_the_promised_form(result, source_ids):
    assert result.ids.shape[:2] == (16, 4) and result.scores.shape == result.ranks.shape == (16, 4)
    assert result.ids.dtype == "int32" and result.scores.dtype == result.ranks.dtype == "float32"
    assert (np.diff(result.ranks, axis=1) <= 0).all()
    for ids, scores, ranks, limit in zip(*result, limits_of(source_ids), strict=True):
        hypotheses = [cut(row, SPECIAL) for row in ids]
        assert len(set(hypotheses)) == 4
        assert all(len(row) <= limit + 1 and not {PAD, START} & set(row) for row in hypotheses)
        expected = [
            score / oracle_penalty(len(row), 0.6)
            for row, score in zip(hypotheses, scores, strict=True)
        ]
        np.testing.assert_allclose(ranks, expected, rtol=1e-5)


class PrefixState(NamedTuple):
    """The state of a decoder without cache: all ids so far."""

    ids: Any  # int32 [R, L]
    length: Any  # int32 scalar

    def reorder(self, rows):
        return PrefixState(ops.take(self.ids, rows, axis=0), self.length)


def test_cached_search_equals_uncached_search(model, result, source_ids):
    """The step function computes everything again at each step; the search finds the same ids with
    the same scores.
    """
    limits = limits_of(source_ids)
    steps = int(limits.max()) + 1
    repeated = np.repeat(source_ids, 4, axis=0)

    def step(ids, state):
        is_here = ops.arange(steps, dtype="int32") == state.length
        prefix = ops.where(is_here, ops.expand_dims(ids, 1), state.ids)
        logits = model(
            {"source_ids": ops.convert_to_tensor(repeated), "target_ids": prefix}, training=False
        )
        return ops.take(logits, state.length, axis=1), PrefixState(prefix, state.length + 1)

    def search(limits):
        state = PrefixState(
            ops.zeros((len(repeated), steps), dtype="int32"), ops.zeros((), dtype="int32")
        )
        constraints = Constraints(SpecialTokens(PAD, START, END))
        found = beam_search(step, state, limits, constraints, beam_size=4, steps=steps, n_best=4)
        return found[:3]

    uncached = SearchResult(
        *map(ops.convert_to_numpy, compiled(search)(ops.convert_to_tensor(limits)))
    )
    assert_same(result, uncached)


def test_greedy_takes_the_most_probable_token(log_probabilities, greedy, source_ids):
    predictions = log_probabilities(source_ids, greedy.ids[:, 0])
    for row, limit in enumerate(limits_of(source_ids)):
        ids = cut(greedy.ids[row, 0], SPECIAL)
        log_p = predictions[row, : len(ids)]
        np.testing.assert_allclose(
            greedy.scores[row, 0], log_p[np.arange(len(ids)), ids].sum(), atol=1e-4
        )
        np.testing.assert_allclose(
            greedy.ranks[row, 0], greedy.scores[row, 0] / oracle_penalty(len(ids), 0.6), rtol=1e-5
        )
        log_p[:, [PAD, START]] = -np.inf
        assert tuple(log_p[:limit].argmax(axis=1)) == ids[:limit]
        assert len(ids) <= limit + 1


def test_scores_are_the_models_log_probabilities(log_probabilities, scorer, result, source_ids):
    """The scores of a search, of the scorer and of a pass without cache are equal."""
    np.testing.assert_allclose(scores_of(scorer, source_ids, result), result.scores, atol=1e-4)
    worst = result.ids[:, 3]
    by_hand = np.take_along_axis(log_probabilities(source_ids, worst), worst[:, :, None], axis=2)[
        :, :, 0
    ]
    expected = [
        row[: len(cut(ids, SPECIAL))].sum() for row, ids in zip(by_hand, worst, strict=True)
    ]
    np.testing.assert_allclose(result.scores[:, 3], expected, atol=1e-4)


def test_scorer_takes_any_batch(scorer, result, source_ids):
    """Other rows and more columns; tokens beyond the lengths do not count."""
    labels = np.pad(result.ids[3:, 0, :13], ((0, 0), (0, 3)), constant_values=5)
    lengths = [len(cut(row, SPECIAL)) for row in result.ids[3:, 0]]
    np.testing.assert_allclose(
        scorer(source_ids[3:], labels, lengths), result.scores[3:, 0], atol=1e-4
    )
    empty = scorer(source_ids[:0], labels[:0], [])
    assert empty.shape == (0,) and empty.dtype == "float32"


def test_rows_do_not_influence_each_other(searcher, result, source_ids):
    """One by one without padding, in other company with more padding, and beside a row of padding
    alone.
    """
    for row in (1, 5, 9):
        alone = source_ids[row][source_ids[row] != PAD][None]
        assert_same(searcher(alone), rows_of(result, [row]))
    chosen = [12, 0, 7, 3, 12, 15, 1, 1, 9]
    padded = np.pad(source_ids[chosen], ((0, 0), (0, 7)))
    assert_same(searcher(padded), rows_of(result, chosen))
    other = source_ids.copy()
    other[4] = PAD
    with_nothing = searcher(other)
    rest = [row for row in range(16) if row != 4]
    assert_same(rows_of(with_nothing, rest), rows_of(result, rest))
    assert np.isfinite(with_nothing.scores[4]).all()


@pytest.mark.parametrize(
    "options", [BEAM, SearchOptions(beam_size=1), SearchOptions(sampling=True, n_best=3)]
)
def test_empty_batch(model, options):
    result = Searcher(model, options)(np.zeros((0, 5), dtype="int32"))
    assert result.ids.shape[:2] == result.scores.shape == result.ranks.shape == (0, options.n_best)


def test_both_cache_layouts_find_the_same(model, monkeypatch):
    """The layout that the backend does not use finds what its own finds."""
    source = sentences(2, length=3)
    options = SearchOptions(beam_size=2, n_best=2, max_length=3)
    lengths, init_cache = [], model.init_cache
    # The fast decoder has caches of its own.
    monkeypatch.setattr(Searcher, "decoder", property(lambda self: LayerDecoder(self.model)))
    monkeypatch.setattr(
        model,
        "init_cache",
        lambda *args, max_length=None, **options: (
            lengths.append(max_length) or init_cache(*args, max_length=max_length, **options)
        ),
    )
    expected = Searcher(model, options)(source)
    static = backend.uses_static_shapes()
    monkeypatch.setattr(backend, "uses_static_shapes", lambda: not static)
    if keras.backend.backend() == "jax":
        limits, steps = limits_of(source, options), 4

        # No shape may change inside JAX's own loop, but it may from one step to the next of an
        # unrolled one.
        def unrolled_loop(condition, body, state):
            for _ in range(steps):
                state = body(state)
            return state

        def search(*arguments):
            decoder = LayerDecoder(model)
            return SEARCH_MODULE.search(
                decoder, *arguments, options=options, steps=steps, drop_finished=False
            )[0]

        monkeypatch.setattr(LOOP_MODULE, "while_loop", unrolled_loop)
        arguments = (
            ops.convert_to_tensor(values)
            for values in (source, limits, np.arange(2, dtype="int32"))
        )
        found = SearchResult(*map(ops.convert_to_numpy, compiled(search)(*arguments)))
    else:
        found = Searcher(model, options)(source)
    assert_same(found, expected)
    assert sorted({length is None for length in lengths}) == [False, True]


def test_samples_depend_on_seed_and_row_number(model, scorer, source_ids):
    options = SearchOptions(sampling=True, n_best=3, temperature=1.2, top_k=8, seed=5, **LIMITS)
    searcher = Searcher(model, options)
    samples = searcher(source_ids)
    assert_same(searcher(source_ids), samples, atol=0)
    assert samples.ids.shape[:2] == (16, 3)
    assert (np.diff(samples.ranks, axis=1) <= 0).all()
    np.testing.assert_allclose(scores_of(scorer, source_ids, samples), samples.scores, atol=1e-4)
    distinct = [len({cut(ids, SPECIAL) for ids in sentence}) for sentence in samples.ids]
    assert np.mean(distinct) > 2
    # Neither do the same sentences in different rows give the same samples.
    alike = searcher(source_ids[[0] * 16])
    assert len({cut(ids, SPECIAL) for ids in alike.ids.reshape(48, -1)}) > 36
    # The numbers travel with the sentences, and nothing else matters.
    order = np.random.default_rng(0).permutation(16)
    assert_same(searcher(source_ids[order], row_numbers=order), rows_of(samples, order))
    others = searcher(source_ids, row_numbers=np.arange(16) + 100)
    assert (
        others.ids[:, :, : samples.ids.shape[2]] != samples.ids[:, :, : others.ids.shape[2]]
    ).any(axis=(1, 2)).sum() >= 12


@pytest.mark.parametrize(
    "options",
    [
        BEAM,
        SearchOptions(beam_size=1),
        dataclasses.replace(BEAM, mode="huggingface", forced_end=False),
        SearchOptions(sampling=True, n_best=3),
    ],
    ids=["beam", "greedy", "huggingface", "sampling"],
)
def test_prefix_and_forbidden_tokens(model, scorer, options, source_ids):
    """Forced tokens stand first and cost nothing, also where they are forbidden elsewhere;
    forbidden ones stand nowhere else.
    """
    options = dataclasses.replace(options, prefix_ids=(7, 9), forbidden_ids=(5, 6, 7))
    found = Searcher(model, options)(source_ids)
    plain = Searcher(model, dataclasses.replace(options, prefix_ids=(), forbidden_ids=()))(
        source_ids
    )
    assert np.isin(plain.ids, (5, 6, 7)).any(), "else nothing is shown"
    filled = np.isfinite(found.scores)
    assert filled[:, 0].all()
    ids = found.ids[filled]
    assert (ids[:, :2] == (7, 9)).all() and not np.isin(ids[:, 2:], (5, 6, 7)).any()
    ends = (ids == model.end_id).any(axis=1)
    assert ends.mean() > 0.3
    sources = np.repeat(source_ids, filled.sum(axis=1), axis=0)
    scores = scorer(sources, ids, (ids == model.end_id).argmax(axis=1) + 1, 2)
    np.testing.assert_allclose(found.scores[filled][ends], scores[ends], atol=1e-4)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        BEAM,
        dataclasses.replace(BEAM, early_stopping=True),
        dataclasses.replace(BEAM, shortlist=tuple(range(4, 12)), prefix_ids=(5,)),
        SearchOptions(beam_size=1, **LIMITS),
        dataclasses.replace(BEAM, mode="huggingface"),
        dataclasses.replace(BEAM, mode="huggingface", forced_end=False),
        SearchOptions(sampling=True, n_best=3, **LIMITS),
    ],
    ids=["beam", "early", "shortlist", "greedy", "huggingface", "no end", "sampling"],
)
def test_a_forbidden_end_token_is_at_the_limit_alone(
    model, scorer, options, source_ids, renormalize
):
    """A hypothesis with a forbidden end token has as many tokens as its limit allows."""
    options = dataclasses.replace(options, forbidden_ids=(END, START, PAD), renormalize=renormalize)
    found = Searcher(model, options)(source_ids)
    assert np.isfinite(found.scores).all()
    for hypotheses, limit in zip(found.ids, limits_of(source_ids, options), strict=True):
        has_end = options.mode == "kformer" or options.forced_end
        assert (hypotheses[:, : limit + (not has_end)] != END).all()
        assert (hypotheses[:, : limit + 1] != PAD).all() and (
            hypotheses[:, limit + 1 :] == PAD
        ).all()
        assert (hypotheses[:, limit] == END).all() == has_end
    if options.mode == "kformer" and not (renormalize or options.shortlist):
        np.testing.assert_allclose(
            scores_of(scorer, source_ids, found), found.scores, atol=1e-4, rtol=1e-5
        )


@pytest.mark.parametrize(
    "options",
    [
        BEAM,
        SearchOptions(beam_size=1),
        dataclasses.replace(BEAM, mode="huggingface"),
        SearchOptions(sampling=True, n_best=3),
    ],
    ids=["beam", "greedy", "huggingface", "sampling"],
)
def test_a_prefix_beyond_the_limit_of_a_row_raises_that_limit(model, options, source_ids):
    """A row whose limit is below the length of the prefix has the whole prefix."""
    prefix = (7, 9, 5, 8)
    limits = {"max_length": 12, "length_ratio": 1.0, "length_offset": 0}
    found = Searcher(model, dataclasses.replace(options, prefix_ids=prefix, **limits))(source_ids)
    assert ((source_ids != PAD).sum(axis=1) < 4).any(), "some limit must be below the prefix"
    filled = np.isfinite(found.scores)
    assert filled[:, 0].all() and (found.ids[filled][:, :4] == prefix).all()
    assert (found.ids[filled] == END).any(axis=1).all()


def test_later_training_counts(model, searcher, scorer, result, source_ids):
    """A searcher reads the weights at each call: nothing is compiled in."""
    before = [ops.convert_to_numpy(weight.value) for weight in model.trainable_weights]
    try:
        for weight, other in zip(
            model.trainable_weights, transformer(seed=3).trainable_weights, strict=True
        ):
            weight.assign(0.5 * (weight.value + other.value))
        after = searcher(source_ids)
        assert (after.ids[:, 0, :3] != result.ids[:, 0, :3]).any(axis=1).sum() >= 8
        np.testing.assert_allclose(scores_of(scorer, source_ids, after), after.scores, atol=1e-4)
    finally:
        for weight, values in zip(model.trainable_weights, before, strict=True):
            weight.assign(values)
    assert_same(searcher(source_ids), result, atol=0)


def test_adapters_count_after_a_first_search(source_ids):
    """What is compiled is compiled again with the variables that were not there."""
    tuned = transformer()
    searcher, scorer = Searcher(tuned, BEAM), Scorer(tuned)
    before = searcher(source_ids)
    scores_of(scorer, source_ids, before)
    kformer.training.enable_lora(tuned, 2)
    rng = np.random.default_rng(0)
    for weight in tuned.trainable_weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    after = searcher(source_ids)
    assert (after.ids[:, 0, :3] != before.ids[:, 0, :3]).any()
    assert_same(after, Searcher(tuned, BEAM)(source_ids))
    np.testing.assert_allclose(scores_of(scorer, source_ids, after), after.scores, atol=1e-4)


def test_mixed_bfloat16(result, source_ids):
    """Searches in bfloat16; scores are summed in float32 and agree with float32's as far as 8 bits
    let them.
    """
    model = transformer(dtype="mixed_bfloat16")
    found = Searcher(model, BEAM)(source_ids)
    assert found.scores.dtype == "float32" and np.isfinite(found.scores).all()
    # Where a rounding leads to another hypothesis, its score may be another too.
    assert (abs(found.scores[:, 0] - result.scores[:, 0]) < 0.3).mean() > 0.8
    same = (found.ids[:, 0, :3] == result.ids[:, 0, :3]).all(axis=1)
    assert same.mean() > 0.5


def test_learned_positions():
    """Their table ends at the model's limit: padding may not go beyond it, and a search that would
    is refused.
    """
    model = transformer(position_encoding="learned", max_length=10, num_decoder_layers=1)
    source = sentences(3, length=10)
    searcher = Searcher(model, SearchOptions(beam_size=1, max_length=9, min_length=9))
    found = searcher(source)
    assert all(len(cut(ids, SPECIAL)) == 10 for ids in found.ids[:, 0])
    np.testing.assert_allclose(
        Scorer(model)(source, found.ids[:, 0, :10], [10] * 3), found.scores[:, 0], atol=1e-4
    )
    with pytest.raises(
        ValueError, match=r"10 learned positions.*max_length is 10; set it to at most 9\.$"
    ):
        Searcher(model, SearchOptions(max_length=10))
    with pytest.raises(ValueError, match="max_length is 10; set it to at most 9"):
        searcher(source, options=dataclasses.replace(searcher.options, max_length=10))


def test_a_call_cannot_change_what_is_compiled(searcher, source_ids):
    other = dataclasses.replace(BEAM, beam_size=BEAM.beam_size + 1, length_penalty=0.1, seed=4)
    with pytest.raises(ValueError, match="cannot change beam_size, length_penalty, which a search"):
        searcher(source_ids, options=other)
    searcher(source_ids, options=dataclasses.replace(BEAM, seed=4, length_offset=1))


@pytest.mark.parametrize("name", ["forbidden_ids", "prefix_ids"])
def test_tokens_outside_the_vocabulary_are_refused(name):
    model = transformer(num_decoder_layers=1)
    last = model.target_vocabulary_size - 1
    Searcher(model, SearchOptions(max_length=9, **{name: (last,)}))
    with pytest.raises(
        ValueError,
        match=f"^{name} holds {last + 1}, but the model's target vocabulary ends at {last}; give ",
    ):
        Searcher(model, SearchOptions(max_length=9, **{name: (last, last + 1)}))


@pytest.mark.any_backend
def test_an_end_token_in_a_prefix_is_refused():
    with pytest.raises(ValueError, match="^prefix_ids holds 3, the end token, .*; leave it out"):
        Searcher(transformer(num_decoder_layers=1), SearchOptions(prefix_ids=(7, END, 8)))


class Pair(NamedTuple):
    first: Any
    second: Any


def test_reorder_follows_any_structure():
    """Dicts, lists, tuples and NamedTuples of tensors, and objects that reorder themselves."""

    class Own:
        def reorder(self, rows):
            return "own"

    tensor = ops.convert_to_tensor(np.arange(6).reshape(3, 2))
    rows = ops.convert_to_tensor(np.array([2, 0, 0], dtype="int32"))
    state = reorder({"a": (tensor, [tensor]), "b": Pair(tensor, Own())}, rows)
    expected = np.array([[4, 5], [0, 1], [0, 1]])
    assert type(state["b"]) is Pair and state["b"].second == "own"
    for found in (state["a"][0], state["a"][1][0], state["b"].first):
        np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


def test_stable_top_k_breaks_ties_by_index():
    """As a stable sort does, on every backend, ties across the border included."""
    values = np.random.default_rng(0).integers(0, 4, (40, 30)).astype("float32")
    values[:5, :25] = -np.inf
    values[5:10] += np.random.default_rng(1).random((5, 30))  # no ties
    for k in (1, 4, 30):
        found, indices = map(
            ops.convert_to_numpy, backend.stable_top_k(ops.convert_to_tensor(values), k)
        )
        expected = np.argsort(-values, axis=1, kind="stable")[:, :k]
        assert indices.dtype == "int32"
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(found, np.take_along_axis(values, expected, axis=1))


@pytest.mark.parametrize(
    ("columns", "k"),
    [(512, 4), (1000, 9), (2048, 1), (4100, 4), (10_000, 8), (2053, 3), (4072, 10), (10_000, 33)],
)
def test_wide_rows_are_searched_in_groups(columns, k):
    """Groups find what a sort finds, ties and minus infinities included.

    2053 is a prime, 4072 eight times a prime.
    """
    rng = np.random.default_rng(columns)
    x = rng.integers(0, 40, (6, columns)).astype("float32")
    x[1] = -np.inf
    x[2, : columns // 2] = -np.inf
    x[3] = rng.normal(size=columns)
    expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
    values, indices = backend.stable_top_k(ops.convert_to_tensor(x), k)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(values), np.take_along_axis(x, expected, axis=1)
    )
    finite = np.isfinite(np.take_along_axis(x, expected, axis=1))
    np.testing.assert_array_equal(ops.convert_to_numpy(indices)[finite], expected[finite])


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("columns", "k"), [(12, 1), (12, 9), (4100, 1), (4100, 4)])
def test_best_tokens_without_the_forbidden_ones(columns, k, early):
    """The forbidden ones are the very best of each row, and ties stand among the others."""
    x = np.random.default_rng(columns).integers(0, 9, (7, columns)).astype("float32")
    x[:, [0, 5]], x[:, 7] = 20, 10
    expected = x.copy()
    expected[:, [0, 5, 7] if early else [0, 5]] = -np.inf
    indices = np.argsort(-expected, axis=1, kind="stable")[:, :k]
    too_early = (7, ops.convert_to_tensor(early))
    values, tokens, normaliser = map(
        ops.convert_to_numpy, best_tokens(ops.convert_to_tensor(x), k, {0, 5}, too_early)
    )
    np.testing.assert_array_equal(tokens, indices)
    np.testing.assert_array_equal(values, np.take_along_axis(expected, indices, axis=1))
    exact = np.log(np.exp(x.astype("float64")).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(normaliser, exact, atol=1e-5)
