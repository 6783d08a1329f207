"""Beam search against NumPy searches that share no code with it."""

import itertools
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from kformer.decoding import (
    Constraints,
    SpecialTokens,
    beam_search,
    huggingface_beam_search,
    length_penalty,
)
from tests.decoding.toys import (
    LOOP_MODULE,
    Special,
    Toy,
    compiled,
    constraints_of,
    cut,
    oracle_beam,
    oracle_greedy,
    oracle_penalty,
    python_loop,
)

SENTENCES = 24

CASES = {
    "plain": {"seed": 0, "beam_size": 4},
    "no penalty, all entries": {"seed": 1, "beam_size": 5, "n_best": 5, "alpha": 0.0},
    "strong penalty": {"seed": 3, "beam_size": 3, "alpha": 1.5, "n_best": 3},
    "negative penalty, logits with an offset": {
        "seed": 4,
        "beam_size": 3,
        "alpha": -0.7,
        "n_best": 2,
        "offset": 3.0,
    },
    "beam of one": {"seed": 6, "beam_size": 1},
    "beam wider than the vocabulary": {
        "seed": 7,
        "beam_size": 8,
        "vocabulary_size": 6,
        "n_best": 8,
    },
    "start is padding": {
        "seed": 8,
        "beam_size": 3,
        "special": Special(pad_id=0, start_id=0, end_id=1),
    },
    "end is padding": {
        "seed": 9,
        "beam_size": 3,
        "special": Special(pad_id=7, start_id=11, end_id=7),
    },
    "min length, start is end": {
        "seed": 10,
        "beam_size": 4,
        "min_length": 3,
        "n_best": 2,
        "special": Special(1, 2, 2),
    },
}


def limits_of(seed, sentences=SENTENCES):
    """A limit for each sentence, from 0 to 13."""
    return np.random.default_rng(seed + 1000).integers(0, 14, sentences).astype("int32")


def run(toy, limits, *, beam_size, step=None, state=None, compile=compiled, **arguments):
    """`beam_search` over a toy: ids, scores and ranks as NumPy arrays."""
    constraints, options = constraints_of(toy.special, arguments)

    def search(state, limits):
        steps = int(max(limit_list, default=0)) + 1
        return beam_search(
            step or toy.step,
            state,
            limits,
            constraints,
            beam_size=beam_size,
            steps=steps,
            **options,
        )

    limit_list = list(limits)
    limits = ops.convert_to_tensor(np.array(limit_list, dtype="int32"))
    results = compile(search)(toy.state(beam_size) if state is None else state, limits)
    assert ops.convert_to_numpy(results.is_done).all()
    return [ops.convert_to_numpy(result) for result in results[:3]]


def eager(function):
    """Used instead of `compiled` where a test reads the states of the loop."""
    return function


def assert_equals_oracle(toy, results, sentence, expected, n_best):
    """The first `n_best` entries of a sentence are those of the oracle; entries that it could
    not fill are empty.
    """
    ids, scores, ranks = (result[sentence] for result in results)
    for index in range(n_best):
        if index < len(expected):
            assert cut(ids[index], toy.special) == expected[index].ids
            np.testing.assert_allclose(scores[index], expected[index].score, atol=1e-4)
            np.testing.assert_allclose(ranks[index], expected[index].rank, atol=1e-4)
        else:
            assert np.isneginf(scores[index]) and np.isneginf(ranks[index])
            assert (ids[index] == toy.special.pad_id).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_equals_numpy_beam(case):
    case = {"n_best": 1, "alpha": 0.6, "min_length": 0, **case}
    seed, n_best = case.pop("seed"), case["n_best"]
    toy = Toy(
        seed,
        SENTENCES,
        **{key: case.pop(key) for key in ("vocabulary_size", "special", "offset") if key in case},
    )
    limits = limits_of(seed).clip(case["min_length"])
    results = run(toy, limits, **case)
    assert [result.dtype for result in results] == ["int32", "float32", "float32"]
    case.pop("n_best")
    for sentence, limit in enumerate(limits):
        expected, _ = oracle_beam(toy, sentence, int(limit), **case)
        assert_equals_oracle(toy, results, sentence, expected, n_best)


def test_each_sentence_has_its_own_length_penalty():
    toy, alphas = Toy(3, 6), [0.0, 0.6, 2.5, -0.7, 1.0, 4.0]
    limits, alpha = limits_of(3, 6), ops.convert_to_tensor(np.array(alphas, "float32"))
    drops = keras.backend.backend() != "jax"  # The penalties stay with the sentences that remain.
    results = run(toy, limits, beam_size=3, n_best=3, alpha=alpha, drop_finished=drops)
    for sentence, limit in enumerate(limits):
        expected, _ = oracle_beam(toy, sentence, int(limit), beam_size=3, alpha=alphas[sentence])
        assert_equals_oracle(toy, results, sentence, expected, 3)


