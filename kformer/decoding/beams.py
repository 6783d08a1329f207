"""The arrays of hypotheses that both beam searches keep.

Shape letters: B sentences, K beams, L the longest hypothesis with its end token.
"""

import numbers
from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.constraints import IMPOSSIBLE
from kformer.decoding.loop import run_steps
from kformer.decoding.row_constraints import first_progress
from kformer.utils.backend import pick, row_offsets, stable_top_k, take


class BeamState(NamedTuple):
    """The state of a beam search after `length` steps.

    Both sets of hypotheses are sorted, best first. An entry without a hypothesis scores minus
    infinity.
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
    prompt: Any = ()  # int32 [B, P] where repetition is penalised: the tokens before, right-aligned
    rows: Any = ()  # `RowConstraints` where sentences have their own
    progress: Any = ()  # `Progress` of the live hypotheses with them
    alpha: Any = ()  # float32 [B] where each sentence has a length penalty of its own


class BeamResult(NamedTuple):
    """The result of a beam search; hypotheses are sorted by rank, best first."""

    ids: Any  # int32 [B, K, L]
    scores: Any  # float32 [B, K]; minus infinity where there is no hypothesis
    ranks: Any  # float32 [B, K], the scores after the length penalty
    is_done: Any  # bool [B]; `False` where the steps ran out before the sentence was done


def run_beams(
    advance,
    state,
    limits,
    beam_size,
    steps,
    constraints,
    drop_finished,
    prompt=None,
    rows=(),
    alpha=(),
):
    """Runs a beam search; its other arguments and its returns are those of `beam_search`.

    Args:
        advance: function of a `BeamState` to the `BeamState` one step later.
    """
    sentences = ops.shape(limits)[0]
    ids = ops.full((sentences, beam_size, steps), constraints.special.pad_id, dtype="int32")
    impossible = ops.full((sentences, beam_size), IMPOSSIBLE, dtype="float32")
    # At first all hypotheses of a sentence are equal, so only the first one proposes tokens.
    is_first = ops.broadcast_to(ops.arange(beam_size) < 1, (sentences, beam_size))
    beams = BeamState(
        length=ops.zeros((), dtype="int32"),
        live_ids=ids,
        live_scores=ops.where(is_first, 0.0, impossible),
        finished_ids=ids,
        finished_scores=impossible,
        finished_ranks=impossible,
        limits=limits,
        is_open=ops.ones((sentences,), dtype="bool"),
        decoder=state,
        prompt=constraints.first_prompt(prompt, limits),
        rows=rows,
        progress=first_progress(rows, beam_size) if rows else (),
        alpha=() if isinstance(alpha, numbers.Real) else alpha,
    )
    hypotheses, is_done = run_steps(
        advance,
        lambda beams: beams.is_open,
        lambda beams: (beams.finished_ids, beams.finished_scores, beams.finished_ranks),
        beams,
        steps,
        width=beam_size if drop_finished else None,
    )
    return BeamResult(*hypotheses, is_done)


def penalized(scores, length, alpha, beams, penalty):
    """Returns scores `[B, ...]`, divided by the length penalties of their sentences.

    Args:
        scores: float32 tensor `[B, ...]`.
        length: int32 scalar tensor, or `[B]`. The tokens of the hypotheses.
        alpha: float, or the tensor `beams.alpha` of the beginning of the search.
        beams: `BeamState`.
        penalty: function of `length` and the exponents to the divisors.
    """
    if isinstance(alpha, numbers.Real):
        return scores / penalty(length, alpha)
    divisors = penalty(length, beams.alpha)
    return scores / ops.reshape(divisors, (-1,) + (1,) * (len(scores.shape) - 1))


def write_token(ids, position, token):
    """Returns ids `[B, K, L]` with `token` (int or `[B, K, 1]`) at a position of the last axis."""
    positions = ops.arange(ops.shape(ids)[2], dtype="int32")
    return ops.where(positions == position, token, ids)


def last_tokens(beams, start_id):
    """Returns the last token `[B K]` of each live hypothesis, at first the start token."""
    last = take(beams.live_ids, ops.maximum(beams.length - 1, 0), axis=2)
    return ops.reshape(ops.where(beams.length > 0, last, start_id), (-1,))


def decoder_rows(parents):
    """Returns the decoder's rows `[B K]` of the beams `parents` `[B, K]` of each sentence."""
    return ops.reshape(parents + row_offsets(ops.shape(parents)[0], parents.shape[1]), (-1,))


def add_finished(beams, ids, scores, ranks):
    """Adds C finished hypotheses to a search, and keeps the K best; of equal ranks the older.

    Args:
        beams: `BeamState`.
        ids: int32 tensor `[B, C, L]`.
        scores, ranks: float32 tensors `[B, C]`.

    Returns:
        `BeamState`.
    """
    beam_size = beams.finished_ranks.shape[1]
    ranks, indices = stable_top_k(ops.concatenate([beams.finished_ranks, ranks], axis=1), beam_size)
    return beams._replace(
        finished_ids=pick(ops.concatenate([beams.finished_ids, ids], axis=1), indices),
        finished_scores=pick(ops.concatenate([beams.finished_scores, scores], axis=1), indices),
        finished_ranks=ranks,
    )
