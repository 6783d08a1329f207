"""Products and reshapes that add few operations to a graph.

A TensorFlow graph pays for every operation of a decoding step, however small. A product of
`[B, T, D]` with a matrix becomes a dozen of them there, most of which compute shapes; where all but
one dimension is known, none of these is needed.
"""

import keras
from keras import ops

from kformer.layers.products import product


def reshape(x, shape):
    """`ops.reshape` that infers the first unknown size of a shape.

    Args:
        x: tensor.
        shape: tuple of ints and scalar tensors. At most one int may be -1.

    Returns:
        Tensor of that shape.
    """
    unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if unknown and all(size != -1 for size in shape if isinstance(size, int)):
        shape = tuple(-1 if axis == unknown[0] else size for axis, size in enumerate(shape))
    return ops.reshape(x, shape)


def linear(x, kernel, bias=None):
    """`x W + b` over the last axis.

    Args:
        x: float tensor `[..., D]`.
        kernel: float tensor `[D, K]` of the same dtype.
        bias: float tensor `[K]` or `None`, default `None`.

    Returns:
        Float tensor `[..., K]`.
    """
    if keras.backend.backend() != "tensorflow" or len(x.shape) == 2:
        outputs = product(x, kernel)
        return outputs if bias is None else outputs + bias
    # The bias before the reshape, where the graph's optimizer joins product, bias and activation.
    return unflat(linear(flat(x), kernel, bias), x)


def align_right(ids, lengths, fill):
    """Moves the padding at the end of each row to its front.

        ids            [[5, 6, 0],         aligned   [[0, 5, 6],
                        [7, 8, 9]]                    [7, 8, 9]]

    Args:
        ids: integer tensor `[B, S]`.
        lengths: int32 tensor `[B]`. The number of tokens of each row.
        fill: int. The value in front.

    Returns:
        The aligned ids, `[B, S]`, and the position of each in its sequence, int32 `[B, S]`, which
        is negative for padding.
    """
    length = ops.shape(ids)[1]
    positions = ops.arange(length, dtype="int32") - ops.expand_dims(length - lengths, 1)
    aligned = ops.take_along_axis(ids, ops.maximum(positions, 0), axis=1)
    return ops.where(positions >= 0, aligned, fill), positions


def flat(x):
    """`[..., D]` -> `[rows, D]`"""
    return ops.reshape(x, (-1, x.shape[-1]))


def unflat(rows, like):
    """`[rows, K]` with the leading axes of `like`."""
    return reshape(rows, (*ops.shape(like)[:-1], rows.shape[-1]))
