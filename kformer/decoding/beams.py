"""What the searches share: constraints on the logits, and the arrays of hypotheses.

Shape letters: R rows, B sentences, K beams, V vocabulary, L the longest hypothesis with its end
token."""

import functools

import numpy as np
from keras import ops

from kformer.utils.backend import log_normaliser, pick, prefers_few_passes, stable_top_k, take

IMPOSSIBLE = float("-inf")

# So many tokens are sooner looked for among the best of a row than barred in all of it.
_FEW = 8


def empty_beams(limits, beam_size, steps, pad_id):
    """What a beam search begins with.

    Returns:
        ids `[B, K, L]` of padding, the live hypotheses' scores `[B, K]`, and scores of minus
        infinity `[B, K]`. All hypotheses are alike at first; only one of them may propose, so the
        others score minus infinity.
    """
    sentences = ops.shape(limits)[0]
    ids = ops.full((sentences, beam_size, steps), pad_id, dtype="int32")
    impossible = ops.full((sentences, beam_size), IMPOSSIBLE, dtype="float32")
    is_first = ops.broadcast_to(ops.arange(beam_size) < 1, (sentences, beam_size))
    return ids, ops.where(is_first, 0.0, impossible), impossible


def is_open(beams):
    """Which sentences of a beam search go on, bool `[B]`."""
    return beams.is_open


def finished(beams):
    """What a beam search has found: ids, scores and ranks of its finished hypotheses."""
    return beams.finished_ids, beams.finished_scores, beams.finished_ranks


def force_prefix(logits, length, prefix):
    """Logits `[R, V]` at step `length`; in the first steps those that leave one token of `prefix`,
    at no cost.

    Args:
        logits: float32 tensor `[R, V]`.
        length: int32 scalar tensor, tokens generated so far.
        prefix: tuple of ids.

    Returns:
        float32 tensor `[R, V]`. A forced token has the log-probability 0, all others minus
        infinity.
    """
    if not prefix:
        return logits
    token = ops.take(
        ops.convert_to_tensor(prefix, dtype="int32"), ops.minimum(length, len(prefix) - 1)
    )
    only = ops.where(ops.arange(logits.shape[-1], dtype="int32") == token, 0.0, IMPOSSIBLE)  # [V]
    return ops.where(length < len(prefix), only, logits)


def forbid(values, ids, unless=None):
    """Values `[R, V]` with minus infinity at the tokens `ids`.

    Args:
        values: float32 tensor `[R, V]`.
        ids: iterable of ids.
        unless: boolean scalar tensor; where it is `True`, nothing is forbidden.
    """
    ids = sorted(set(ids))
    if not ids:
        return values
    # Added, in one pass over the values: a choice would take two.
    barrier = np.zeros(values.shape[-1], "float32")
    barrier[ids] = IMPOSSIBLE
    barrier = ops.convert_to_tensor(barrier)
    return values + (barrier if unless is None else ops.where(unless, 0.0, barrier))


def constrain(logits, length, end_id, min_length, prefix, forbidden, renormalize):
    """Log-probabilities `[R, V]` of what may come at step `length`, and minus infinity for what may
    not.

    Args:
        logits: float32 tensor `[R, V]`.
        length: int32 scalar tensor, tokens generated so far.
        end_id: id of the end token, which may not come before `min_length` tokens.
        prefix: tuple of ids that come first.
        forbidden: ids that may not come behind them.
        renormalize: whether what is left sums to one again; otherwise each keeps its probability
            among all.
    """
    log_probabilities = (
        logits if renormalize else logits - ops.logsumexp(logits, axis=-1, keepdims=True)
    )
    log_probabilities = forbid(log_probabilities, forbidden)
    if min_length:
        log_probabilities = forbid(log_probabilities, [end_id], unless=length >= min_length)
    if renormalize:
        log_probabilities = log_probabilities - ops.logsumexp(
            log_probabilities, axis=-1, keepdims=True
        )
    return force_prefix(log_probabilities, length, prefix)


def bar(logits, forbidden, too_soon=None, unless=None):
    """Logits with minus infinity at the tokens that may not come; the arguments are those of
    `best_tokens`.
    """
    logits = forbid(logits, forbidden, unless)
    return (
        logits
        if too_soon is None
        else forbid(logits, [too_soon[0]], unless=ops.logical_not(too_soon[1]))
    )


def best_tokens(logits, k, forbidden, too_soon=None, unless=None):
    """The k best tokens of each row, best first, but for those that may not come.

    Args:
        logits: float32 tensor `[R, V]`.
        k: int, at most V.
        forbidden: iterable of ids that may not come.
        too_soon: an id and a boolean scalar tensor, which says whether that one may not come
            either; `None` for no such.
        unless: boolean scalar tensor; where it is `True`, the tokens of `forbidden` may come.
            `None` for never.

    Returns:
        Their logits `[R, k]` (minus infinity where too few may come), the tokens int32 `[R, k]`,
        and the `logsumexp` of all logits of each row `[R, 1]`.
    """
    forbidden, size = sorted(set(forbidden)), logits.shape[-1]
    if unless is not None or len(forbidden) > _FEW or not prefers_few_passes():
        return *stable_top_k(bar(logits, forbidden, too_soon, unless), k), ops.logsumexp(
            logits, axis=-1, keepdims=True
        )
    # What may not come is struck out among the best, of which there are so many more: a pass over
    # all logits less.
    values, tokens = stable_top_k(logits, min(k + len(forbidden) + (too_soon is not None), size))
    normaliser = log_normaliser(logits, values[:, :1], tokens[:, :1])
    bars = [tokens == token for token in forbidden]
    if too_soon is not None:
        bars.append(ops.logical_and(tokens == too_soon[0], too_soon[1]))
    if bars:
        values, places = stable_top_k(
            ops.where(functools.reduce(ops.logical_or, bars), IMPOSSIBLE, values), k
        )
        tokens = pick(tokens, places)
    return values, tokens, normaliser


def write_token(ids, position, token):
    """`ids` `[B, K, L]` with `token` (an int or `[B, K, 1]`) at a position of the last axis."""
    places = ops.arange(ops.shape(ids)[2], dtype="int32")
    return ops.where(places == position, token, ids)


def last_tokens(ids, length, start_id):
    """The tokens `[B, K]` that stand at the end of hypotheses of `length` tokens, or the start
    token.
    """
    return ops.where(length > 0, take(ids, ops.maximum(length - 1, 0), axis=2), start_id)


def merge_finished(beams, ids, scores, ranks):
    """The K best of a search's finished hypotheses and C more; on a tie the older one stays ahead.

    Args:
        beams: the search's state, with `finished_ids` `[B, K, L]`, `finished_scores` and
            `finished_ranks` `[B, K]`.
        ids, scores, ranks: the same of the others, `[B, C, L]` and `[B, C]`.

    Returns:
        ids, scores and ranks of the K best, sorted.
    """
    beam_size = beams.finished_ranks.shape[1]
    ranks, places = stable_top_k(ops.concatenate([beams.finished_ranks, ranks], axis=1), beam_size)
    ids = pick(ops.concatenate([beams.finished_ids, ids], axis=1), places)
    scores = pick(ops.concatenate([beams.finished_scores, scores], axis=1), places)
    return ids, scores, ranks
