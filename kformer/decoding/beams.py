"""The arrays of hypotheses that both beam searches keep.

Shape letters: B sentences, K beams, L the longest hypothesis with its end token.
"""

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


class BeamResult(NamedTuple):
    """The result of a beam search; hypotheses are sorted by rank, best first."""

    ids: Any  # int32 [B, K, L]
    scores: Any  # float32 [B, K]; minus infinity where there is no hypothesis
    ranks: Any  # float32 [B, K], the scores after the length penalty
    is_done: Any  # bool [B]; `False` where the steps ran out before the sentence was done


def first_state(decoder_state, limits, beam_size, steps, pad_id, prompt=(), rows=()):
    """`BeamState` before the first step.

    All hypotheses are equal then. Only the first of a sentence may propose tokens, so the others
    score minus infinity.

    Args:
        decoder_state: the step function's state, with `[B K]` rows.
        limits: int32 tensor `[B]`.
        beam_size: int. K.
        steps: int or scalar tensor. L.
        pad_id: int. What the arrays of ids are filled with.
        prompt: int32 tensor `[B, P]`, default none. As `Constraints.first_prompt` returns it.
        rows: `RowConstraints`, default none.
    """
    sentences = ops.shape(limits)[0]
    ids = ops.full((sentences, beam_size, steps), pad_id, dtype="int32")
    impossible = ops.full((sentences, beam_size), IMPOSSIBLE, dtype="float32")
    is_first = ops.broadcast_to(ops.arange(beam_size) < 1, (sentences, beam_size))
    return BeamState(
        length=ops.zeros((), dtype="int32"),
        live_ids=ids,
        live_scores=ops.where(is_first, 0.0, impossible),
        finished_ids=ids,
        finished_scores=impossible,
        finished_ranks=impossible,
        limits=limits,
        is_open=ops.ones((sentences,), dtype="bool"),
        decoder=decoder_state,
        prompt=prompt,
        rows=rows,
        progress=first_progress(rows, beam_size) if rows else (),
    )


def run_beams(advance, beams, steps, drop_finished):
    """Runs a beam search.

    Args:
        advance: function of a `BeamState` to the one a step later.
        beams: `BeamState`, from `first_state`.
        steps: int or scalar tensor. L.
        drop_finished: bool. Whether sentences that are done are no longer computed.

    Returns:
        `BeamResult`.
    """
    hypotheses, is_done = run_steps(
        advance,
        lambda beams: beams.is_open,
        lambda beams: (beams.finished_ids, beams.finished_scores, beams.finished_ranks),
        beams,
        steps,
        width=beams.live_ids.shape[1] if drop_finished else None,
    )
    return BeamResult(*hypotheses, is_done)


def write_token(ids, position, token):
    """`ids` `[B, K, L]` with `token` (an int or `[B, K, 1]`) at a position of the last axis."""
    positions = ops.arange(ops.shape(ids)[2], dtype="int32")
    return ops.where(positions == position, token, ids)


def last_tokens(ids, length, start_id):
    """The last tokens `[B, K]` of hypotheses of `length` tokens; the start token at length 0."""
    return ops.where(length > 0, take(ids, ops.maximum(length - 1, 0), axis=2), start_id)


def decoder_rows(parents):
    """Decoder rows `[B K]` of the beams `parents` `[B, K]` of each sentence."""
    return ops.reshape(parents + row_offsets(ops.shape(parents)[0], parents.shape[1]), (-1,))


def merge_finished(beams, ids, scores, ranks):
    """The K best of a search's finished hypotheses and C more; of equal ranks the older is first.

    Args:
        beams: `BeamState`.
        ids: int32 tensor `[B, C, L]`. Those of the C more.
        scores, ranks: float32 tensors `[B, C]`. Those of the C more.

    Returns:
        ids, scores and ranks of the K best, sorted.
    """
    beam_size = beams.finished_ranks.shape[1]
    ranks, indices = stable_top_k(ops.concatenate([beams.finished_ranks, ranks], axis=1), beam_size)
    ids = pick(ops.concatenate([beams.finished_ids, ids], axis=1), indices)
    scores = pick(ops.concatenate([beams.finished_scores, scores], axis=1), indices)
    return ids, scores, ranks
