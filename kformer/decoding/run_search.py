"""A search with a decoder, in tensors: padded source ids in, hypotheses out."""

import dataclasses
import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.decoding.beam import beam_search
from kformer.decoding.beam_huggingface import huggingface_beam_search
from kformer.decoding.decoders import EnsembleDecoder, LayerDecoder, with_prefix
from kformer.decoding.fast.decoder import FastDecoder
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.decoding.row_constraints import is_empty
from kformer.decoding.sampling import Sampling, sample
from kformer.decoding.shortlist import Columns, Lists
from kformer.models.ensemble import Ensemble
from kformer.utils import backend
from kformer_options.names import named


class SearchResult(NamedTuple):
    """Hypotheses of B sentences, N each, best first."""

    ids: Any  # int32 [B, N, L]: tokens, end token, padding
    scores: Any  # float32 [B, N]: sums of log-probabilities, the end token's included
    ranks: Any  # float32 [B, N]: the same after the length penalty


def decoder_for(model, ops=None):
    """Returns the fastest decoder of a model on the backend in use.

    Args:
        model: a `Transformer`, an `Ensemble` of them, or a `TransformerDecoder`.
        ops: `kformer.decoding.fast.ops.FastOps`, default `None`. The operations of a `FastDecoder`;
            `None` for the backend's.

    Returns:
        `FastDecoder`, `LayerDecoder` or `EnsembleDecoder`. Its `reason` is a string where a model
        runs by its layers.

    Example:
        ```python
        model = kformer.Transformer.from_preset("tiny", vocabulary_size=100)
        kformer.decoding.decoder_for(model).name  # "fast" on TensorFlow and PyTorch
        ```
    """
    if isinstance(model, Ensemble):
        return EnsembleDecoder([decoder_for(each, ops) for each in model.models])
    reason = why_not_fast(model)
    return FastDecoder(model, ops) if reason is None else LayerDecoder(model, reason)


