"""Search with a model: padded source ids in, hypotheses out."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from kformer.decoding import drivers
from kformer.decoding.beam_search import beam_search, length_penalty
from kformer.decoding.huggingface_search import huggingface_beam_search
from kformer.decoding.options import TOKEN_LISTS
from kformer.decoding.sampling import sample
from kformer.decoding.shortlist import Columns
from kformer.decoding.step import begin

# Where shapes are static, there is room at first for so many more tokens than the source has; few
# translations need more.
_SPARE = 32


class SearchResult(NamedTuple):
    """Hypotheses of B sentences, N each, best first."""

    ids: Any  # int32 [B, N, L]: tokens, end token, padding
    scores: Any  # float32 [B, N]: sums of log-probabilities, the end token's included
    ranks: Any  # float32 [B, N]: the same after the length penalty


def search(
    model,
    source_ids,
    limits,
    row_numbers,
    *,
    options,
    steps,
    seed=None,
    drop_finished=None,
    return_done=False,
    kernels=None,
):
    """Searches with tensors; what `Searcher` compiles and the SavedModel holds.

    Args:
        model: a `Transformer`.
        source_ids: int32 tensor `[B, S]`, padded.
        limits: int32 tensor `[B]`, the most tokens of each sentence's hypotheses.
        row_numbers: int32 tensor `[B]`, the sentences' numbers, on which random draws depend.
        options: `SearchOptions`.
        steps: L, at least `max(limits) + 1`; an int, or a scalar tensor where shapes are dynamic.
        seed: int32 scalar tensor, of the draws; `None` for the options'.
        drop_finished: whether the rows of sentences that are done are no longer computed; `None`
            for wherever shapes may change inside a loop. The result is the same.
        return_done: whether to tell also which sentences are done; `steps` may then be fewer.
        kernels: in which form an `InferenceModel` has its weights; `None` for the backend's plain
            one.

    Returns:
        `SearchResult` of tensors; with `return_done` also a boolean tensor `[B]`.
    """
    sentences, width = ops.shape(source_ids)[0], options.rows_per_sentence
    columns, is_ours = Columns(model, options), options.mode == "kformer"
    step, state = begin(model, source_ids, width, steps, kernels, columns.tokens)
    step = columns.step(step)
    common = {
        **columns.special,
        "steps": steps,
        "min_length": options.min_length,
        "prefix": columns.prefix,
        "forbidden": columns.forbidden,
        "renormalize": options.renormalize,
        "drop_finished": not drivers.uses_static_shapes()
        if drop_finished is None
        else drop_finished,
        "return_done": True,
    }
    if options.beam_size > 1 and not options.sampling:
        common |= {"beam_size": options.beam_size, "alpha": options.length_penalty}
        if is_ours:
            stopping = {"early_stopping": options.early_stopping is True}
            found = beam_search(step, state, limits, n_best=options.n_best, **stopping, **common)
        else:
            stopping = {"early_stopping": options.early_stopping, "forced_end": options.forced_end}
            found = huggingface_beam_search(step, state, limits, **stopping, **common)
        *found, is_done = found
        ids, scores, ranks = (part[:, : options.n_best] for part in found)
        result = SearchResult(columns.ids(ids), scores, ranks)
        return (result, is_done) if return_done else result
    draws = ops.tile(ops.arange(width, dtype="int32"), [sentences])
    ids, scores, is_done = sample(
        step,
        state,
        ops.repeat(limits, width),
        forced_end=is_ours or options.forced_end,
        charges_forced_end=is_ours,
        greedy=not options.sampling,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed if seed is None else seed,
        row_numbers=ops.repeat(row_numbers, width) * width + draws,
        rows_per_sentence=width,
        **common,
    )
    ids = columns.ids(ids)
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
    if width > 1:
        order = ops.argsort(-ranks, axis=1)
        ids = ops.take_along_axis(ids, ops.expand_dims(order, 2), axis=1)
        scores, ranks = (ops.take_along_axis(values, order, axis=1) for values in (scores, ranks))
    result = SearchResult(ids, scores, ranks)
    return (result, is_done) if return_done else result


def check_options(model, options):
    """Refuses options that a model cannot serve.

    Raises:
        ValueError: the options name a token that the model's vocabulary lacks, or allow more tokens
            than there are learned positions.
    """
    for name in TOKEN_LISTS:
        if max(getattr(options, name), default=-1) >= model.target_vocabulary_size:
            unknown = next(
                token for token in getattr(options, name) if token >= model.target_vocabulary_size
            )
            raise ValueError(
                f"{name} holds {unknown}, but the model's target vocabulary ends at {model.target_vocabulary_size - 1}; "
                "give ids of that vocabulary."
            )
    # Beyond its table a learned position has no vector: the backends would fail obscurely, or go on
    # with NaN.
    if (
        model.get_config()["position_encoding"] == "learned"
        and options.max_length >= model.max_length
    ):
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
        row_numbers: integer array `[B]`, numbers on which a sentence's random draws depend; the row
            numbers by default.
        options: `SearchOptions` of this call, which must have the same `compiled_part`; the
            searcher's by default.

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

    def _search(self, source_ids, limits, row_numbers, seed, steps=None):
        if steps is None:
            steps = ops.max(limits, initial=0) + 1
        return search(
            self.model,
            source_ids,
            limits,
            row_numbers,
            options=self.options,
            steps=steps,
            seed=seed,
            return_done=True,
        )

    def __call__(self, source_ids, row_numbers=None, options=None):
        options = self.options if options is None else options
        source_ids = np.asarray(source_ids, dtype="int32")
        rows = len(source_ids)
        if row_numbers is None:
            row_numbers = np.arange(rows)
        row_numbers = np.asarray(row_numbers, dtype="int32")
        lengths = (source_ids != self.model.pad_id).sum(axis=1)
        limits = options.limits(lengths).astype("int32")
        if not rows:
            width = options.n_best
            empty = np.zeros((0, width), dtype="float32")
            return SearchResult(np.zeros((0, width, 1), dtype="int32"), empty, empty)
        seed = np.int32(options.seed)
        if not drivers.uses_static_shapes():
            return self._run(source_ids, limits, row_numbers, seed)[0]
        # Few shapes, few compilations: a length is padded as far as to be one of few, and the steps
        # depend on it alone.
        length = drivers.padded_length(source_ids.shape[1], self.model.max_length)
        source_ids = np.pad(
            source_ids,
            ((0, 0), (0, length - source_ids.shape[1])),
            constant_values=self.model.pad_id,
        )
        most = drivers.round_up(int(options.limits(np.array([length]))[0]) + 1, 16)
        # Every step costs as much as the cache is long, so the few sentences that need more steps
        # are searched anew with room for them.
        steps = min(most, drivers.round_up(max(length + _SPARE, options.min_length + 16), 16))
        result, is_done = self._search_padded(source_ids, limits, row_numbers, seed, steps)
        if is_done.all():
            return result
        left = np.flatnonzero(~is_done)
        rest, _ = self._search_padded(source_ids[left], limits[left], row_numbers[left], seed, most)
        ids = np.pad(
            result.ids, ((0, 0), (0, 0), (0, most - steps)), constant_values=self.model.pad_id
        )
        result = SearchResult(ids, result.scores.copy(), result.ranks.copy())
        for part, theirs in zip(result, rest, strict=True):
            part[left] = theirs
        return result

    def _search_padded(self, source_ids, limits, row_numbers, seed, steps):
        """A search with as many rows as the next power of two; its result and which sentences are
        done.
        """
        rows = len(source_ids)
        padding = drivers.padded_rows(rows) - rows
        source_ids = np.pad(source_ids, ((0, padding), (0, 0)), constant_values=self.model.pad_id)
        # A row of padding ends at once: it must not keep the others waiting.
        limits, row_numbers = (np.pad(numbers, (0, padding)) for numbers in (limits, row_numbers))
        result, is_done = self._run(source_ids, limits, row_numbers, seed, steps=steps)
        return SearchResult(*(part[:rows] for part in result)), is_done[:rows]
