"""Translations that differ in the first token after a prefix."""

import dataclasses

import numpy as np
from keras import ops

from kformer.decoding.batching import padded_length, padded_rows
from kformer.decoding.constraints import IMPOSSIBLE, SpecialTokens, log_softmax
from kformer.decoding.shortlist import Columns
from kformer.translating.translation import Hypothesis, Translation, padded
from kformer.utils import backend
from kformer.utils.checks import check_whole


def alternative_translations(translator, texts, wanted, count, options, arguments):
    """The translations of each text that go on from its prefix in several ways.

    Args:
        translator: `kformer.Translator`.
        texts: list of str.
        wanted: `TextConstraints`.
        count: int. The number of ways: the most probable tokens after the prefix.
        options: `SearchOptions`.
        arguments: the batch size in sentences and in tokens, the first index, and `progress`, as of
            `Translator.translate`.

    Returns:
        List of `Translation` with `count` hypotheses, those of likelier tokens first; fewer where
        fewer tokens are allowed.

    Raises:
        ValueError: `count` is below 1, or the options ask for samples.
    """
    count = check_whole("alternatives", count)
    if options.sampling:
        raise ValueError("alternatives are searched for, not sampled: leave sampling out.")
    batch_size, batch_tokens, first_index, progress = arguments
    rows, truncated = translator._source_rows(texts, options)
    ways = [[] for _ in texts]  # of each text pairs of a token and its log-probability
    if translator._next is None:
        step = _next_logits(translator.model)
        translator._next = backend.compile_function(step, translator.model)
    filled = [i for i, row in enumerate(rows) if row]
    wanted.check_fit(filled, options, more=1)
    for start in range(0, len(filled), batch_size):
        batch = filled[start : start + batch_size]
        prefixes = [[*options.prefix_ids, *wanted.prefix(i)] for i in batch]
        found = _next_tokens(translator, [rows[i] for i in batch], prefixes)
        for i, prefix, logits in zip(batch, prefixes, found, strict=True):
            values, counted = _values(translator.model, wanted, i, prefix, options, logits)
            best = np.argsort(-values, kind="stable")[:count]
            best = [token for token in best if np.isfinite(values[token])]
            ways[i] = [(int(token), float(counted[token])) for token in best]
    end_id = translator.model.end_id
    branches = [(i, token) for i in filled for token, _ in ways[i] if token != end_id]
    indices = [i for i, _ in branches]
    continued = translator._translations(
        [texts[i] for i in indices],
        wanted.extended(branches),
        options,
        batch_size,
        batch_tokens,
        first_index,
        None if progress is None else lambda done: progress(done // count),
    )
    continued = dict(zip(branches, continued, strict=True))
    results = []
    for i, was_cut in enumerate(truncated):
        hypotheses = [Hypothesis("", 0.0, 0.0, [])] * (0 if ways[i] else count)
        for token, value in ways[i]:
            if token == end_id:
                ids = [*options.prefix_ids, *wanted.prefix(i), token]
                hypothesis = Hypothesis(translator.tokenizer.detokenize([ids])[0], 0.0, 0.0, ids)
            else:
                hypothesis = continued[i, token].hypotheses[0]
            score = hypothesis.score + value
            rank = score / options.penalty(len(hypothesis.ids))
            hypotheses.append(hypothesis._replace(score=score, rank=rank))
        results.append(Translation(hypotheses, was_cut))
    return results


def _values(model, wanted, index, prefix, options, logits):
    """What the next token after a prefix is chosen by, and the log-probabilities that count, as the
    search has them: two arrays `[V]` from logits `[V]`.
    """
    constraints = Columns(SpecialTokens.of(model), options).constraints
    has_beam = options.beam_size > 1
    constraints = dataclasses.replace(
        constraints,
        prefix=(),
        forbidden=frozenset(constraints.forbidden_ids | wanted.forbidden_after(index, prefix)),
        at_limit="end" if has_beam else constraints.at_limit,
    )
    logits = own = ops.convert_to_tensor(logits[None])
    length, history = len(prefix), [np.array([ids], "int32") for ids in ([model.start_id], prefix)]
    history = [ops.convert_to_tensor(ids) for ids in history]
    if constraints.repetition and not has_beam:  # Greedy search penalises logits.
        logits, history = constraints.penalize(logits, length, *history), None
    values = constraints.log_probabilities(logits, length, history)
    counted = values if has_beam or constraints.renormalize else log_softmax(own)
    values = np.array(values[0])
    if wanted.has_phrases(index):  # It may not end before they have occurred.
        values[model.end_id] = IMPOSSIBLE
    return values, np.array(counted[0])


def _next_logits(model):
    """A function of source ids, target ids and positions `[B, 1, 1]` to the logits `[B, V]` of the
    tokens after these positions.
    """

    def run(source_ids, target_ids, positions):
        logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
        return ops.cast(ops.take_along_axis(logits, positions, axis=1)[:, 0], "float32")

    return run


def _next_tokens(translator, rows, prefixes):
    """The logits `[B, V]` of the tokens after prefixes, an array."""
    model, count = translator.model, len(rows)
    source_ids = padded(rows, model.pad_id)
    target_ids = padded([[model.start_id, *prefix] for prefix in prefixes], model.pad_id)
    positions = np.array([len(prefix) for prefix in prefixes], "int32").reshape(-1, 1, 1)
    if backend.uses_static_shapes():
        padding = (0, padded_rows(count) - count)
        source_ids, target_ids = (
            np.pad(
                ids,
                (padding, (0, padded_length(ids.shape[1], model.max_length) - ids.shape[1])),
                constant_values=model.pad_id,
            )
            for ids in (source_ids, target_ids)
        )
        positions = np.pad(positions, (padding, (0, 0), (0, 0)))
    return np.array(translator._next(source_ids, target_ids, positions)[:count])
