"""Beam search over a step function.

Shape letters: B sentences, K beams, V vocabulary, L the longest hypothesis with its end token.
"""

from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.beams import (
    IMPOSSIBLE,
    best_tokens,
    constrain,
    empty_beams,
    finished,
    force_prefix,
    is_open,
    last_tokens,
    merge_finished,
    write_token,
)
from kformer.decoding.decoders import reorder
from kformer.decoding.loop import run_steps
from kformer.utils.backend import pick, row_offsets, stable_top_k


class BeamState(NamedTuple):
    """What the search knows after `length` steps. Both sets are sorted, best first; empty places
    score minus infinity.
    """

    length: Any  # int32 scalar: tokens in every live hypothesis
    live_ids: Any  # int32 [B, K, L]
    live_scores: Any  # float32 [B, K], sums of log-probabilities
    finished_ids: Any  # int32 [B, K, L], the end token included
    finished_scores: Any  # float32 [B, K], sums of log-probabilities, the end token's included
    finished_ranks: Any  # float32 [B, K], the same after the length penalty
    limits: Any  # int32 [B], the most tokens before the end token
    is_open: Any  # bool [B]: the sentence is not done
    decoder: Any  # the step function's state, rows [B K]


def length_penalty(length, alpha):
    """GNMT's divisor of a hypothesis of `length` tokens, the end token included: `((5 + length) /
    6)^alpha`.
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def beam_search(
    step,
    state,
    limits,
    *,
    beam_size,
    start_id,
    end_id,
    pad_id,
    steps,
    n_best=1,
    alpha=0.6,
    early_stopping=False,
    min_length=0,
    prefix=(),
    forbidden=None,
    renormalize=False,
    drop_finished=False,
    return_done=False,
):
    """Finds the hypotheses of the highest penalised log-probability that a beam of width K reaches.

    At each step every live hypothesis proposes two things: to end here, or to go on with one of its
    K best tokens. All endings compete for the K places of the finished set, all continuations for
    the K places of the live set. A finished hypothesis is never extended or scored again. A
    sentence is done when none of its live hypotheses could enter the `n_best` first places of its
    finished set any more, even if every further token were certain (or, with `early_stopping`, if
    none of them could by ending now at no cost). A hypothesis at its sentence's limit must end.

    Args:
        step: function (ids int32 `[B K]`, state) -> (logits or log-probabilities `[B K, V]`,
            state).
        state: the step function's state, with `[B K]` rows, the K rows of a sentence next to each
            other.
        limits: int32 tensor `[B]`, the most tokens of a hypothesis before its end token.
        beam_size: K.
        start_id, end_id, pad_id: ids; the results are filled up with `pad_id`.
        steps: L, at least `max(limits) + 1`; an int, or a scalar tensor where shapes are dynamic.
        n_best: how many of the best must be right (the others are what was found by then).
        alpha: exponent of the length penalty.
        early_stopping: whether a sentence is done as soon as its `n_best` hypotheses rank above the
            best live one at its present length. That takes fewer steps, and may miss a longer
            hypothesis that would have ranked higher.
        min_length: tokens that must stand before an end token.
        prefix: ids that every hypothesis begins with; they cost nothing.
        forbidden: ids that are never proposed; `None` for start and padding token.
        renormalize: whether the probabilities of what may be proposed sum to one again.
        drop_finished: whether sentences that are done are no longer computed, where shapes may
            change inside a loop. The step function then gets ever fewer rows.
        return_done: whether to tell also which sentences are done; `steps` may then be fewer.

    Returns:
        ids int32 `[B, K, L]`, scores float32 `[B, K]` (sums of log-probabilities, end token
        included), ranks float32 `[B, K]` (scores after the length penalty), best first by rank. A
        place that no hypothesis filled has scores of minus infinity. With `return_done` also a
        boolean tensor `[B]`.

    References:
        Wu et al. 2016, "Google's neural machine translation system", section 7.
    """
    ids, live_scores, impossible = empty_beams(limits, beam_size, steps, pad_id)
    beams = BeamState(
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

    def can_win(length, live_scores, ranks, limits):
        # Scores only fall, so a live hypothesis ranks highest under the shortest or the longest
        # length it may still get.
        best = live_scores[:, 0]
        attainable = best / length_penalty(length + 1, alpha)
        if not early_stopping:
            attainable = ops.maximum(attainable, best / length_penalty(limits + 1, alpha))
        return ops.greater(attainable, ranks[:, n_best - 1])

    def advance(beams):
        last = last_tokens(beams.live_ids, beams.length, start_id)
        logits, decoder = step(ops.reshape(last, (-1,)), beams.decoder)
        barred = {start_id, pad_id} - {end_id} if forbidden is None else set(forbidden)
        logits = ops.cast(logits, "float32")
        if renormalize:
            logits = constrain(
                logits, beams.length, end_id, min_length, prefix, barred, renormalize
            )
        else:  # The search below does the same to the few logits that matter.
            logits = force_prefix(logits, beams.length, prefix)
        end_scores, scores, tokens, parents = _proposals(
            logits, beams, beam_size, end_id, barred, min_length, len(prefix)
        )
        if (
            early_stopping
        ):  # Else nothing that comes can change the first places of a sentence that is done.
            end_scores = ops.where(ops.expand_dims(beams.is_open, 1), end_scores, IMPOSSIBLE)
        ended = write_token(beams.live_ids, beams.length, end_id)
        finished_ids, finished_scores, finished_ranks = merge_finished(
            beams, ended, end_scores, end_scores / length_penalty(beams.length + 1, alpha)
        )
        length = beams.length + 1
        rows = ops.reshape(parents + row_offsets(ops.shape(parents)[0], beam_size), (-1,))
        return BeamState(
            length=length,
            live_ids=write_token(
                pick(beams.live_ids, parents), beams.length, ops.expand_dims(tokens, 2)
            ),
            live_scores=scores,
            finished_ids=finished_ids,
            finished_scores=finished_scores,
            finished_ranks=finished_ranks,
            limits=beams.limits,
            is_open=ops.logical_and(
                beams.is_open, can_win(length, scores, finished_ranks, beams.limits)
            ),
            decoder=reorder(decoder, rows),
        )

    found, is_done = run_steps(
        advance, is_open, finished, beams, steps, width=beam_size if drop_finished else None
    )
    return (*found, is_done) if return_done else found


def _proposals(logits, beams, beam_size, end_id, barred, min_length, prefix_length):
    """What each live hypothesis proposes: to end, or to go on.

    Returns:
        The scores of ending here `[B, K]`; scores, tokens and parents (beam numbers) of the K best
        continuations, `[B, K]`.
    """
    width = min(beam_size, logits.shape[-1])
    # A token of the prefix may be one that is barred elsewhere.
    unless = beams.length < prefix_length if prefix_length else None
    # log-probability = logit - normaliser: only the few logits that matter are normalised.
    best, tokens, normaliser = best_tokens(
        logits, width, {*barred, end_id}, unless=unless
    )  # [B K, width], [B K, 1]
    log_ends = ops.reshape(logits[:, end_id : end_id + 1] - normaliser, (-1, beam_size))
    end_scores = beams.live_scores + log_ends
    if min_length:
        end_scores = ops.where(beams.length < min_length, IMPOSSIBLE, end_scores)
    scores = ops.reshape(best - normaliser, (-1, beam_size, width)) + ops.expand_dims(
        beams.live_scores, 2
    )
    at_limit = ops.expand_dims(beams.length >= beams.limits, 1)  # [B, 1]
    scores = ops.where(at_limit, IMPOSSIBLE, ops.reshape(scores, (-1, beam_size * width)))
    scores, places = stable_top_k(scores, beam_size)
    tokens = pick(ops.reshape(tokens, (-1, beam_size * width)), places)
    return end_scores, scores, tokens, places // width