@pytest.mark.any_backend
@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_each_sentence_has_its_own_length_penalty_by_hugging_faces_rules(early_stopping):
    toy, alphas, limits = Toy(3, 6), [0.0, 0.6, 2.5, -0.7, 1.0, 4.0], limits_of(3, 6)
    constraints = Constraints(SpecialTokens(*toy.special), at_limit="free_end")

    def search(alpha):
        settings = {"beam_size": 3, "steps": 14, "early_stopping": early_stopping}
        arrays = toy.state(3), ops.convert_to_tensor(limits)
        found = huggingface_beam_search(toy.step, *arrays, constraints, alpha=alpha, **settings)
        return [ops.convert_to_numpy(values) for values in found]

    together = search(ops.convert_to_tensor(np.array(alphas, "float32")))
    for sentence, alpha in enumerate(alphas):
        for ours, alone in zip(together, search(alpha), strict=True):
            np.testing.assert_allclose(ours[sentence], alone[sentence], rtol=1e-6)


@pytest.mark.any_backend
def test_cases_are_hard():
    """The comparison above proves something: beams compete, finish at different lengths, and beat
    greedy search.
    """
    outputs = ended_early = permuted = late = better = 0
    lengths = set()
    for case in CASES.values():
        case = {"alpha": 0.6, **case}
        case.pop("n_best", None)
        seed = case.pop("seed")
        toy = Toy(
            seed,
            SENTENCES,
            **{
                key: case.pop(key)
                for key in ("vocabulary_size", "special", "offset")
                if key in case
            },
        )
        for sentence, limit in enumerate(limits_of(seed).clip(case.get("min_length", 0))):
            expected, trace = oracle_beam(toy, sentence, int(limit), **case)
            greedy, _ = oracle_greedy(toy, sentence, int(limit), case.get("min_length", 0))
            outputs += 1
            ended_early += len(expected[0].ids) <= limit
            permuted += trace.permuted > 0
            late += trace.late_winner
            better += expected[0].ids != greedy
            lengths.add(len(expected[0].ids))
    assert ended_early >= 0.5 * outputs
    assert permuted >= 0.5 * outputs
    assert late >= 0.2 * outputs
    assert better >= 0.2 * outputs
    assert len(lengths) >= 6


@pytest.mark.parametrize(("alpha", "min_length"), [(0.6, 0), (1.2, 2)])
def test_full_width_equals_exhaustive_enumeration(alpha, min_length):
    toy = Toy(seed=11, sentences=6, vocabulary_size=6, end=-0.5)
    words, limit = [3, 4, 5], 3
    hypotheses = [
        (*ids, 2)
        for length in range(min_length, limit + 1)
        for ids in itertools.product(words, repeat=length)
    ]
    width = sum(3**length for length in range(limit + 1))  # nothing is ever pruned
    results = run(
        toy,
        [limit] * 6,
        beam_size=width,
        n_best=len(hypotheses),
        alpha=alpha,
        min_length=min_length,
    )
    for sentence in range(6):
        scored = [(toy.score(sentence, ids), ids) for ids in hypotheses]
        scored.sort(key=lambda pair: -pair[0] / oracle_penalty(len(pair[1]), alpha))
        ids, scores, ranks = (result[sentence] for result in results)
        assert [cut(row, toy.special) for row in ids[: len(scored)]] == [
            hypothesis for _, hypothesis in scored
        ]
        np.testing.assert_allclose(scores[: len(scored)], [score for score, _ in scored], atol=1e-4)
        assert np.isneginf(scores[len(scored) :]).all()


def test_early_stop_changes_nothing_and_saves_steps(monkeypatch):
    """The oracle never stops early; the search does, as soon as no live hypothesis can win."""
    toy, limit = Toy(seed=12, sentences=6, sharpness=2.0, end=1.5), 40
    steps = []
    loop = LOOP_MODULE.while_loop

    def counting_loop(condition, body, state):
        state = loop(condition, body, state)
        steps.append(int(state.length))
        return state

    monkeypatch.setattr(LOOP_MODULE, "while_loop", counting_loop)
    results = run(toy, [limit] * 6, beam_size=4, alpha=0.6, compile=eager)
    slowest = 0
    for sentence in range(6):
        expected, _ = oracle_beam(toy, sentence, limit, beam_size=4, alpha=0.6)
        assert_equals_oracle(toy, results, sentence, expected, 1)
        slowest = max(slowest, len(expected[0].ids))
    # Not before the slowest sentence's winner has ended, and long before the limit.
    assert slowest <= steps[0] <= (limit + 1) // 2
    # To be sure of more places takes longer.
    run(toy, [limit] * 6, beam_size=4, alpha=0.6, n_best=4, compile=eager)
    assert steps[0] < steps[1]


