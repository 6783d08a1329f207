"""Constraints of single sentences: a prefix, phrases that must occur and phrases that must not.

A phrase is a sequence of tokens. It occurs in a hypothesis where its tokens follow each other. The
search follows all phrases at once: for each of them and each of its beginnings it keeps whether the
hypothesis ends with that beginning.

Shape letters: B sentences, K hypotheses of each, C phrases that must occur, A forms of a phrase, F
forbidden phrases, P tokens of a phrase, M tokens that a hypothesis may go on with, V vocabulary.
"""

import math
from typing import Any, NamedTuple

from keras import ops

from kformer.decoding.repetition import NO_TOKEN, forbid_tokens
from kformer.utils.backend import pick


class RowConstraints(NamedTuple):
    """The constraints of each sentence's hypotheses, as tokens; `()` for none of a kind.

    Args:
        prefix: int32 `[B, P]`. The tokens that a hypothesis begins with, at no cost.
        phrases: int32 `[B, C, A, P]`. One form of each phrase must occur. A phrase without a form
            is no constraint.
        forbidden: int32 `[B, F, P]`. Phrases that must not occur.
        listed: int32 `[B, X]`. The tokens that a hypothesis may have, besides the end token and
            those of its prefix and phrases.

    `NO_TOKEN` (-1) stands after a shorter sequence. `prefix` and `phrases` outrank `forbidden`.

    Example:
        ```python
        from kformer.decoding import RowConstraints

        # The first sentence must contain 7 8 or 9, the second is free.
        RowConstraints(phrases=np.array([[[[7, 8], [9, -1]]], [[[-1, -1], [-1, -1]]]]))
        ```
    """

    prefix: Any = ()
    phrases: Any = ()
    forbidden: Any = ()
    listed: Any = ()


class Progress(NamedTuple):
    """The tokens of their sentence's phrases that hypotheses have so far."""

    matched: Any = ()  # bool [B, K, C A P]: the hypothesis ends with so many tokens of the form
    met: Any = ()  # bool [B, K, C]: the phrase has occurred, and its last word has ended
    forbidden: Any = ()  # bool [B, K, F P], as `matched`


class Joins(NamedTuple):
    """Which tokens write no whole word, as boolean arrays `[V]`.

    A phrase has occurred only where its last word ends: "Hund" does not occur in "Hunde".
    """

    continues: Any  # the token's text may go on with the word before it
    is_open: Any  # the next token may go on with the token's last word


def is_empty(constraints):
    """Whether a field of `RowConstraints` or `Progress` is `()`, for no constraint of that kind."""
    return isinstance(constraints, tuple)


def num_tokens(rows):
    """The number of tokens `[B]` that prefix and phrases need before the end token.

    They are those of the prefix and of the shortest form of each phrase, one after the other.
    """
    total = 0
    if not is_empty(rows.prefix):
        total += ops.sum(ops.cast(rows.prefix != NO_TOKEN, "int32"), axis=1)
    if not is_empty(rows.phrases):
        total += ops.sum(_shortest(rows.phrases), axis=1)
    return total


def first_progress(rows, width):
    """`Progress` of `width` hypotheses per sentence before their first token."""

    def no_tokens(phrases):
        size = math.prod(ops.shape(phrases)[1:])
        return ops.zeros((ops.shape(phrases)[0], width, size), dtype="bool")

    progress = Progress()
    if not is_empty(rows.phrases):
        has_form = ops.any(rows.phrases[..., 0] != NO_TOKEN, axis=2)  # [B, C]
        met = ops.repeat(ops.expand_dims(ops.logical_not(has_form), 1), width, axis=1)
        progress = progress._replace(matched=no_tokens(rows.phrases), met=met)
    if not is_empty(rows.forbidden):
        progress = progress._replace(forbidden=no_tokens(rows.forbidden))
    return progress


def follow(rows, progress, tokens, joins=None):
    """`Progress` `[B, M]` of hypotheses that go on with tokens `[B, M]`.

    Args:
        rows: `RowConstraints`.
        progress: `Progress` of the M hypotheses before.
        tokens: int32 tensor `[B, M]`.
        joins: `Joins`, default `None`, for tokens that are words.
    """
    if not is_empty(rows.forbidden):
        matched = _extend(progress.forbidden, rows.forbidden, tokens)
        progress = progress._replace(forbidden=matched)
    if is_empty(rows.phrases):
        return progress
    shape = ops.shape(rows.phrases)
    forms = ops.reshape(rows.phrases, (shape[0], shape[1] * shape[2], shape[3]))
    previous = _occurs(progress.matched, rows.phrases)  # [B, M, C, A]
    matched = _extend(progress.matched, forms, tokens)
    ended, now = previous, _occurs(matched, rows.phrases)
    if joins is not None:
        goes_on = ops.take(ops.convert_to_tensor(joins.continues), tokens, axis=0)  # [B, M]
        ended = ops.logical_and(previous, ops.logical_not(goes_on)[..., None, None])
        last = ops.max(ops.where(_is_last(rows.phrases), rows.phrases, 0), axis=3)  # [B, C, A]
        is_open = ops.take(ops.convert_to_tensor(joins.is_open), last, axis=0)
        now = ops.logical_and(now, ops.logical_not(is_open)[:, None])
    met = ops.any(ops.logical_or(ended, now), axis=3)
    return progress._replace(matched=matched, met=ops.logical_or(progress.met, met))


def is_complete(rows, progress):
    """Which hypotheses contain all phrases if they end here, boolean `[B, M]`."""
    occurs = ops.any(_occurs(progress.matched, rows.phrases), axis=3)
    return ops.all(ops.logical_or(progress.met, occurs), axis=2)


