"""Attention masks: boolean, `True` where a query may attend to a key, combined with AND.

A mask of integers is read as booleans. A mask of floats is refused: it may be meant to be added to
the scores.

Shape letters: B batch, T queries, S keys. Every mask is broadcastable to `[B, N, T, S]`.
"""

import keras
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
    """Returns the mask under which a position attends to itself and to earlier positions.

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
    """Returns the mask that keeps attention inside a segment, for rows of packed sequences.

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
        ValueError: a mask has another rank, or floats.
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
        mask = as_boolean(mask)
        if rank < 4:
            mask = mask[None, None] if rank == 2 else mask[:, None]
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def as_boolean(mask):
    """Returns a mask of booleans or integers as booleans; `None` stays `None`.

    Raises:
        ValueError: the mask has floats, such as those of a mask that is added to scores.
    """
    if mask is None:
        return None
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(
            "A mask is boolean, True where a query may attend to a key, but one of the dtype "
            f"{dtype} was given: for a mask of 0 and -1e9, which is added to scores, give "
            "mask == 0, and for one of 1 and 0 give mask == 1."
        )
    return ops.cast(mask, "bool")


def check_fits(name, value, axes, sizes):
    """Checks that a mask or bias can be broadcast to the shape that an attention needs.

    Args:
        name: str. The name of the argument.
        value: tensor, or `None`, which fits.
        axes: str. The letters of the shape for the message, such as `"[B, S]"`.
        sizes: tuple. The size of each axis: int, or `None` where it is not known.

    Raises:
        ValueError: the value has another rank, or an axis whose length is neither that size nor 1.
    """
    if value is None:
        return
    shape = tuple(value.shape)
    if len(shape) != len(sizes) or any(
        None not in (length, size) and length not in (1, size)
        for length, size in zip(shape, sizes, strict=True)
    ):
        raise ValueError(
            f"{name} must have the shape {axes}, here {sizes} (an axis may be 1), but one of the "
            f"shape {shape} was given."
        )


def check_masks(query, keys, mask=None, padding=None):
    """Checks that masks fit queries `[B, N, T, H]` and the number S of keys, by `check_fits`."""
    rows, heads, queries, _ = query.shape
    check_fits("attention_mask", mask, "[B, N, T, S]", (rows, heads, queries, keys))
    check_fits("padding_mask", padding, "[B, S]", (rows, keys))


def over_keys(padding):
    """Returns a padding mask `[B, S]` as a mask for any query, `[B, 1, S]`; `None` stays `None`."""
    return None if padding is None else ops.expand_dims(padding, 1)


def both(first, second):
    """Combines two masks of equal shape with AND, as booleans; either may be `None`."""
    first, second = as_boolean(first), as_boolean(second)
    return first if second is None else second if first is None else ops.logical_and(first, second)


def after_padding(left_padding, positions):
    """Returns whether positions `[S]` lie after each row's padding in front: boolean `[B, S]`."""
    return positions >= ops.expand_dims(ops.cast(left_padding, "int32"), 1)
