"""Penalties on repetition against plain NumPy, and searches with them against NumPy searches."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import (
    Constraints,
    LayerDecoder,
    Sampling,
    Searcher,
    SearchOptions,
    beam_search,
    decoder_for,
    sample,
)
from kformer.decoding.beam_huggingface import huggingface_beam_search
from kformer.decoding.repetition import NO_TOKEN, Repetition
from kformer.decoding.run_search import search
from tests.decoding.small_models import LIMITS, PAD, search_once, sentences, transformer
from tests.decoding.toys import Special, Toy, compiled, cut, oracle_penalty


def oracle(scores, history, penalty=1.0, ngram_size=0):
    """The scores `[V]` after a history (a list of ids), by the definitions."""
    scores = np.array(scores, "float32")
    for token in set(history):
        if token < len(scores):
            scores[token] *= penalty if scores[token] < 0 else 1 / np.float32(penalty)
    grams = [tuple(history[i : i + ngram_size]) for i in range(len(history) - ngram_size + 1)]
    for token in range(len(scores)) if ngram_size else ():
        if (*history[len(history) - ngram_size + 1 :], token) in grams:
            scores[token] = -np.inf
    return scores


def apply(repetition, scores, prompts, ids, length, **arguments):
    """`Repetition` on lists, compiled where that is quicker."""
    arrays = (np.array(prompts, "int32"), np.array(ids, "int32"), np.int32(length))
    run = compiled(lambda *tensors: repetition(*tensors, **arguments))
    tensors = map(ops.convert_to_tensor, (np.array(scores, "float32"), *arrays))
    return ops.convert_to_numpy(run(*tensors))


def small(*history, **options):
    """The tokens that are forbidden after a history of a vocabulary of 8."""
    found = oracle(np.zeros(8), list(history), **options)
    return np.flatnonzero(np.isinf(found)).tolist()


@pytest.mark.any_backend
def test_the_oracle_on_cases_by_hand():
    scores = [2.0, -2.0, 3.0, -3.0, 0.0, 5.0]
    np.testing.assert_array_equal(
        oracle(scores, [0, 1, 1, 4, 7], penalty=2.0), [1.0, -4.0, 3.0, -3.0, 0.0, 5.0]
    )
    assert small(5, 6, 5, ngram_size=2) == [6]
    assert small(5, 6, 5, 7, 5, ngram_size=2) == [6, 7]
    assert small(5, 5, ngram_size=2) == [5]
    assert small(5, 6, ngram_size=2) == []
    assert small(5, ngram_size=3) == small(5, 6, ngram_size=3) == []
    assert small(5, 6, 7, 5, 6, ngram_size=3) == [7]
    assert small(5, 6, 7, 6, 6, ngram_size=3) == []
    assert small(5, 6, 6, 3, ngram_size=1) == [3, 5, 6]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (([1], [3, 4, 0, 0], 2), [1.0, 0.5, 1.0, 0.5, -2.0]),
        (([1], [3, 3, 0, 0], 2), [1.0, 0.5, 1.0, 0.5, -1.0]),
        (([NO_TOKEN, 2], [4, 4, 4, 4], 0), [1.0, 1.0, 0.5, 1.0, -1.0]),
        (([9], [0, 0, 0, 0], 1), [0.5, 1.0, 1.0, 1.0, -1.0]),
    ],
)
def test_the_penalty_on_cases_by_hand(history, expected):
    """What has occurred counts once; what is not written yet or has no score does not count."""
    prompt, ids, length = history
    scores = [[1.0, 1.0, 1.0, 1.0, -1.0]]
    found = apply(Repetition(penalty=2.0), scores, [prompt], [ids], length)
    assert found.tolist() == [expected]


@pytest.mark.parametrize(
    ("history", "size", "expected"),
    [
        (([1], [5, 6, 5, 0], 3), 2, [6]),
        (([1], [5, 6, 5, 6], 3), 2, [6]),
        (([5], [6, 5, 0, 0], 2), 2, [6]),
        (([1], [0, 0, 0, 0], 2), 2, [0]),
        (([1], [0, 0, 0, 0], 1), 2, []),
        (([NO_TOKEN, NO_TOKEN, 5], [6, 0, 0, 0], 1), 5, []),
        (([NO_TOKEN, 5, 6, 7], [5, 6, 0, 0], 2), 3, [7]),
        (([1], [5, 0, 6, 3], 3), 1, [0, 1, 5, 6]),
        (([9], [9, 0, 0, 0], 1), 2, []),
    ],
)
def test_ngrams_on_cases_by_hand(history, size, expected):
    prompt, ids, length = history
    found = apply(Repetition(ngram_size=size), np.ones((1, 8)), [prompt], [ids], length)
    assert np.flatnonzero(np.isinf(found[0])).tolist() == expected
    assert (found[0][np.isfinite(found[0])] == 1).all()


def test_a_spared_token_may_end_a_repeated_ngram():
    found = apply(Repetition(2.0, 1), np.ones((1, 4)), [[2]], [[3, 0]], 1, spared=2)
    assert found.tolist() == [[1.0, 1.0, 0.5, -np.inf]]


SETTINGS = [(1.3, 0), (0.7, 0), (1.0, 1), (1.0, 2), (1.0, 3), (1.5, 2), (1.2, 4)]


def random_case(seed, beams=3, sentences=10, vocabulary=5, steps=14):
    """Scores, prompts with `NO_TOKEN` in front, ids and a length."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (sentences, beams, steps))
    prompts = rng.integers(0, vocabulary + 2, (sentences, rng.integers(1, 6)))
    kept = rng.integers(1, prompts.shape[1] + 1, (sentences, 1))
    prompts = np.where(np.arange(prompts.shape[1]) >= prompts.shape[1] - kept, prompts, NO_TOKEN)
    scores = rng.normal(size=(sentences * beams, vocabulary)).astype("float32")
    return scores, prompts, ids, int(rng.integers(0, steps + 1))