def tokens_left(rows, progress):
    """The number of tokens `[B, M]` that hypotheses need for the phrases that they lack.

    The form that saves most tokens is completed; the shortest forms of the other phrases follow.
    """
    shortest = _shortest(rows.phrases)[:, None]  # [B, 1, C]
    missing = _lengths(rows.phrases)[:, None] - _counts(progress.matched, rows.phrases)
    exists = rows.phrases[:, None, :, :, 0] != NO_TOKEN
    saved = ops.where(exists, shortest[..., None] - missing, 0)  # [B, M, C, A]
    saved = ops.where(progress.met, 0, ops.max(saved, axis=3))
    total = ops.sum(ops.where(progress.met, 0, shortest), axis=2)
    return total - ops.maximum(ops.max(saved, axis=2), 0)


def next_tokens(rows, progress):
    """Tokens `[B, M, 2 C A]` that begin a form, or go on with it; `NO_TOKEN` where there is none.

    A hypothesis may end with several beginnings of a form; the longest counts.
    """
    shape = ops.shape(progress.met)
    phrases, counts = rows.phrases, _counts(progress.matched, rows.phrases)
    is_next = ops.arange(ops.shape(phrases)[3], dtype="int32") == counts[..., None]
    follows = ops.max(ops.where(is_next, phrases[:, None], NO_TOKEN), axis=4)  # [B, M, C, A]
    begins = ops.broadcast_to(phrases[:, None, :, :, 0], ops.shape(follows))
    tokens = ops.concatenate([begins, follows], axis=3)
    tokens = ops.where(progress.met[..., None], NO_TOKEN, tokens)
    return ops.reshape(tokens, (shape[0], shape[1], -1))


def forbid_phrases(values, rows, progress):
    """Values `[B K, V]` with minus infinity at tokens that would complete a forbidden phrase."""
    if is_empty(rows.forbidden):
        return values
    phrases = rows.forbidden[:, None]  # [B, 1, F, P]
    matched = _unflatten(progress.forbidden, rows.forbidden)  # [B, K, F, P]
    # Whether all tokens before each token of a phrase stand at the end of the hypothesis.
    reached = ops.concatenate([ops.ones_like(matched[..., :1]), matched[..., :-1]], axis=3)
    completes = ops.any(ops.logical_and(reached, _is_last(phrases)), axis=3)  # [B, K, F]
    last = ops.max(ops.where(_is_last(phrases), phrases, NO_TOKEN), axis=3)
    tokens = ops.where(completes, last, NO_TOKEN)
    tokens = ops.reshape(tokens, (-1, ops.shape(tokens)[2]))
    return forbid_tokens(values, tokens, tokens != NO_TOKEN)


def prefix_tokens(rows, length, width):
    """The token `[B K, 1]` of the prefix that must come after `length` tokens, or `NO_TOKEN`."""
    is_here = ops.arange(ops.shape(rows.prefix)[1], dtype="int32") == length
    tokens = ops.max(ops.where(is_here, rows.prefix, NO_TOKEN), axis=1, initial=NO_TOKEN)
    return ops.expand_dims(ops.repeat(tokens, width), 1)


# ---- sequences of tokens, padded with `NO_TOKEN` ----


def _is_last(phrases):
    """Which positions `[..., P]` hold the last token of a sequence."""
    no_token = ops.full_like(phrases[..., :1], NO_TOKEN)
    following = ops.concatenate([phrases[..., 1:], no_token], axis=-1)
    return ops.logical_and(phrases != NO_TOKEN, following == NO_TOKEN)


def _lengths(phrases):
    return ops.sum(ops.cast(phrases != NO_TOKEN, "int32"), axis=-1)


def _shortest(phrases):
    """Tokens `[B, C]` of the shortest form of each phrase; 0 of a phrase without a form."""
    lengths = _lengths(phrases)
    longest = ops.max(lengths, axis=2, keepdims=True)
    return ops.min(ops.where(lengths > 0, lengths, longest), axis=2)


# ---- how far hypotheses have come ----


def _unflatten(matched, phrases):
    """`matched` `[B, M, ...]` with the axes of the phrases `[B, ...]`."""
    shape = ops.shape(matched)
    return ops.reshape(matched, (shape[0], shape[1], *ops.shape(phrases)[1:]))


def _extend(matched, forms, tokens):
    """`matched` `[B, M, N P]` after one more token `[B, M]` of each hypothesis; forms `[B, N, P]`.

    A hypothesis ends with p + 1 tokens of a form if it ended with p of them, and the next came.
    """
    now = _unflatten(matched, forms)
    reached = ops.concatenate([ops.ones_like(now[..., :1]), now[..., :-1]], axis=3)
    extended = ops.logical_and(reached, forms[:, None] == tokens[..., None, None])
    return ops.reshape(extended, ops.shape(matched))


def _occurs(matched, phrases):
    """Which forms `[B, M, C, A]` hypotheses end with."""
    at_end = ops.logical_and(_unflatten(matched, phrases), _is_last(phrases)[:, None])
    return ops.any(at_end, axis=4)


def _counts(matched, phrases):
    """The most tokens of each form that hypotheses end with, int32 `[B, M, C, A]`."""
    positions = ops.arange(1, ops.shape(phrases)[3] + 1, dtype="int32")
    return ops.max(ops.where(_unflatten(matched, phrases), positions, 0), axis=4)


def of_parents(progress, parents):
    """`Progress` of the hypotheses `parents` `[B, M]`."""
    return Progress(*(field if is_empty(field) else pick(field, parents) for field in progress))