@pytest.mark.parametrize(
    ("alpha", "end_first", "words", "winner"),
    [
        (
            1.0,
            0.6,
            8,
            (3, 4, 5, 6, 7, 8, 9, 10, 2),
        ),  # -0.92 falls behind -0.51 at first, but not over 9 tokens
        (
            -1.0,
            0.4,
            1,
            (3, 2),
        ),  # the longer, the worse: the limit is no measure of what may still come
        (1.0, 0.9, 8, (2,)),
    ],
)
def test_early_stop_waits_for_hypotheses_that_may_still_win(alpha, end_first, words, winner):
    """One sentence, which nothing keeps running: an end at once, or a chain of words of which all
    but the first are certain.
    """
    toy, limit = Toy(seed=0, sentences=1), 10
    table = np.full((12, 12), -30, dtype="float32")
    table[1, [2, 3]] = np.log([end_first, 1 - end_first])
    for word in range(3, 3 + words):
        table[word, word + 1 if word < 2 + words else 2] = 0

    def step(ids, state):
        return ops.take(ops.convert_to_tensor(table), ids, axis=0), state

    ids, _, _ = run(toy, [limit], beam_size=2, step=step, alpha=alpha)
    assert cut(ids[0, 0], toy.special) == winner


class HistoryState(NamedTuple):
    """A state that writes down what each row was fed; it has a part without rows, so it is
    reordered by its own method.
    """

    hidden: Any
    history: Any  # int32 [R, L]
    count: Any  # int32 scalar

    def reorder(self, rows):
        return HistoryState(
            ops.take(self.hidden, rows, axis=0), ops.take(self.history, rows, axis=0), self.count
        )


