"""Norms with the weights of a Keras layer, in as few operations as each backend allows."""

import keras
from keras import ops

from kformer.utils.checks import check_choice

_LAYERS = {"layer_norm": keras.layers.LayerNormalization, "rms_norm": keras.layers.RMSNormalization}
NORMALIZATIONS = tuple(_LAYERS)


def make_norm(normalization, epsilon, **kwargs):
    """The Keras layer of a norm over the last axis.

    Args:
        normalization: str. `"layer_norm"`, or `"rms_norm"`, which divides by the root mean square
            and has neither mean nor offset.
        epsilon: float. Added to the variance or to the mean square.
        **kwargs: further arguments of `keras.layers.Layer`.

    Returns:
        `keras.layers.LayerNormalization` or `keras.layers.RMSNormalization`.

    Raises:
        ValueError: the name is unknown.

    References:
        Ba et al. 2016, "Layer normalization"; Zhang and Sennrich 2019, "Root mean square layer
        normalization".
    """
    check_choice("normalization", normalization, NORMALIZATIONS)
    return _LAYERS[normalization](epsilon=epsilon, **kwargs)


def normalize(norm, x):
    """The output of a norm layer for `x`, in fewer operations on TensorFlow.

    PyTorch has a kernel for it and XLA makes one. A TensorFlow graph runs each operation by itself:
    here a layer norm takes nine, while the layer has fifteen. A symbolic tensor goes through the
    layer itself, which must be part of a functional model.

    Args:
        norm: Keras layer. What `make_norm` returned, built.
        x: float tensor `[..., D]`.

    Returns:
        Float tensor `[..., D]` of the layer's compute dtype.
    """
    if (
        keras.backend.backend() != "tensorflow"
        or isinstance(x, keras.KerasTensor)
        or type(norm) not in _LAYERS.values()
    ):
        return norm(x)
    dtype, x = norm.compute_dtype, ops.cast(x, "float32")
    is_rms = type(norm) is keras.layers.RMSNormalization
    x = x if is_rms else x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(x), axis=-1, keepdims=True)
    factor = ops.cast(norm.scale if is_rms else norm.gamma, "float32")
    x = x * (ops.rsqrt(variance + norm.epsilon) * factor)
    return ops.cast(x if is_rms else x + ops.cast(norm.beta, "float32"), dtype)


def unit_vectors(x):
    """Float32 vectors of length 1 in the direction of `x`, of shape `[..., K]`.

    A vector of zeros stays zeros, with a gradient of 0: that of `keras.ops.normalize` is NaN there.
    """
    x = ops.cast(x, "float32")
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))
