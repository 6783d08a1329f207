"""The embedding of numbers: a linear map of features, and positions."""

from typing import Unpack

import keras
from keras import ops

from kformer.layers.counter_hash import derive_seed, settled_seed
from kformer.layers.dropout import Dropout
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.layers.positional_embedding import PositionMixin
from kformer.layers.shapes import linear


@keras.saving.register_keras_serializable(package="kformer")
class FeatureEmbedding(PositionMixin, ReadsLists):
    """A linear map of each step's features, plus positions, then dropout.

    Args:
        hidden_dim: int. D.
        position_encoding: str or `None`, default "sinusoidal". As in `PositionalEmbedding`.
        max_length: int or `None`, default `None`. The number of learned positions.
        position_offset: int, default 0. The position of the first step, for fixed positions.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate on the sum.
        seed: int or `None`, default `None`. For the initializer and the dropout; `None` for a
            random one.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `[B, T, F]`.
        start_index: int or scalar tensor, default 0. The number of steps before the first one.
        training: bool, default `None`.

    Returns:
        Float tensor `[B, T, D]`.

    Example:
    ```python
    kformer.layers.FeatureEmbedding(64)(ops.ones((2, 5, 3))).shape  # (2, 5, 64)
    ```
    """

    input_axes = "[B, T, F]"
    saved_arguments = "hidden_dim position_encoding max_length position_offset dropout seed".split()

    def __init__(
        self,
        hidden_dim,
        *,
        position_encoding="sinusoidal",
        max_length=None,
        position_offset=0,
        dropout=0.0,
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        self._set_positions(position_encoding, max_length, position_offset)
        self.hidden_dim, self.seed = hidden_dim, settled_seed(seed)
        self.feature_dropout = Dropout(dropout, **self._part("feature_dropout", "features"))
        self.dropout = self.feature_dropout.rate

    def build(self, input_shape):
        initializer = keras.initializers.GlorotUniform(seed=derive_seed(self.seed, "kernel"))
        shape = (input_shape[-1], self.hidden_dim)
        self.kernel = self.add_weight(shape=shape, initializer=initializer, name="kernel")
        self.bias = self.add_weight(shape=(self.hidden_dim,), initializer="zeros", name="bias")
        self._build_positions(self.hidden_dim)
        self.feature_dropout.build()
        self.built = True

    def call(self, inputs, start_index=0, training=None):
        kernel, bias = (ops.cast(weight, self.compute_dtype) for weight in (self.kernel, self.bias))
        hidden = linear(ops.cast(inputs, self.compute_dtype), kernel, bias)
        return self.feature_dropout(self._add_positions(hidden, start_index), training=training)

    def compute_output_spec(self, inputs, start_index=0, training=None):
        return keras.KerasTensor((*inputs.shape[:2], self.hidden_dim), dtype=self.compute_dtype)
