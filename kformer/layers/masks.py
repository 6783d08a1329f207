"""Attention masks: boolean, `True` where a query may attend to a key, combined with AND.

Shape letters: B batch, T queries, S keys. Every mask is broadcastable to `[B, N, T, S]`.
"""

from keras import ops

from kformer.layers.inputs import of_list
from kformer.layers.relative_positions import distances


def padding_mask(ids, pad_id=0):
    """Marks the real tokens of a padded batch.

        ids            [[5, 6, 7, 0],      mask   [[1, 1, 1, 0],
                        [8, 0, 0, 0]]              [1, 0, 0, 0]]

    Args:
        ids: integer tensor `[B, S]`.
        pad_id: int, default 0. The id of the padding token.

    Returns:
        Boolean tensor `[B, S]`, `True` at real tokens.
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(query_length, key_length, offset=0):
    """The mask under which a position sees itself and the positions before it.

        causal_mask(3, 3)   1 . .      causal_mask(2, 4, offset=2)   1 1 1 .
                            1 1 .                                    1 1 1 1
                            1 1 1

    Args:
        query_length: int or scalar tensor. T.
        key_length: int or scalar tensor. S.
        offset: int or scalar tensor, default 0. The position of the first query among the keys:
            the number of tokens in a cache.

    Returns:
        Boolean tensor `[T, S]`: `mask[t, s] = s <= t + offset`.
    """
    return ops.less_equal(distances(query_length, key_length, offset), 0)


def segment_mask(query_segments, key_segments):
    """The mask that keeps attention inside a segment, for rows with several packed sequences.

        query_segments [[1, 1, 2]], key_segments [[1, 2, 2]]     1 . .
                                                                 1 . .
                                                                 . 1 1

    Args:
        query_segments: integer tensor `[B, T]`. The segment that each query belongs to.
        key_segments: integer tensor `[B, S]`. The segment that each key belongs to.

    Returns:
        Boolean tensor `[B, T, S]`.
    """
    return ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))


def combine_masks(*masks):
    """Combines masks of rank 2 to 4 with AND.

    Args:
        *masks: boolean tensors `[T, S]`, `[B, T, S]` or `[B, N, T, S]` (each axis may be 1), or
            `None`, which masks nothing. A padding mask `[B, S]` must be expanded to `[B, 1, S]`
            first: a matrix is read as `[T, S]`.

    Returns:
        Boolean tensor broadcastable to `[B, N, T, S]`, or `None` if every mask is `None`.

    Raises:
        ValueError: a mask has another rank.
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = of_list(mask)
        rank = len(mask.shape)
        if rank not in (2, 3, 4):
            raise ValueError(
                "A mask must have the shape [T, S], [B, T, S] or [B, N, T, S], but one of "
                f"shape {tuple(mask.shape)} was given; reshape a padding mask [B, S] to [B, 1, S] "
                "with ops.expand_dims(mask, 1)."
            )
        mask = ops.cast(mask, "bool")
        if rank < 4:
            mask = mask[None, None] if rank == 2 else mask[:, None]
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def over_keys(padding):
    """A padding mask `[B, S]` as a mask over keys, `[B, 1, S]`; `None` stays `None`."""
    return None if padding is None else ops.expand_dims(padding, 1)


def both(first, second):
    """Two masks of equal shape combined with AND, as booleans; either may be `None`."""
    first, second = (None if mask is None else ops.cast(mask, "bool") for mask in (first, second))
    return first if second is None else second if first is None else ops.logical_and(first, second)


def after_padding(left_padding, positions):
    """Whether positions `[S]` lie after the padding in front of each row: boolean `[B, S]`."""
    return positions >= ops.expand_dims(ops.cast(left_padding, "int32"), 1)
