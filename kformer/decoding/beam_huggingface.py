"""Beam search as Hugging Face's `generate` runs it, so that an imported model says what it says
there.

It differs from `beam_search`, which a hypothesis' score decides alone:

- A score is divided by `length^alpha`, the end token counted, in place of GNMT's `((5 + length) /
  6)^alpha`.
- The 2 K best of all continuations, endings among them, are drawn up. Endings count only among the
  first K of them; the best K that do not end live on. (There, every ending competes for the
  finished set.)
- `early_stopping` says when a sentence with K finished hypotheses is done: `True` at once; `False`
  when the best live one, at its present length, ranks below the worst finished one; `"never"` when
  it would even at the longest length. The first two may stop before the best hypothesis is found.

Shape letters: B sentences, K beams, C candidates, V vocabulary, L the longest hypothesis.
"""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.beams import (
    IMPOSSIBLE,
    constrain,
    empty_beams,
    finished,
    is_open,
    last_tokens,
    merge_finished,
    write_token,
)
from kformer.decoding.decoders import reorder
from kformer.decoding.loop import run_steps
from kformer.utils.backend import pick, row_offsets, stable_top_k


class HuggingFaceBeamState(NamedTuple):
    """What the search knows after `length` steps. Both sets are sorted, best first; empty places
    score minus infinity.
    """

    length: Any  # int32 scalar: tokens in every live hypothesis
    live_ids: Any  # int32 [B, K, L]
    live_scores: Any  # float32 [B, K], sums of log-probabilities
    finished_ids: Any  # int32 [B, K, L]
    finished_scores: Any  # float32 [B, K]
    finished_ranks: Any  # float32 [B, K], scores divided by length^alpha
    limits: Any  # int32 [B], the most tokens before the end token
    is_open: Any  # bool [B]: the sentence still takes finished hypotheses
    decoder: Any  # the step function's state, rows [B K]


def huggingface_beam_search(
    step,
    state,
    limits,
    *,
    beam_size,
    start_id,
    end_id,
    pad_id,
    steps,
    alpha=1.0,
    early_stopping=False,
    min_length=0,
    prefix=(),
    forbidden=(),
    renormalize=False,
    forced_end=False,
    drop_finished=False,
    return_done=False,
):
    """Finds hypotheses by Hugging Face's rules.

    Args:
        step: function (ids int32 `[B K]`, state) -> (logits or log-probabilities `[B K, V]`,
            state).
        state: the step function's state, with `[B K]` rows, the K rows of a sentence next to each
            other.
        limits: int32 tensor `[B]`; a hypothesis has at most one token more, its end token or,
            without `forced_end`, any other.
        beam_size: K.
        start_id, end_id, pad_id: ids; the results are filled up with `pad_id`.
        steps: L, at least `max(limits) + 1`; an int, or a scalar tensor where shapes are dynamic.
        alpha: exponent of the length.
        early_stopping: `True`, `False` or `"never"`, see above.
        min_length: tokens that must stand before an end token.
        prefix: ids that every hypothesis begins with; they cost nothing.
        forbidden: ids that are never proposed.
        renormalize: whether the probabilities of what may be proposed sum to one again.
        forced_end: whether the last token that the limit allows is an end token, which then costs
            nothing.
        drop_finished, return_done: as for `beam_search`.

    Returns:
        As `beam_search`: ids int32 `[B, K, L]`, scores and ranks float32 `[B, K]`, best first by
        rank.

    References:
        The documentation of `generate` and of its `GenerationConfig` in the library `transformers`.
    """
    ids, live_scores, impossible = empty_beams(limits, beam_size, steps, pad_id)
    beams = HuggingFaceBeamState(
        length=ops.zeros((), dtype="int32"),
        live_ids=ids,
        live_scores=live_scores,
        finished_ids=ids,
        finished_scores=impossible,
        finished_ranks=impossible,
        limits=limits,
        is_open=ops.ones((ops.shape(limits)[0],), dtype="bool"),
        decoder=state,
    )

    def advance(beams):
        last = last_tokens(beams.live_ids, beams.length, start_id)
        logits, decoder = step(ops.reshape(last, (-1,)), beams.decoder)
        at_limit = beams.length >= beams.limits  # [B]
        logits = ops.cast(logits, "float32")
        log_probabilities = constrain(
            logits, beams.length, end_id, min_length, prefix, forbidden, renormalize
        )
        if forced_end:
            is_end = ops.arange(log_probabilities.shape[-1], dtype="int32") == end_id
            rows_at_limit = ops.expand_dims(ops.repeat(at_limit, beam_size), 1)
            log_probabilities = ops.where(
                rows_at_limit, ops.where(is_end, 0.0, IMPOSSIBLE), log_probabilities
            )
        scores, tokens, parents = _candidates(log_probabilities, beams.live_scores)  # [B, C]
        ids = write_token(
            pick(beams.live_ids, parents), beams.length, ops.expand_dims(tokens, 2)
        )  # [B, C, L]
        ends = ops.logical_or(tokens == end_id, ops.expand_dims(at_limit, 1))

        is_among_first = ops.arange(tokens.shape[1], dtype="int32") < beam_size
        counts = ops.logical_and(
            ops.logical_and(ends, is_among_first), ops.expand_dims(beams.is_open, 1)
        )
        length_then = ops.cast(beams.length + 1, "float32")
        counted = ops.where(counts, scores, IMPOSSIBLE)
        finished_ids, finished_scores, finished_ranks = merge_finished(
            beams, ids, counted, counted / length_then**alpha
        )

        live_scores, places = stable_top_k(ops.where(ends, IMPOSSIBLE, scores), beam_size)
        rows = ops.reshape(
            pick(parents, places) + row_offsets(ops.shape(parents)[0], beam_size), (-1,)
        )
        worst = finished_ranks[:, -1]  # minus infinity until K hypotheses are finished
        longest = (
            ops.cast(beams.limits + 1, "float32")
            if early_stopping == "never" and alpha > 0
            else length_then
        )
        can_win = live_scores[:, 0] / longest**alpha > worst
        if early_stopping is True:
            can_win = ops.logical_and(can_win, ops.isinf(worst))
        return HuggingFaceBeamState(
            length=beams.length + 1,
            live_ids=pick(ids, places),
            live_scores=live_scores,
            finished_ids=finished_ids,
            finished_scores=finished_scores,
            finished_ranks=finished_ranks,
            limits=beams.limits,
            is_open=ops.logical_and(
                ops.logical_and(can_win, beams.is_open), ops.logical_not(at_limit)
            ),
            decoder=reorder(decoder, rows),
        )

    found, is_done = run_steps(
        advance, is_open, finished, beams, steps, width=beam_size if drop_finished else None
    )
    return (*found, is_done) if return_done else found


def _candidates(log_probabilities, live_scores):
    """Scores, tokens and parents (beam numbers) of the 2 K best continuations of a sentence, each
    `[B, C]`.
    """
    sentences, beam_size = ops.shape(live_scores)[0], live_scores.shape[1]
    width = min(2 * beam_size, log_probabilities.shape[-1])
    best, tokens = stable_top_k(log_probabilities, width)  # [B K, width]
    scores = ops.reshape(best, (sentences, beam_size, width)) + ops.expand_dims(live_scores, 2)
    scores, places = stable_top_k(
        ops.reshape(scores, (sentences, beam_size * width)), min(2 * beam_size, beam_size * width)
    )
    return (
        scores,
        pick(ops.reshape(tokens, (sentences, beam_size * width)), places),
        places // width,
    )
