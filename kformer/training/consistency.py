"""R-Drop: two passes of one batch, drawn together.

References:
    Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks".
"""

from keras import ops


def divergence_of(logits, exponentials, norm):
    """How far the distributions of two passes are apart, and what draws them together.

    Args:
        logits: float32 `[2 C, V]`, those of the first pass and then those of the second.
        exponentials, norm: their exponentials, and the sums of these, `[2 C, 1]`.

    Returns:
        The mean of the two divergences, `[2 C, 1]`, the same for both passes; and its gradient at
        the logits, `[2 C, V]`.
    """
    first, second = ops.split(exponentials / norm, 2)
    difference = ops.subtract(*ops.split(logits - ops.log(norm), 2))  # log P - log Q
    forth = ops.sum(first * difference, axis=-1, keepdims=True)  # KL(P, Q)
    back = -ops.sum(second * difference, axis=-1, keepdims=True)
    apart = first - second
    to_first = first * (difference - forth) + apart
    to_second = -second * (difference + back) - apart
    return ops.tile(0.5 * (forth + back), (2, 1)), 0.5 * ops.concatenate([to_first, to_second])
