"""Translations that differ in the first token after a prefix."""

import dataclasses

import numpy as np
from keras import ops

from kformer.decoding.batching import pad_shape
from kformer.decoding.constraints import IMPOSSIBLE, SpecialTokens, log_softmax
from kformer.decoding.shortlist import Columns
from kformer.translating.translation import Hypothesis, Translation
from kformer.utils import backend
from kformer.utils.checks import check_whole
from kformer.utils.rows import pad_rows


class Alternatives:
    """Searches translations of each text that go on from its prefix in several ways.

    Args:
        search: `TextSearch`.

    Call arguments:
        texts: list of str.
        constraints: `TextConstraints`.
        count: int. The number of ways: the most probable tokens after the prefix.
        options: `SearchOptions`.
        batching: the batch size in sentences and in tokens, the indices of the texts, and
            `progress`, as of `TextSearch`.

    Returns:
        List of `Translation` with `count` hypotheses, those of likelier tokens first; fewer where
        fewer tokens are allowed.

    Raises:
        ValueError: `count` is below 1, or the options ask for samples.
    """

    def __init__(self, search):
        self._search, self._model = search, search.model
        self._logits = backend.compile_function(self._logits_after, search.model)

    def __call__(self, texts, constraints, count, options, batching):
        count = check_whole("alternatives", count)
        if options.sampling:
            raise ValueError("alternatives are searched for, not sampled: leave sampling out.")
        *sizes, _, progress = batching
        rows, truncated = self._search.source_rows(texts, options)
        ways = [[] for _ in texts]  # Of each text pairs of a token and its log-probability.
        filled = [i for i, row in enumerate(rows) if row]
        constraints.check_fit(filled, options, more=1)
        for start in range(0, len(filled), sizes[0]):
            batch = filled[start : start + sizes[0]]
            prefixes = [[*options.prefix_ids, *constraints.prefix(i)] for i in batch]
            logits = self._next_logits([rows[i] for i in batch], prefixes)
            for i, prefix, row in zip(batch, prefixes, logits, strict=True):
                values, scores = self._values(constraints, i, prefix, options, row)
                best = np.argsort(-values, kind="stable")[:count]
                ways[i] = [(int(j), float(scores[j])) for j in best if np.isfinite(values[j])]
        end_id = self._model.end_id
        branches = [(i, token) for i in filled for token, _ in ways[i] if token != end_id]
        inputs = [texts[i] for i, _ in branches], constraints.extended(branches)
        advance = None if progress is None else lambda done: progress(done // count)
        continued = self._search(*inputs, options, *sizes, progress=advance)
        continued = dict(zip(branches, continued, strict=True))
        results = []
        for i, was_cut in enumerate(truncated):
            hypotheses = [Hypothesis("", 0.0, 0.0, [])] * (0 if ways[i] else count)
            for token, value in ways[i]:
                if token == end_id:
                    ids = [*options.prefix_ids, *constraints.prefix(i), token]
                    (text,) = self._search.tokenizer.detokenize([ids])
                    hypothesis = Hypothesis(text, 0.0, 0.0, ids)
                else:
                    hypothesis = continued[i, token].hypotheses[0]
                score = hypothesis.score + value
                rank = score / options.penalty(len(hypothesis.ids))
                hypotheses.append(hypothesis._replace(score=score, rank=rank))
            results.append(Translation(hypotheses, was_cut))
        return results

    def _values(self, text_constraints, index, prefix, options, logits):
        """Returns what a search chooses the token after a prefix by, and its log-probabilities:
        two arrays `[V]` from logits `[V]`.
        """
        model, has_beam = self._model, options.beam_size > 1
        constraints = Columns(SpecialTokens.of(model), options).constraints
        forbidden = text_constraints.forbidden_after(index, prefix)
        constraints = dataclasses.replace(
            constraints,
            prefix=(),
            forbidden=frozenset(constraints.forbidden_ids | forbidden),
            at_limit="end" if has_beam else constraints.at_limit,
        )
        logits = plain_logits = ops.convert_to_tensor(logits[None])
        history = [np.array([ids], "int32") for ids in ([model.start_id], prefix)]
        length, history = len(prefix), [ops.convert_to_tensor(ids) for ids in history]
        if constraints.repetition and not has_beam:  # Greedy search penalises logits.
            logits, history = constraints.penalize(logits, length, *history), None
        values = constraints.log_probabilities(logits, length, history)
        is_final = has_beam or constraints.renormalize
        log_probabilities = values if is_final else log_softmax(plain_logits)
        values = np.array(values[0])
        if text_constraints.has_phrases(index):  # It may not end before they have occurred.
            values[model.end_id] = IMPOSSIBLE
        return values, np.array(log_probabilities[0])

    def _logits_after(self, source_ids, target_ids, positions):
        """The logits `[B, V]` that follow target ids up to positions `[B, 1, 1]`."""
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        logits = self._model(inputs, training=False)
        return ops.cast(ops.take_along_axis(logits, positions, axis=1)[:, 0], "float32")

    def _next_logits(self, rows, prefixes):
        """Returns the logits `[B, V]` of the tokens after prefixes, an array."""
        model = self._model
        source_ids = pad_rows(rows, model.pad_id)
        target_ids = pad_rows([[model.start_id, *prefix] for prefix in prefixes], model.pad_id)
        positions = np.array([len(prefix) for prefix in prefixes], "int32").reshape(-1, 1, 1)
        if backend.uses_static_shapes():
            source_ids, target_ids = (pad_shape(ids, model) for ids in (source_ids, target_ids))
            positions = np.pad(positions, ((0, len(source_ids) - len(rows)), (0, 0), (0, 0)))
        return np.array(self._logits(source_ids, target_ids, positions)[: len(rows)])
