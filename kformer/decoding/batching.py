"""Which sentences are searched together."""

import math

from kformer.utils import backend
from kformer.utils.checks import check_whole


def batches_by_length(lengths, batch_size, batch_tokens=None, longest=math.inf):
    """Batches of sentences of like length: like goes with like, so little is padding.

    Args:
        lengths: list of ints, the tokens of each sentence. A sentence of length 0 is left out.
        batch_size: the most sentences of a batch.
        batch_tokens: the most tokens of a batch, padding included; `None` for any number. A
            sentence that has more is a batch.
        longest: no length is padded beyond this one, the model's limit.

    Returns:
        List of lists of places in `lengths`; the longest sentences first, since memory is then at
        its peak at once.

    Raises:
        ValueError: `batch_size` or `batch_tokens` is below 1.
    """
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value is not None:
            check_whole(name, value)
    static = backend.uses_static_shapes()
    left = sorted(
        (place for place, length in enumerate(lengths) if length), key=lambda place: -lengths[place]
    )
    batches, start = [], 0
    while start < len(left):
        rows = batch_size
        if batch_tokens is not None:
            length = lengths[left[start]]
            fitting = max(
                1, batch_tokens // (backend.padded_length(length, longest) if static else length)
            )
            if static:  # The rows would be padded up to a power of two.
                fitting = backend.padded_rows(fitting + 1) // 2
            rows = min(rows, fitting)
        batches.append(left[start : start + rows])
        start += rows
    return batches
