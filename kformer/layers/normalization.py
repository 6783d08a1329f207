"""Norms by a Keras layer's weights, in the fewest operations that a backend has for them."""

import keras
from keras import ops

from kformer.utils.checks import check_choice

_LAYERS = {"layer_norm": keras.layers.LayerNormalization, "rms_norm": keras.layers.RMSNormalization}
NORMALIZATIONS = tuple(_LAYERS)


def make_norm(normalization, epsilon, **kwargs):
    """The Keras layer of a norm over the last axis.

    Args:
        normalization: `"layer_norm"`, or `"rms_norm"`, which divides by the root mean square and
            knows neither mean nor offset.
        epsilon: float, added to the variance or to the mean square.
        **kwargs: arguments of any layer.

    Raises:
        ValueError: there is no such norm.

    References:
        Ba et al. 2016, "Layer normalization"; Zhang and Sennrich 2019, "Root mean square layer
        normalization".
    """
    check_choice("normalization", normalization, NORMALIZATIONS)
    return _LAYERS[normalization](epsilon=epsilon, **kwargs)


def normalize(norm, x):
    """What the layer `norm`, one of `make_norm`'s, gives for `x`.

    PyTorch has a kernel for it and XLA makes one. A TensorFlow graph runs each operation by itself:
    here a layer norm takes nine, where the layer has fifteen. Of a symbolic tensor, from which a
    functional model is built, the layer itself must be part."""
    if (
        keras.backend.backend() != "tensorflow"
        or isinstance(x, keras.KerasTensor)
        or type(norm) not in _LAYERS.values()
    ):
        return norm(x)
    dtype, x = norm.compute_dtype, ops.cast(x, "float32")
    if type(norm) is keras.layers.RMSNormalization:
        scale = ops.rsqrt(
            ops.mean(ops.square(x), axis=-1, keepdims=True) + norm.epsilon
        ) * ops.cast(norm.scale, "float32")
        return ops.cast(x * scale, dtype)
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    scale = ops.rsqrt(variance + norm.epsilon) * ops.cast(norm.gamma, "float32")
    return ops.cast(centered * scale + ops.cast(norm.beta, "float32"), dtype)