def search(
    decoder,
    source_ids,
    limits,
    row_numbers,
    *,
    options,
    steps,
    seed=None,
    drop_finished=None,
    rows=None,
    joins=None,
    length_penalties=None,
    prefix=None,
):
    """Searches with tensors: the function that `Searcher` compiles and a SavedModel contains.

    Args:
        decoder: a `Decoder`, see `decoder_for`.
        source_ids: int32 tensor `[B, S]`, padded.
        limits: int32 tensor `[B]`. The most tokens of each sentence's hypotheses.
        row_numbers: int32 tensor `[B]`. The numbers of the sentences, on which random numbers
            depend.
        options: `SearchOptions`.
        steps: int, or scalar tensor where shapes are dynamic. L, usually `max(limits) + 1`. After
            fewer steps some sentences may not be done.
        seed: int32 scalar tensor, default `None`. The seed of the random numbers; `None` for the
            options'.
        drop_finished: bool, default `None`. Whether the rows of sentences that are done are no
            longer computed; `None` for `True` where shapes may change inside a loop. The result is
            the same.
        rows: `RowConstraints` of tensors, default `None`. Constraints of single sentences, whose
            prefixes follow the options' `prefix_ids`. In the mode "huggingface" this package's own
            beam then searches, with that mode's length penalty. Lists alone leave the search as it
            is; one that samples, or has a shortlist, does not read them.
        joins: `Joins`, default `None`. Which tokens write no whole word, for `rows`.
        length_penalties: float32 tensor `[B]`, default `None`. The length penalty of each sentence
            in a beam search; `None` for the options'.
        prefix: int32 tensor `[B, P]`, default `None`. What the hypotheses of each sentence begin
            with, filled up with `NO_TOKEN`, in place of the options' `prefix_ids`. The tokens must
            not be forbidden, and there must be no shortlist.

    Returns:
        `SearchResult` of tensors, and a boolean tensor `[B]`: which sentences are done.

    Raises:
        ValueError: phrases must occur, but the options ask for no beam; or there is a shortlist.
    """
    if prefix is not None:
        options = dataclasses.replace(options, prefix_ids=())
    width, special, lists = options.rows_per_sentence, decoder.special, None
    if rows is not None and not is_empty(rows.listed):
        if not (options.sampling or options.shortlist):
            tokens = rows.listed, rows.prefix, rows.phrases, () if prefix is None else prefix
            tokens = [each for each in tokens if not is_empty(each)]
            lists = Lists(tokens, special, options, decoder.vocabulary_size)
        rows = rows._replace(listed=())
        rows = None if all(map(is_empty, rows)) else rows
    if rows is not None:
        _check_rows(rows, options)
    columns = Columns(special, options, lists and lists.union)
    constraints = columns.constraints
    if drop_finished is None:
        drop_finished = not backend.uses_static_shapes()
    arguments = source_ids, width, steps, columns.tokens
    if lists is None:
        step, state = decoder.begin(*arguments)
    else:
        limit = functools.partial(lists.limit, width=width)
        step, state = decoder.begin_changed(limit, *arguments)
    step = columns.step(step)
    prompt = columns.numbers(decoder.prompt(source_ids)) if constraints.repetition else None
    if rows is None and prefix is not None:
        step, state = with_prefix(step, state, ops.repeat(columns.numbers(prefix), width, axis=0))
    if rows is not None:
        if options.prefix_ids:
            prefix = ops.convert_to_tensor([options.prefix_ids], dtype="int32")
            prefix = ops.repeat(prefix, ops.shape(source_ids)[0], axis=0)
        if prefix is not None:
            if not is_empty(rows.prefix):
                prefix = ops.concatenate([prefix, rows.prefix], axis=1)
            rows = rows._replace(prefix=prefix)
        rows, joins = columns.rows(rows, joins)
        constraints = dataclasses.replace(constraints, prefix=(), by_row=True, joins=joins)
    common = {"steps": steps, "drop_finished": drop_finished}
    if options.beam_size > 1 and not options.sampling:
        common["prompt"] = prompt
        common["alpha"] = options.length_penalty if length_penalties is None else length_penalties
        beams = _search_beams(step, state, limits, constraints, options, rows, common)
        ids, scores, ranks = (values[:, : options.n_best] for values in beams[:3])
        return SearchResult(columns.ids(ids), scores, ranks), beams.is_done
    sampling = None
    if options.sampling:
        seed = options.seed if seed is None else seed
        sampling = Sampling(options.temperature, options.top_k, options.top_p, seed)
    numbers = ops.tile(ops.arange(width, dtype="int32"), [ops.shape(source_ids)[0]])
    limits = ops.repeat(limits, width)
    samples = sample(
        step,
        state,
        limits,
        constraints,
        sampling=sampling,
        row_numbers=ops.repeat(row_numbers, width) * width + numbers,
        rows_per_sentence=width,
        prompt=None if prompt is None else ops.repeat(prompt, width, axis=0),
        rows=keras.tree.map_structure(lambda x: ops.repeat(x, width, axis=0), rows or ()),
        **common,
    )
    ids, scores = columns.ids(samples.ids), samples.scores
    # Up to the end token, not up to padding: some models pad with the end token.
    is_end = ops.equal(ids, special.end_id)
    lengths = ops.argmax(ops.cast(is_end, "int32"), axis=1) + 1
    if options.mode == "huggingface":  # Its hypotheses may have no end token.
        lengths = ops.where(ops.any(is_end, axis=1), lengths, limits + 1)
    ranks = scores / options.penalty(ops.cast(lengths, "float32"))
    ids = ops.reshape(ids, (-1, width, ops.shape(ids)[1]))
    scores, ranks = (ops.reshape(values, (-1, width)) for values in (scores, ranks))
    if width > 1:
        order = ops.argsort(-ranks, axis=1)
        ids = ops.take_along_axis(ids, ops.expand_dims(order, 2), axis=1)
        scores, ranks = (ops.take_along_axis(values, order, axis=1) for values in (scores, ranks))
    return SearchResult(ids, scores, ranks), samples.is_done


def _search_beams(step, state, limits, constraints, options, rows, common):
    """Runs the beam search of the mode of the options; returns its `BeamResult`."""
    common["beam_size"] = options.beam_size
    if options.mode == "huggingface" and rows is None:
        common["early_stopping"] = options.early_stopping
        return huggingface_beam_search(step, state, limits, constraints, **common)
    return beam_search(
        step,
        state,
        limits,
        dataclasses.replace(constraints, at_limit="end"),
        n_best=options.n_best,
        early_stopping=options.early_stopping is True,
        rows=rows or (),
        penalty=lambda length, alpha: options.penalty(ops.cast(length, "float32"), alpha),
        **common,
    )


def _check_rows(rows, options):
    """Checks that a search with some options can keep the constraints of single sentences."""
    if not is_empty(rows.phrases) and (options.sampling or options.beam_size < 2):
        reason = f"{named('beam_size')} is {options.beam_size}: give at least 2"
        reason = "the search samples: search by a beam" if options.sampling else reason
        raise ValueError(f"Terms that must occur need a beam, but {reason}.")
    if options.shortlist:
        raise ValueError(
            "A search over a shortlist takes no terms or prefixes: leave the shortlist out."
        )
