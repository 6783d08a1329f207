"""R-Drop: two passes of a batch with different dropout, pulled together.

References:
    Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks".
"""

from keras import ops


def divergence_of(logits, exponentials, norm):
    """The mean Kullback-Leibler divergence between two passes, and its gradient.

    Args:
        logits: float32 tensor `[2 C, V]`. The logits of the first pass, then those of the second.
        exponentials: float32 tensor `[2 C, V]`. Their exponentials.
        norm: float32 tensor `[2 C, 1]`. The sums of these.

    Returns:
        float32 tensors: the mean of the two divergences, `[2 C, 1]`, the same for both passes; and
        its gradient at the logits, `[2 C, V]`.
    """
    first, second = ops.split(exponentials / norm, 2)
    difference = ops.subtract(*ops.split(logits - ops.log(norm), 2))  # log P - log Q
    forth = ops.sum(first * difference, axis=-1, keepdims=True)  # KL(P, Q)
    back = -ops.sum(second * difference, axis=-1, keepdims=True)  # KL(Q, P)
    apart = first - second
    to_first = first * (difference - forth) + apart
    to_second = -second * (difference + back) - apart
    return ops.tile(0.5 * (forth + back), (2, 1)), 0.5 * ops.concatenate([to_first, to_second])
