"""Dynamic beam allocation: which hypotheses live on where phrases must occur.

Hypotheses that lack the same number of tokens of the phrases form a bank. They compete with each
other first, so that a phrase is not given up because its first token is improbable.

Shape letters: B sentences, K beams, M candidates, V vocabulary, W and X tokens of a hypothesis.
"""

from keras import ops

from kformer.decoding import row_constraints
from kformer.decoding.constraints import IMPOSSIBLE
from kformer.decoding.repetition import NO_TOKEN
from kformer.utils.backend import pick

# The assumed cost of a token that must still occur, and of each better candidate in the same bank:
# of several values those with the highest BLEU on the validation set of Multi30k
# (docs/decisions.md). With a lower cost of tokens phrases come too late in a translation, with a
# higher one too early.
_TOKEN_COST, _RANK_COST = 5.0, 3.0
_NO_FIT = 1e6  # above all differences of scores


def allocated_continuations(log_probabilities, values, best, tokens, beams, joins):
    """The continuations of live hypotheses that live on.

    A hypothesis goes on with one of its best tokens, or with one that a phrase needs. A candidate
    whose lacking phrases do not fit the limit lives on only if there are too few others.

    Args:
        log_probabilities: float32 tensor `[B K, V]`. Those of the model.
        values: float32 tensor `[B K, V]`. The same under the constraints.
        best: float32 tensor `[B K, W]`. The best values of each hypothesis.
        tokens: int32 tensor `[B K, W]`. Their tokens.
        beams: `BeamState`.
        joins: `Joins` or `None`. As of `Constraints`.

    Returns:
        Scores, tokens and parents (beam numbers) `[B, K]`, best first.

    References:
        Post and Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation for
        neural machine translation". Hu et al. 2019, "Improved lexically constrained decoding for
        translation and monolingual rewriting" (in batches).
    """
    length, rows, beam_size = beams.length, beams.rows, beams.live_scores.shape[1]
    phrase_tokens, phrase_values = _phrase_tokens(log_probabilities, values, tokens, beams)
    tokens = ops.concatenate([tokens, phrase_tokens], axis=1)  # [B K, W + X]
    scores = ops.concatenate([best, phrase_values], axis=1)
    scores = scores + ops.reshape(beams.live_scores, (-1, 1))
    each = ops.shape(tokens)[1]
    sentences = ops.shape(beams.live_scores)[0]
    at_limit = ops.expand_dims(length >= beams.limits, 1)
    scores = ops.where(at_limit, IMPOSSIBLE, ops.reshape(scores, (sentences, -1)))  # [B, M]
    order = ops.cast(ops.argsort(-scores, axis=1), "int32")
    scores, tokens = pick(scores, order), pick(ops.reshape(tokens, (sentences, -1)), order)
    parents = order // each
    progress = row_constraints.of_parents(beams.progress, parents)
    progress = row_constraints.follow(rows, progress, tokens, joins)
    lacking = row_constraints.tokens_left(rows, progress)
    fits = lacking <= ops.expand_dims(beams.limits - length - 1, 1)
    # A size of the phrases, since JAX needs one before the values are known.
    max_lacking = ops.shape(rows.phrases)[1] * ops.shape(rows.phrases)[3]
    indices = _allocate(scores, lacking, fits, beam_size, max_lacking)
    return pick(scores, indices), pick(tokens, indices), pick(parents, indices)


def _phrase_tokens(log_probabilities, values, best_tokens, beams):
    """The tokens `[B K, X]` that phrases need, and their values.

    Those that are among `best_tokens` `[B K, W]` are impossible, so that no hypothesis is proposed
    twice.
    """
    tokens = row_constraints.next_tokens(beams.rows, beams.progress)  # [B, K, X]
    tokens = ops.reshape(tokens, (-1, ops.shape(tokens)[2]))
    indices = ops.arange(ops.shape(tokens)[1], dtype="int32")
    is_later = ops.expand_dims(indices, 1) > indices  # [X, X]
    repeats = tokens[:, :, None] == tokens[:, None, :]
    repeats = ops.any(ops.logical_and(repeats, is_later), axis=2)
    is_best = ops.any(tokens[:, :, None] == best_tokens[:, None, :], axis=2)
    repeats = ops.logical_or(repeats, is_best)
    is_new = ops.logical_and(tokens != NO_TOKEN, ops.logical_not(repeats))
    tokens = ops.maximum(tokens, 0)
    token_values = pick(values, tokens)
    # A phrase that must occur outranks a forbidden token, but not the prefix.
    allowed = ops.isinf(token_values)
    if not row_constraints.is_empty(beams.rows.prefix):
        width = beams.live_scores.shape[1]
        is_free = row_constraints.prefix_tokens(beams.rows, beams.length, width) == NO_TOKEN
        allowed = ops.logical_and(allowed, is_free)
    token_values = ops.where(allowed, pick(log_probabilities, tokens), token_values)
    return tokens, ops.where(is_new, token_values, IMPOSSIBLE)


def _allocate(scores, lacking, fits, beam_size, max_lacking):
    """The indices `[B, K]` of the candidates that live on, best first.

    Args:
        scores: float32 tensor `[B, M]`, best first.
        lacking: int32 tensor `[B, M]`. The number of tokens that each candidate lacks: its bank.
        fits: boolean tensor `[B, M]`. Whether these fit the limit.
        beam_size: int. K.
        max_lacking: int, or scalar tensor where shapes are dynamic. The largest such number.
    """
    is_in = lacking[..., None] == ops.arange(max_lacking + 1, dtype="int32")  # [B, M, banks]
    exists = scores > IMPOSSIBLE
    is_in = ops.cast(ops.logical_and(is_in, exists[..., None]), "int32")
    rank = ops.sum(ops.cumsum(is_in, axis=1) * is_in, axis=2) - 1  # within the bank
    # There may be more banks than beams. So candidates are ordered by their score, less the usual
    # cost of the tokens that they lack and a cost of their rank within the bank.
    cost = _TOKEN_COST * ops.cast(lacking, "float32") - scores
    cost = cost + _RANK_COST * ops.cast(rank, "float32")
    cost = ops.where(fits, cost, cost + _NO_FIT)
    key = ops.where(exists, cost, -IMPOSSIBLE)
    indices = ops.argsort(key, axis=1)[:, :beam_size]
    # There are at least K candidates, but a graph does not know.
    indices = ops.reshape(indices, (-1, beam_size))
    return ops.cast(ops.sort(indices, axis=1), "int32")
