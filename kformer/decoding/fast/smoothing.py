"""Channels of activations evened out before they are quantized."""

import numpy as np
from keras import ops

# The largest of many normally distributed numbers, in standard deviations.
_LARGEST = 4.0
# Of the largest channel or row: what is smaller counts as zero.
_LEAST = 1e-6


class SmoothedOps:
    """Mixin of the `FastOps` that quantize activations.

    All numbers of a row share one scale, so a channel far larger than the others leaves few levels
    to these. Where a norm comes before a matrix, a part of the size of each channel can move from
    gamma and beta into the matrix, whose columns have scales of their own: the product stays the
    same, and costs nothing more.

    References:
        Xiao et al. 2023, "SmoothQuant: accurate and efficient post-training quantization for large
        language models", equation 4 with alpha = 1/2. What a norm returns is known from gamma and
        beta, so no text is needed to measure it.
    """

    def __init__(self):
        super().__init__()
        self._factors = {}  # by norm

    def smoothing(self, norm, kernels):
        if id(norm) not in self._factors:
            arrays = map(ops.convert_to_numpy, (norm.gamma, norm.beta, *kernels))
            gamma, beta, *matrices = arrays
            self._factors[id(norm)] = smoothing_factors(gamma, beta, matrices)
        return self._factors[id(norm)]


def smoothing_factors(gamma, beta, matrices):
    """By what to divide the channels of a norm's output, and multiply the rows after it.

    Args:
        gamma, beta: float arrays `[D]`.
        matrices: list of float arrays `[D, O]`.

    Returns:
        float32 array `[D]`, 1 where a channel or its rows are as good as zero.
    """
    channels = _LARGEST * np.abs(gamma) + np.abs(beta)
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    # What is hardly more than zero would have huge factors.
    is_used = (channels > _LEAST * channels.max()) & (rows > _LEAST * rows.max())
    factors = np.sqrt(np.where(is_used, channels, 1.0) / np.where(is_used, rows, 1.0))
    if is_used.any():  # Around 1, so that an unused channel keeps its relative size.
        factors /= np.exp(np.mean(np.log(factors[is_used])))
    return np.where(is_used, factors, 1.0).astype("float32")