@pytest.mark.parametrize(("penalty", "size"), SETTINGS)
def test_random_histories(penalty, size):
    changed = 0
    for seed in range(4):
        scores, prompts, ids, length = random_case(seed)
        found = apply(Repetition(penalty, size), scores, prompts, ids, length)
        histories = [
            [token for token in prompt if token != NO_TOKEN] + row[:length].tolist()
            for prompt, rows in zip(prompts, ids, strict=True)
            for row in rows
        ]
        expected = [oracle(*pair, penalty, size) for pair in zip(scores, histories, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        changed += (found != scores).any(axis=1).sum()
    assert changed > 15


@pytest.mark.any_backend
@pytest.mark.parametrize(("penalty", "size"), SETTINGS)
def test_the_oracle_is_the_published_definition(penalty, size):
    transformers = pytest.importorskip("transformers")
    import torch

    for seed in range(4):
        scores, _, ids, length = random_case(seed)
        ids = ids.reshape(len(scores), -1)[:, : length + 1]
        theirs = torch.tensor(scores)
        if penalty != 1:
            process = transformers.RepetitionPenaltyLogitsProcessor(penalty)
            theirs = process(torch.tensor(ids), theirs)
        if size:
            theirs = transformers.NoRepeatNGramLogitsProcessor(size)(torch.tensor(ids), theirs)
        expected = [oracle(*pair, penalty, size) for pair in zip(scores, ids.tolist(), strict=True)]
        np.testing.assert_allclose(theirs.numpy(), expected, rtol=1e-6)


# Searches.


def best_by_hand(toy, sentence, limit, repetition, beam_size, alpha=0.6):
    """Greedy search (by logits) or a beam (by log-probabilities) of one sentence in plain NumPy.

    Returns:
        The ids of the hypotheses, best first, and their scores.
    """
    special = toy.special
    settings = dataclasses.astuple(repetition)
    forbidden = sorted(special.forbidden | {special.end_id})
    live, finished = [((), 0.0, toy.start[sentence])], []
    for length in range(limit + 1):
        candidates = []
        for ids, score, hidden in live:
            log_p, hidden = toy.log_probabilities(ids[-1] if ids else special.start_id, hidden)
            values = log_p
            if beam_size == 1:
                values = hidden @ toy.output + toy.bias + toy.offset * hidden[0]
            values = oracle(values, [special.start_id, *ids], *settings)
            if beam_size == 1:
                values[sorted(special.forbidden)] = -np.inf
                token = special.end_id if length == limit else int(values.argmax())
                candidates.append(((*ids, token), score + log_p[token], hidden))
                continue
            total = score + values[special.end_id]
            rank = total / oracle_penalty(length + 1, alpha)
            finished.append(((*ids, special.end_id), total, rank))
            values[forbidden] = -np.inf
            candidates += [
                ((*ids, token), score + values[token], hidden)
                for token in np.flatnonzero(np.isfinite(values))
                if length < limit
            ]
        live = sorted(candidates, key=lambda candidate: -candidate[1])[:beam_size]
        if beam_size == 1 and live[0][0][-1] == special.end_id:
            return [live[0][0]], [live[0][1]]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[2])[:beam_size]
    return [hypothesis[0] for hypothesis in finished], [hypothesis[1] for hypothesis in finished]


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(("penalty", "size"), SETTINGS)
def test_searches_against_numpy(beam_size, penalty, size):
    rows = 24
    toy, special = Toy(seed=5, sentences=rows, sharpness=2.5, end=-7.0, offset=3.0), Special()
    limits = np.random.default_rng(0).integers(1, 11, rows)
    differs = 0
    for repetition in (Repetition(penalty, size), Repetition()):
        constraints = Constraints(special, repetition=repetition)
        steps = int(limits.max()) + 1

        def run(state, limits, constraints=constraints, steps=steps):
            if beam_size == 1:
                found = sample(toy.step, state, limits, constraints, steps=steps)
                return ops.expand_dims(found.ids, 1), ops.expand_dims(found.scores, 1)
            options = {"steps": steps, "beam_size": beam_size, "n_best": beam_size}
            return beam_search(toy.step, state, limits, constraints, **options)[:2]

        tensor = ops.convert_to_tensor(limits.astype("int32"))
        ids, scores = map(ops.convert_to_numpy, compiled(run)(toy.state(beam_size), tensor))
        for row in range(rows):
            expected = best_by_hand(toy, row, int(limits[row]), repetition, beam_size)
            found = [cut(each, special) for each, score in zip(ids[row], scores[row], strict=True)]
            assert found[: len(expected[0])] == expected[0]
            np.testing.assert_allclose(scores[row][: len(expected[1])], expected[1], atol=2e-4)
            if repetition:
                plain = best_by_hand(toy, row, int(limits[row]), Repetition(), beam_size)
                differs += plain[0] != expected[0]
    assert differs >= 3


def test_samples_keep_to_it():
    """A sample holds no n-gram twice, and its score is the model's own."""
    toy, rows = Toy(seed=5, sentences=200, end=-3.0), 200
    limits = np.full(rows, 10, "int32")
    constraints = Constraints(Special(), repetition=Repetition(2.0, 2))

    def run(state, limits):
        return sample(toy.step, state, limits, constraints, steps=11, sampling=Sampling(2.0))[:2]

    found = compiled(run)(toy.state(1), ops.convert_to_tensor(limits))
    repeats = 0
    for row, (ids, score) in enumerate(zip(*map(ops.convert_to_numpy, found), strict=True)):
        ids = cut(ids, Special())
        pairs = list(zip((1, *ids), ids, strict=False))
        assert len(set(pairs)) == len(pairs)
        repeats += len(set(ids)) < len(ids)
        assert score == pytest.approx(toy.score(row, ids), abs=1e-3)
    assert repeats > 100


def test_a_sample_of_the_likeliest_token_is_greedy():
    """Repetition is penalised before a temperature counts."""
    toy = Toy(seed=5, sentences=40, end=-3.0, offset=3.0)
    limits = ops.convert_to_tensor(np.full(40, 10, "int32"))
    constraints = Constraints(Special(), repetition=Repetition(1.7, 3))

    def run(state, limits):
        ways = (None, Sampling(temperature=0.3, top_k=1))
        return [
            sample(toy.step, state, limits, constraints, steps=11, sampling=way)[:2] for way in ways
        ]

    greedy, sampled = compiled(run)(toy.state(1), limits)
    for one, other in zip(greedy, sampled, strict=True):
        np.testing.assert_allclose(*map(ops.convert_to_numpy, (one, other)), atol=1e-4)


def test_an_end_is_always_possible():
    """With every other token forbidden a hypothesis of the mode "kformer" ends, also where the end
    token is forbidden before the limit.
    """
    toy, special = Toy(seed=1, sentences=4, vocabulary_size=5, end=-20.0), Special()
    constraints = Constraints(special, repetition=Repetition(ngram_size=1))
    forbidding = Constraints(
        special, forbidden=frozenset({0, 1, 2}), repetition=Repetition(penalty=1.5)
    )
    limits = ops.convert_to_tensor(np.full(4, 8, "int32"))

    def run(single, state, limits):
        beams = beam_search(toy.step, state, limits, constraints, steps=9, beam_size=2)
        full = beam_search(toy.step, state, limits, forbidding, steps=9, beam_size=2)
        greedy = sample(toy.step, single, limits, constraints, steps=9).ids
        return greedy, *beams[:2], *full[:2]

    found = compiled(run)(toy.state(1), toy.state(2), limits)
    greedy, beams, scores, full, full_scores = map(ops.convert_to_numpy, found)
    assert {len(cut(row, special)) for rows in full for row in rows} == {9}
    assert np.isfinite(full_scores).all()
    assert {tuple(sorted(cut(row, special))) for row in greedy} == {(2, 3, 4)}
    assert all(cut(row[0], special)[-1] == special.end_id for row in beams)
    assert np.isfinite(scores).all()


def test_where_no_token_is_left_no_score_is_nan():
    """Also where probabilities are to sum to one again."""
    toy, special = Toy(seed=1, sentences=4, vocabulary_size=5, end=-20.0), Special()
    constraints = Constraints(
        special,
        forbidden=frozenset({0, 1, 2}),
        renormalize=True,
        at_limit="any",
        repetition=Repetition(ngram_size=1),
    )
    limits = ops.convert_to_tensor(np.full(4, 6, "int32"))

    def run(single, state, limits):
        options = {"steps": 7}
        beams = huggingface_beam_search(
            toy.step, state, limits, constraints, beam_size=2, alpha=1.0, **options
        )
        ways = (None, Sampling())
        samples = [
            sample(toy.step, single, limits, constraints, sampling=way, **options) for way in ways
        ]
        return beams.scores, *(found.scores for found in samples)

    for scores in compiled(run)(toy.state(1), toy.state(2), limits):
        assert (ops.convert_to_numpy(scores) == -np.inf).all()


BOTH = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}
WAYS = (
    {"beam_size": 1},
    {"beam_size": 3, "n_best": 3},
    {"beam_size": 3, "n_best": 3, "mode": "huggingface"},
    {"beam_size": 1, "n_best": 2, "sampling": True, "top_k": 9},
)


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize(
    "changes", [{}, {"shortlist": (9, 5, 12, 7, 15, 4)}, {"prefix_ids": (7, 5, 7)}]
)
def test_the_decoder_does_not_matter(way, changes, backend):
    """The fast decoder and the layers find the same, dropping done sentences or not."""
    model, source_ids = transformer(), sentences(8)
    options = SearchOptions(**way, **changes, **BOTH, **LIMITS)
    found = search_once(model, options, source_ids)
    plain = search_once(model, SearchOptions(**way, **changes, **LIMITS), source_ids)
    assert (found.ids != plain.ids).any(axis=(1, 2)).sum() >= 2
    limits = options.limits((source_ids != PAD).sum(axis=1)).astype("int32")

    @compiled
    def by_layers(*arrays):
        steps = int(limits.max()) + 1
        arguments = {"options": options, "steps": steps, "drop_finished": False}
        return tuple(search(LayerDecoder(model), *arrays, **arguments)[0])

    numbers = np.arange(len(limits), dtype="int32")
    other = by_layers(*map(ops.convert_to_tensor, (source_ids, limits, numbers)))
    np.testing.assert_array_equal(ops.convert_to_numpy(other[0]), found.ids)
    np.testing.assert_allclose(ops.convert_to_numpy(other[1]), found.scores, atol=1e-4)


