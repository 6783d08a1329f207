"""Layer norm by a Keras layer's weights, in the fewest operations that a backend has for it."""

import keras
from keras import ops


def normalize(norm, x):
    """What the layer `norm`, a `keras.layers.LayerNormalization` over the last axis, gives for `x`.

    PyTorch has a kernel for it and XLA makes one. A TensorFlow graph runs each operation by itself: here they are nine, where the
    layer has fifteen. Of a symbolic tensor, from which a functional model is built, the layer itself must be part.
    """
    is_plain = type(norm) is keras.layers.LayerNormalization and not isinstance(x, keras.KerasTensor)
    if keras.backend.backend() != "tensorflow" or not is_plain:
        return norm(x)
    dtype, x = norm.compute_dtype, ops.cast(x, "float32")
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    scale = ops.rsqrt(variance + norm.epsilon) * ops.cast(norm.gamma, "float32")
    return ops.cast(centered * scale + ops.cast(norm.beta, "float32"), dtype)
