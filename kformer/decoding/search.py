"""Search with a model: padded source ids in, hypotheses out."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from kformer.decoding import drivers
from kformer.decoding.beam_search import beam_search, length_penalty
from kformer.decoding.huggingface_search import huggingface_beam_search
from kformer.decoding.sampling import sample
from kformer.decoding.step import DecoderState, decoder_step


class SearchResult(NamedTuple):
    """Hypotheses of B sentences, N each, best first."""

    ids: Any  # int32 [B, N, L]: tokens, end token, padding
    scores: Any  # float32 [B, N]: sums of log-probabilities, the end token's included
    ranks: Any  # float32 [B, N]: the same after the length penalty


def search(model, source_ids, limits, row_numbers, *, options, steps):
    """Searches with tensors; what `Searcher` compiles and the SavedModel holds.

    Args:
        model: a `Transformer`.
        source_ids: int32 tensor `[B, S]`, padded.
        limits: int32 tensor `[B]`, the most tokens of each sentence's hypotheses.
        row_numbers: int32 tensor `[B]`, the sentences' numbers, on which random draws depend.
        options: `SearchOptions`.
        steps: L, at least `max(limits) + 1`; an int, or a scalar tensor where shapes are dynamic.

    Returns:
        `SearchResult` of tensors.
    """
    sentences, width = ops.shape(source_ids)[0], options.rows_per_sentence
    encoded, source_mask = model.encode(source_ids)
    cache = model.init_cache(encoded, source_mask, rows=sentences * width, max_length=steps if drivers.uses_static_shapes() else None)
    state = DecoderState(cache, ops.zeros((), dtype="int32"))
    is_ours = options.mode == "kformer"
    forbidden = set(options.forbidden_ids)
    if is_ours:
        forbidden |= {model.start_id, model.pad_id} - {model.end_id}
    common = {
        "start_id": model.start_id,
        "end_id": model.end_id,
        "pad_id": model.pad_id,
        "steps": steps,
        "min_length": options.min_length,
        "prefix": options.prefix_ids,
        "forbidden": forbidden,
        "renormalize": options.renormalize,
    }
    if options.beam_size > 1 and not options.sampling:
        common |= {"beam_size": options.beam_size, "alpha": options.length_penalty}
        if is_ours:
            found = beam_search(decoder_step(model), state, limits, n_best=options.n_best, **common)
        else:
            stopping = {"early_stopping": options.early_stopping, "forced_end": options.forced_end}
            found = huggingface_beam_search(decoder_step(model), state, limits, **stopping, **common)
        ids, scores, ranks = found
        return SearchResult(ids[:, : options.n_best], scores[:, : options.n_best], ranks[:, : options.n_best])
    draws = ops.tile(ops.arange(width, dtype="int32"), [sentences])
    ids, scores = sample(
        decoder_step(model),
        state,
        ops.repeat(limits, width),
        forced_end=is_ours or options.forced_end,
        charges_forced_end=is_ours,
        greedy=not options.sampling,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        row_numbers=ops.repeat(row_numbers, width) * width + draws,
        **common,
    )
    # Up to the end token, not up to padding: some models pad with the end token.
    is_end = ops.equal(ids, model.end_id)
    lengths = ops.argmax(ops.cast(is_end, "int32"), axis=1) + 1
    if is_ours:
        ranks = scores / length_penalty(lengths, options.length_penalty)
    else:
        lengths = ops.where(ops.any(is_end, axis=1), lengths, ops.repeat(limits, width) + 1)
        ranks = scores / ops.cast(lengths, "float32") ** options.length_penalty
    ids = ops.reshape(ids, (sentences, width, ops.shape(ids)[1]))
    scores, ranks = (ops.reshape(values, (sentences, width)) for values in (scores, ranks))
    if width == 1:
        return SearchResult(ids, scores, ranks)
    order = ops.argsort(-ranks, axis=1)
    return SearchResult(
        ops.take_along_axis(ids, ops.expand_dims(order, 2), axis=1),
        ops.take_along_axis(scores, order, axis=1),
        ops.take_along_axis(ranks, order, axis=1),
    )


def check_options(model, options):
    """Refuses options that a model cannot serve.

    Raises:
        ValueError: the options name a token that the model's vocabulary lacks, or allow more tokens than there are learned
            positions.
    """
    for name in ("forbidden_ids", "prefix_ids"):
        unknown = [token for token in getattr(options, name) if token >= model.target_vocabulary_size]
        if unknown:
            raise ValueError(
                f"{name} holds {unknown[0]}, but the model's target vocabulary ends at {model.target_vocabulary_size - 1}; "
                "give ids of that vocabulary."
            )
    # Beyond its table a learned position has no vector: the backends would fail obscurely, or go on with NaN.
    if model.get_config()["position_encoding"] == "learned" and options.max_length >= model.max_length:
        raise ValueError(
            f"The model has {model.max_length} learned positions, which hold the start token and {model.max_length - 1} more, "
            f"but max_length is {options.max_length}; set it to at most {model.max_length - 1}."
        )


class Searcher:
    """A model and options, compiled where the backend compiles; call it with NumPy arrays.

    Args:
        model: a `Transformer`.
        options: `SearchOptions`.

    Call arguments:
        source_ids: integer array `[B, S]`, padded with the model's `pad_id`.
        row_numbers: integer array `[B]`, numbers on which a sentence's random draws depend; the row numbers by default.

    Returns:
        `SearchResult` of NumPy arrays.

    Raises:
        ValueError: the options do not suit the model, see `check_options`.
    """

    def __init__(self, model, options):
        check_options(model, options)
        self.model = model
        self.options = options
        self._run = drivers.compile_function(self._search, model, static_argnames=("steps",))

    def _search(self, source_ids, limits, row_numbers, steps=None):
        if steps is None:
            steps = ops.max(limits, initial=0) + 1
        return search(self.model, source_ids, limits, row_numbers, options=self.options, steps=steps)

    def __call__(self, source_ids, row_numbers=None):
        source_ids = np.asarray(source_ids, dtype="int32")
        rows = len(source_ids)
        if row_numbers is None:
            row_numbers = np.arange(rows)
        row_numbers = np.asarray(row_numbers, dtype="int32")
        lengths = (source_ids != self.model.pad_id).sum(axis=1)
        limits = self.options.limits(lengths).astype("int32")
        if not rows:
            width = self.options.n_best
            empty = np.zeros((0, width), dtype="float32")
            return SearchResult(np.zeros((0, width, 1), dtype="int32"), empty, empty)
        if not drivers.uses_static_shapes():
            return self._run(source_ids, limits, row_numbers)
        # Few shapes, few compilations: rows to a power of two, lengths to a multiple of 16.
        padded_rows = 1 << (rows - 1).bit_length()
        padded_length = drivers.padded_length(source_ids.shape[1], self.model.max_length)
        source_ids = np.pad(
            source_ids,
            ((0, padded_rows - rows), (0, padded_length - source_ids.shape[1])),
            constant_values=self.model.pad_id,
        )
        # A row of padding ends at once: it must not keep the others waiting.
        limits = np.pad(limits, (0, padded_rows - rows))
        row_numbers = np.pad(row_numbers, (0, padded_rows - rows))
        steps = drivers.round_up(int(limits.max()) + 1, 16)
        result = self._run(source_ids, limits, row_numbers, steps=steps)
        return SearchResult(*(part[:rows] for part in result))