# Language models.


def language_model(seed=3):
    """A small one with random weights."""
    sizes = {"num_layers": 2, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
    model = kformer.TransformerDecoder(15, max_length=40, share_output=False, **sizes)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        values = rng.normal(size=weight.shape) * 0.4
        weight.assign(values + 1 if weight.name == "gamma" else values)
    return model


PROMPTS = [[5, 6, 7, 5, 6], [], [9], [4, 4, 8, 4, 4, 8, 11, 9, 4]]


@pytest.mark.parametrize("shortlist", [(), (3, 4, 6, 7, 9, 11, 12)])
@pytest.mark.any_backend(quickest="torch")
def test_a_prompt_counts(shortlist):
    """Greedy continuations by uncached passes and the oracle. The shortlist lacks tokens of the
    prompts, which then count as n-grams only."""
    model = language_model()
    settings = {"max_new_tokens": 9, "min_length": 6, "shortlist": shortlist}
    found = model.generate(PROMPTS, **settings, **BOTH)
    allowed = np.isin(np.arange(15), [*(shortlist or range(15)), model.end_id])
    allowed[[model.pad_id, model.start_id]] = False
    for prompt, ids in zip(PROMPTS, found, strict=True):
        history, expected = [model.start_id, *prompt], []
        while len(expected) < 9:
            padded = np.array([history + [model.pad_id] * (24 - len(history))])
            logits = ops.convert_to_numpy(model({"token_ids": padded}))[0, len(history) - 1]
            values = np.where(allowed, oracle(logits, history, 1.4, 2), -np.inf)
            if len(expected) < 6:
                values[model.end_id] = -np.inf
            token = int(values.argmax())
            if token == model.end_id:
                break
            history.append(token)
            expected.append(token)
        assert ids == expected
    assert found != model.generate(PROMPTS, **settings)


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS[:3])
def test_a_prompt_alone_as_in_a_batch(way):
    model = language_model()
    together = model.generate(PROMPTS, max_new_tokens=7, **way, **BOTH)
    alone = [model.generate([prompt], max_new_tokens=7, **way, **BOTH)[0] for prompt in PROMPTS]
    assert together == alone


