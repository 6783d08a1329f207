"""Dropout whose masks are a function of seed and step."""

import math
from typing import Unpack

import keras
from keras import ops

from kformer.layers.counter_hash import fold_key, random_bits, settled_seed
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.utils.backend import replica_number
from kformer.utils.checks import check_number


@keras.saving.register_keras_serializable(package="kformer")
class Dropout(ReadsLists):
    """Dropout whose mask depends on `seed` and the number of training calls alone.

    The number of calls is a weight (`step`, not trainable). So a saved model continues the sequence
    of masks exactly, on the same backend or on another: the masks of all three backends are the
    same, bit for bit. The remaining elements are scaled up (inverted dropout).

    Args:
        rate: float in `[0, 1)`. The share of the elements that are set to zero. It is rounded to a
            multiple of 1/65536, and the scale is that of the rounded rate, so that the expectation
            is exact.
        seed: int or `None`, default `None`. Two layers with one seed drop the same elements. `None`
            takes a random one from Python's generator, which `keras.utils.set_random_seed` seeds.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape with at least one axis.
        training: bool, default `None`. Without training the inputs are returned unchanged.

    Returns:
        Float tensor of the inputs' shape.

    Raises:
        ValueError: the rate is out of range.

    Example:
    ```python
    layer = kformer.layers.Dropout(0.1, seed=0)
    dropped = layer(ops.ones((2, 3)), training=True)
    ```

    References:
        Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    saved_arguments = ("rate", "seed")
    drops_rows = False

    def __init__(self, rate, *, seed=None, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        self.rate = check_number("The dropout rate", rate, at_least=0, below=1)
        self.seed = settled_seed(seed)

    def build(self, input_shape=None):
        if self.rate > 0:
            self.step = self.add_weight(
                shape=(),
                initializer="zeros",
                dtype="int32",
                trainable=False,
                aggregation="only_first_replica",
                name="step",
            )
        self.built = True

    def load_own_variables(self, store):
        # A layer with the rate 0 has no counter. Models that differ in a rate alone share their
        # weights: a file without a counter leaves it as it is, and a layer without one reads none.
        if bool(len(store)) == (self.rate > 0):
            super().load_own_variables(store)

    def call(self, inputs, training=None):
        if not training or self.rate == 0:
            return inputs
        key = fold_key(self.seed, self.step)
        self.step.assign_add(1)
        threshold = min(round(self.rate * 65536), 65535)
        mask, scale = self._mask(inputs, key, threshold), 65536 / (65536 - threshold)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype not in ("float16", "bfloat16"):
            return inputs * (mask * scale)
        # In 16 bits the scale itself would be rounded, always in one direction.
        return ops.cast(ops.cast(inputs * mask, "float32") * scale, dtype)

    def _mask(self, inputs, key, threshold):
        """1 at the elements to keep, 0 elsewhere; of the inputs' dtype."""
        shape = ops.shape(inputs)
        if self.drops_rows:
            shape = (shape[0], *(1 for _ in shape[1:]))
        rows, columns = math.prod(shape[:-1]), shape[-1]
        # One 32-bit word decides two elements, 16 bits each, which halves the arithmetic.
        # Each replica has its part of the rows: together they have the mask of one device.
        first = replica_number() * rows
        words = random_bits(rows, (columns + 1) // 2, key, first)
        lower = ops.bitwise_and(words, 0xFFFF)
        upper = ops.bitwise_and(ops.right_shift(words, 16), 0xFFFF)
        numbers = ops.concatenate([lower, upper], axis=1)[:, :columns]
        return ops.reshape(ops.cast(ops.greater_equal(numbers, threshold), inputs.dtype), shape)

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)


@keras.saving.register_keras_serializable(package="kformer")
class StochasticDepth(Dropout):
    """Dropout of whole rows: a residual branch is left out for some sequences of a batch.

    Args:
        rate: float in `[0, 1)`. The share of the rows that are set to zero; the others are scaled
            up.
        seed: int or `None`, default `None`. As in `Dropout`.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `[B, ...]`. The output of a branch, before it is added.
        training: bool, default `None`. Without training the inputs are returned unchanged.

    Returns:
        Float tensor of the inputs' shape.

    Example:
    ```python
    layer = kformer.layers.StochasticDepth(0.5, seed=0)
    branch = layer(ops.ones((4, 2, 3)), training=True)  # some rows are 0, the others 2
    ```

    References:
        Huang et al. 2016, "Deep networks with stochastic depth". They scale at inference; here the
        kept rows are scaled in training.
    """

    drops_rows = True