@pytest.fixture(scope="module")
def recording():
    """A search of 6 sentences with 3 beams and alpha 0.6: the toy and the states of the loop as
    NumPy arrays.
    """
    toy, rows, limit, states = Toy(seed=13, sentences=6), 18, 8, []

    def step(ids, state):
        logits, parts = toy.step(ids, {"hidden": state.hidden})
        is_here = ops.arange(limit + 1, dtype="int32") == state.count
        history = ops.where(is_here, ops.expand_dims(ids, 1), state.history)
        return logits, HistoryState(parts["hidden"], history, state.count + 1)

    state = HistoryState(
        toy.state(3)["hidden"],
        ops.zeros((rows, limit + 1), dtype="int32"),
        ops.zeros((), dtype="int32"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOOP_MODULE, "while_loop", python_loop(states.append))
        run(toy, [limit] * 6, beam_size=3, step=step, state=state, n_best=3, compile=eager)
    assert len(states) >= 5
    return toy, [keras.tree.map_structure(ops.convert_to_numpy, state) for state in states]


def test_sets_over_time(recording):
    """Finished hypotheses are never extended or scored again, live ones stay legal, both sets stay
    sorted.
    """
    toy, states = recording
    permutations = exchanges = 0
    for sentence in range(6):
        known, before = {}, [()] * 3
        for state in states:
            length = int(state.length)
            live_scores, ranks = (
                list(state.live_scores[sentence]),
                list(state.finished_ranks[sentence]),
            )
            assert live_scores == sorted(live_scores, reverse=True)
            assert ranks == sorted(ranks, reverse=True)
            now = {}
            for row, score, rank in zip(
                state.finished_ids[sentence], state.finished_scores[sentence], ranks, strict=True
            ):
                if ids := cut(row, toy.special):
                    now[ids] = (score, rank)
                    np.testing.assert_allclose(
                        rank, score / oracle_penalty(len(ids), 0.6), rtol=1e-5
                    )
            for ids in now.keys() - known.keys():
                assert (
                    len(ids) == length and ids[:-1] in before
                )  # ended just now, and was a live hypothesis
            for ids in now.keys() & known.keys():
                assert now[ids] == known[ids]
            for ids in known.keys() - now.keys():
                assert known[ids][1] <= ranks[-1]  # only better ones replace it
                exchanges += 1
            live = [tuple(row[:length].tolist()) for row in state.live_ids[sentence]]
            alive = [
                ids for ids, score in zip(live, live_scores, strict=True) if np.isfinite(score)
            ]
            assert len(set(alive)) == len(alive)
            assert not {token for ids in alive for token in ids} & set(toy.special)
            parents = [before.index(ids[:-1]) for ids in alive]
            permutations += length > 1 and parents != list(range(len(parents)))
            known, before = now, live
    assert permutations >= 6 and exchanges >= 6


def test_state_follows_its_hypothesis(recording):
    """What a row's state was fed is, at each step, the hypothesis that stands in that row."""
    toy, states = recording
    for state in states:
        length = int(state.length)
        history = state.decoder.history.reshape(6, 3, -1)
        alive = np.isfinite(state.live_scores)
        # The start token, then all of the hypothesis but its newest token, which has not been fed
        # yet.
        assert (history[..., 0] == toy.special.start_id)[alive].all()
        np.testing.assert_array_equal(
            history[..., 1:length][alive], state.live_ids[..., : length - 1][alive]
        )


def test_score_is_the_sum_of_log_probabilities():
    toy = Toy(seed=14, sentences=8)
    ids, scores, ranks = run(toy, [10] * 8, beam_size=4, n_best=4, alpha=0.9)
    for sentence, index in itertools.product(range(8), range(4)):
        hypothesis = cut(ids[sentence, index], toy.special)
        np.testing.assert_allclose(
            scores[sentence, index], toy.score(sentence, hypothesis), atol=1e-4
        )
        np.testing.assert_allclose(
            ranks[sentence, index],
            scores[sentence, index] / oracle_penalty(len(hypothesis), 0.9),
            rtol=1e-5,
        )
    assert (np.diff(ranks, axis=1) <= 0).all()
    # The two orders differ somewhere, or this test could not tell them apart.
    assert (np.diff(scores, axis=1) > 0).any()


def test_sentences_do_not_influence_each_other():
    """Some sentences among others, and among fewer in another order, with shorter limits."""
    toy, limits = Toy(seed=16, sentences=6), np.array([4, 12, 2, 9, 12, 6])
    together = run(toy, limits, beam_size=3, n_best=3)
    chosen = [3, 2, 0]
    toy.start = toy.start[chosen]
    ids, scores, ranks = run(toy, limits[chosen], beam_size=3, n_best=3)
    np.testing.assert_array_equal(ids, together[0][chosen, :, : ids.shape[2]])
    np.testing.assert_allclose(scores, together[1][chosen], atol=1e-5)
    np.testing.assert_allclose(ranks, together[2][chosen], atol=1e-5)


def test_empty_batch():
    ids, scores, ranks = run(Toy(seed=17, sentences=0), [], beam_size=3)
    assert ids.shape == (0, 3, 1) and scores.shape == ranks.shape == (0, 3)


def test_ties_fall_alike_on_every_backend():
    """Where all tokens are equally likely, the token and the hypothesis that stand first win."""

    def step(ids, state):
        return ops.zeros((ops.shape(ids)[0], 9)), state

    toy = Toy(seed=0, sentences=2, vocabulary_size=9)
    ids, scores, _ = run(toy, [2, 2], beam_size=4, step=step, n_best=4, min_length=2)
    expected = [[3, 3, 2], [3, 4, 2], [3, 5, 2], [3, 6, 2]]
    np.testing.assert_array_equal(ids, [expected] * 2)
    np.testing.assert_allclose(scores, np.full((2, 4), 3 * np.log(1 / 9)), rtol=1e-5)


def test_impossible_tokens_and_sentences_without_hypotheses():
    """Log-probabilities of minus infinity neither win nor turn into NaN."""

    def step(ids, state):
        # Sentence 0 can never end; sentence 1 goes 3, 4, end.
        free = ops.convert_to_tensor(
            np.array([-np.inf, -np.inf, -np.inf, 0, 0, 0], dtype="float32")
        )
        table = np.full((6, 6), -np.inf, dtype="float32")
        table[1, 3] = table[3, 4] = table[4, 2] = table[2, 2] = table[5, 5] = table[0, 0] = 0
        chain = ops.take(ops.convert_to_tensor(table), ids, axis=0)
        is_first = ops.expand_dims(ops.arange(ops.shape(ids)[0]) < 2, 1)
        return ops.where(is_first, free, chain), state

    toy = Toy(seed=0, sentences=2, vocabulary_size=6)
    ids, scores, ranks = run(toy, [4, 4], beam_size=2, step=step, n_best=2)
    assert (ids[0] == 0).all() and np.isneginf(scores[0]).all() and np.isneginf(ranks[0]).all()
    np.testing.assert_array_equal(ids[1], [[3, 4, 2, 0, 0], [0] * 5])
    np.testing.assert_allclose(scores[1], [0, -np.inf])


def test_length_penalty_is_gnmts():
    """Equation 14 of Wu et al. 2016: (5 + |Y|)^a / (5 + 1)^a."""
    lengths = np.array([1, 2, 7, 30], dtype="int32")
    for alpha in (-0.5, 0.0, 0.6, 1.0):
        penalty = ops.convert_to_numpy(length_penalty(ops.convert_to_tensor(lengths), alpha))
        np.testing.assert_allclose(penalty, (5.0 + lengths) ** alpha / 6.0**alpha, rtol=1e-5)
    assert ops.convert_to_numpy(length_penalty(ops.convert_to_tensor(1), 0.6)) == 1