# Without penalties.


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_traced_without_penalties(way, monkeypatch):
    def fail(*arguments):
        raise AssertionError("called")

    for name in ("__call__", "_penalise", "_repeated"):
        monkeypatch.setattr(Repetition, name, fail)
    monkeypatch.setattr(LayerDecoder, "prompt", fail)
    found = Searcher(transformer(), SearchOptions(**way, **LIMITS))(sentences(2))
    assert len(found.ids) == 2
    with pytest.raises(AssertionError, match="called"):
        Searcher(transformer(), SearchOptions(**way, **BOTH, **LIMITS))(sentences(2))


# Nodes of a traced search before there were penalties, of tensorflow 2.21 and keras 3.15.
NODES = (914, 937, 951, 1358)


@pytest.mark.parametrize(("way", "nodes"), list(zip(WAYS, NODES, strict=True)))
def test_a_search_without_penalties_has_no_more_nodes(way, nodes, backend):
    if backend != "tensorflow":
        pytest.skip("other backends have no graph of nodes")
    import tensorflow as tf

    if (keras.__version__[:4], tf.__version__[:4]) != ("3.15", "2.21"):
        pytest.skip("other versions have other nodes")
    model, options = transformer(), SearchOptions(**way)

    def run(source_ids, limits, numbers):
        steps = tf.reduce_max(limits) + 1
        arrays = (source_ids, limits, numbers)
        return tuple(search(decoder_for(model), *arrays, options=options, steps=steps)[0])

    shapes = [tf.TensorSpec(shape, tf.int32) for shape in ([None, None], [None], [None])]
    graph = tf.function(run, input_signature=shapes, autograph=False).get_concrete_function().graph
    graph = graph.as_graph_def()
    found = len(graph.node) + sum(len(each.node_def) for each in graph.library.function)
    assert found <= nodes
