"""A bias on the logits."""

import keras
from keras import ops

from kformer.layers.inputs import ReadsLists


@keras.saving.register_keras_serializable(package="kformer")
class OutputBias(ReadsLists):
    """Adds one number per token of the vocabulary to the logits.

    Marian's models have it in addition to an output projection that shares the embedding's table
    and so has no bias of its own.

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `[B, T, V]`.

    Returns:
        Float tensor `[B, T, V]`.
    """

    def build(self, input_shape):
        self.bias = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="bias")
        self.built = True

    def call(self, inputs):
        return inputs + ops.cast(self.bias, self.compute_dtype)
