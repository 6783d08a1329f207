"""Dynamic beam allocation: which hypotheses live on where phrases must occur.

Hypotheses that have come equally far with the phrases are a bank. They compete with each other
first of all, so that a phrase is not given up because its first token is improbable.

Shape letters: B sentences, K beams, M candidates, V vocabulary, W and X tokens of a hypothesis.
"""

from keras import ops

from kformer.decoding.constraints import IMPOSSIBLE
from kformer.decoding.repetition import NO_TOKEN
from kformer.decoding.row_constraints import (
    follow,
    next_tokens,
    of_parents,
    prefix_tokens,
    tokens_left,
)
from kformer.utils.backend import pick

# What a token that must occur is taken to cost, and what each better candidate of the same bank
# costs: of several values those with the highest BLEU on the validation set of Multi30k
# (docs/decisions.md). With a lower cost of tokens phrases come too late in a translation, with
# a higher one too early.
_COST, _NEXT_RANK = 5.0, 3.0
_NO_FIT = 1e6  # above all differences of scores


def allocated_continuations(own, values, beams, beam_size, constraints):
    """The continuations of live hypotheses that live on.

    A hypothesis goes on with one of its best tokens, or with one that a phrase needs. A candidate
    after which the phrases that it lacks would not fit the limit any more lives on only if there
    are too few others.

    Args:
        own: float32 tensor `[B K, V]`. The model's log-probabilities.
        values: float32 tensor `[B K, V]`. The same under the constraints.
        beams: `BeamState`.
        beam_size: int. K.
        constraints: `Constraints`.

    Returns:
        Scores, tokens and parents (beam numbers) `[B, K]`, best first.

    References:
        Post and Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation for
        neural machine translation". Hu et al. 2019, "Improved lexically constrained decoding for
        translation and monolingual rewriting" (in batches).
    """
    width, length, rows = min(beam_size, values.shape[-1]), beams.length, beams.rows
    best, tokens, _ = constraints.best_continuations(values, width, length)
    wanted, wanted_values = _wanted(own, values, tokens, beams, beam_size)
    tokens = ops.concatenate([tokens, wanted], axis=1)  # [B K, W + X]
    scores = ops.concatenate([best, wanted_values], axis=1) + ops.reshape(
        beams.live_scores, (-1, 1)
    )
    each = ops.shape(tokens)[1]
    sentences = ops.shape(beams.live_scores)[0]
    at_limit = ops.expand_dims(length >= beams.limits, 1)
    scores = ops.where(at_limit, IMPOSSIBLE, ops.reshape(scores, (sentences, -1)))  # [B, M]
    order = ops.cast(ops.argsort(-scores, axis=1), "int32")
    scores, tokens = pick(scores, order), pick(ops.reshape(tokens, (sentences, -1)), order)
    parents = order // each
    after = follow(rows, of_parents(beams.progress, parents), tokens, constraints.joins)
    left = tokens_left(rows, after)
    fits = left <= ops.expand_dims(beams.limits - length - 1, 1)
    # So many tokens at most are lacking: a size, since JAX needs one before the values are known.
    most = ops.shape(rows.phrases)[1] * ops.shape(rows.phrases)[3]
    chosen = _allocate(scores, left, fits, beam_size, most)
    return pick(scores, chosen), pick(tokens, chosen), pick(parents, chosen)


def _wanted(own, values, tokens, beams, beam_size):
    """The tokens `[B K, X]` that phrases need, and their values; those that are among `tokens`
    `[B K, W]` are impossible, so that no hypothesis is proposed twice.
    """
    wanted = next_tokens(beams.rows, beams.progress)  # [B, K, X]
    wanted = ops.reshape(wanted, (-1, ops.shape(wanted)[2]))
    indices = ops.arange(ops.shape(wanted)[1], dtype="int32")
    is_later = ops.expand_dims(indices, 1) > indices  # [X, X]
    repeats = wanted[:, :, None] == wanted[:, None, :]
    repeats = ops.any(ops.logical_and(repeats, is_later), axis=2)
    repeats = ops.logical_or(repeats, ops.any(wanted[:, :, None] == tokens[:, None, :], axis=2))
    is_new = ops.logical_and(wanted != NO_TOKEN, ops.logical_not(repeats))
    wanted = ops.maximum(wanted, 0)
    found = pick(values, wanted)
    # What must occur goes before what is forbidden, but never before the prefix.
    allowed = ops.isinf(found)
    if not isinstance(beams.rows.prefix, tuple):
        is_free = prefix_tokens(beams.rows, beams.length, beam_size) == NO_TOKEN
        allowed = ops.logical_and(allowed, is_free)
    found = ops.where(allowed, pick(own, wanted), found)
    return wanted, ops.where(is_new, found, IMPOSSIBLE)


def _allocate(scores, left, fits, beam_size, most):
    """The indices `[B, K]` of the candidates that live on, best first.

    Args:
        scores: float32 tensor `[B, M]`, best first.
        left: int32 tensor `[B, M]`. The tokens that each candidate lacks: its bank.
        fits: boolean tensor `[B, M]`. Whether these fit the limit.
        beam_size: int. K.
        most: int, or scalar tensor where shapes are dynamic. The most tokens that are lacking.
    """
    is_in = left[..., None] == ops.arange(most + 1, dtype="int32")  # [B, M, banks]
    exists = scores > IMPOSSIBLE
    is_in = ops.cast(ops.logical_and(is_in, exists[..., None]), "int32")
    rank = ops.sum(ops.cumsum(is_in, axis=1) * is_in, axis=2) - 1  # within the bank
    # There may be more banks than beams. So candidates are ordered by their score, less the usual
    # cost of the tokens that they lack and a cost of their rank within the bank.
    cost = _COST * ops.cast(left, "float32") - scores
    cost = cost + _NEXT_RANK * ops.cast(rank, "float32")
    cost = ops.where(fits, cost, cost + _NO_FIT)
    key = ops.where(exists, cost, -IMPOSSIBLE)
    chosen = ops.argsort(key, axis=1)[:, :beam_size]
    # There are at least K candidates, but a graph does not know.
    chosen = ops.reshape(chosen, (-1, beam_size))
    return ops.cast(ops.sort(chosen, axis=1), "int32")
