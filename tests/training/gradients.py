"""The gradient of a scalar function of one array, by each backend's own means."""

import keras
import numpy as np


def value_and_gradient(function, array, dtype="float32"):
    """The value of `function(tensor)` and its gradient, as float32 NumPy arrays."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        tensor = tf.cast(tf.constant(array), dtype)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            value = function(tensor)
        gradient = tape.gradient(value, tensor)
    elif backend == "jax":
        import jax

        value, gradient = jax.value_and_grad(function)(jax.numpy.asarray(array, dtype))
    else:
        import torch

        tensor = torch.tensor(array).to(getattr(torch, dtype)).requires_grad_()
        value = function(tensor)
        value.backward()
        value, gradient = value.detach(), tensor.grad.float()
    return tuple(
        np.asarray(keras.ops.convert_to_numpy(x)).astype("float32") for x in (value, gradient)
    )
