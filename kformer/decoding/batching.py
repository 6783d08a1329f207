"""Batches of sentences that are searched together."""

import math

import numpy as np

from kformer.utils import backend
from kformer.utils.checks import check_whole
from kformer.utils.rows import round_up


def batches_by_length(lengths, batch_size, batch_tokens=None, longest=math.inf):
    """Batches of sentences of similar lengths, so that there is little padding.

    Args:
        lengths: list of ints. The tokens of each sentence. A sentence of length 0 is left out.
        batch_size: int. The most sentences of a batch.
        batch_tokens: int, default `None`. The most tokens of a batch, padding included; `None` for
            any number. A sentence that has more is a batch of its own.
        longest: int, default infinity. The model's limit; no length is padded beyond it.

    Returns:
        List of lists of indices in `lengths`. The longest sentences come first, so that the first
        batches need the most memory.

    Raises:
        ValueError: `batch_size` or `batch_tokens` is below 1.

    Example:
        ```python
        from kformer.decoding.batching import batches_by_length

        batches_by_length([3, 9, 4, 8], batch_size=2)  # [[1, 3], [2, 0]]
        ```
    """
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value is not None:
            check_whole(name, value)
    static = backend.uses_static_shapes()
    filled = [index for index, length in enumerate(lengths) if length]
    order = sorted(filled, key=lambda index: -lengths[index])
    batches, start = [], 0
    while start < len(order):
        rows = batch_size
        if batch_tokens is not None:
            length = lengths[order[start]]
            fitting = max(1, batch_tokens // (padded_length(length, longest) if static else length))
            if static:  # The rows would be padded up to a power of two.
                fitting = padded_rows(fitting + 1) // 2
            rows = min(rows, fitting)
        batches.append(order[start : start + rows])
        start += rows
    return batches


def padded_length(length, longest):
    """Rounds a length up, so that there are few shapes, but never beyond `longest`.

    Up to a multiple of 16; above 64 of 32, above 128 of 64, and so on: eight lengths up to 256,
    eight more up to 1024.

    Args:
        length: int.
        longest: int. The model's limit.
    """
    multiple = max(16, (1 << (length - 1).bit_length()) // 4)
    return max(length, min(round_up(length, multiple), longest))


def padded_rows(rows):
    """Rounds a number of rows up to a power of two, so that there are few shapes."""
    return 1 << (rows - 1).bit_length()


def pad_shape(ids, model):
    """Pads ids `[B, L]`, so that there are few numbers of rows and columns to compile for."""
    rows, length = ids.shape
    padding = padded_rows(rows) - rows, padded_length(length, model.max_length) - length
    return np.pad(ids, [(0, size) for size in padding], constant_values=model.pad_id)
