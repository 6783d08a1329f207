"""Gradients on any backend."""

import keras
import numpy as np


def gradients(loss, variables):
    """The gradients of the scalar `loss()` for Keras variables, as float32 NumPy arrays."""
    return value_and_gradients(loss, variables)[1]


def value_and_gradients(loss, variables):
    """`loss()` as a float, and its gradients."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        found = tape.gradient(value, [variable.value for variable in variables])
    elif backend == "jax":
        import jax

        def as_function(values):
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
                return loss()

        value, found = jax.jit(jax.value_and_grad(as_function))(
            [variable.value for variable in variables]
        )
    else:
        for variable in variables:
            variable.value.grad = None
        value = loss()
        value.backward()
        found = [variable.value.grad for variable in variables]
    return float(keras.ops.convert_to_numpy(value)), [
        np.asarray(keras.ops.convert_to_numpy(gradient), dtype="float32") for gradient in found
    ]
