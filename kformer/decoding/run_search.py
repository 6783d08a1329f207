"""A search with a model, in tensors: padded source ids in, hypotheses out."""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.beam import beam_search, length_penalty
from kformer.decoding.beam_huggingface import huggingface_beam_search
from kformer.decoding.decoders import begin
from kformer.decoding.sampling import sample
from kformer.decoding.shortlist import Columns
from kformer.utils import backend


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
        "drop_finished": not backend.uses_static_shapes()
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
