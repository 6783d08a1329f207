"""Rows of token ids and their sizes."""

import numpy as np


def pad_rows(rows, pad_id):
    """Returns lists of ids as an int32 array `[B, S]`, padded at their ends."""
    array = np.full((len(rows), max(map(len, rows), default=1)), pad_id, dtype="int32")
    for row, ids in zip(array, rows, strict=True):
        row[: len(ids)] = ids
    return array


def up_to_end(ids, end_id, pad_id, with_end=True):
    """Returns the ids of a hypothesis up to its end token; without one, up to the padding.

    Args:
        ids: list of int.
        end_id: int.
        pad_id: int.
        with_end: bool, default True. Whether the end token is among them.
    """
    if end_id in ids:
        return ids[: ids.index(end_id) + with_end]
    while ids and ids[-1] == pad_id:
        ids = ids[:-1]
    return ids


def round_up(size, multiple):
    """Returns the least multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple
