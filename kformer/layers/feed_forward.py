"""The position-wise feed-forward network."""

from typing import Unpack

import keras
from keras import ops

from kformer.layers.counter_hash import derive_seed, settled_seed
from kformer.layers.dropout import Dropout
from kformer.layers.initializers import seeded
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.layers.low_rank import adapted
from kformer.layers.products import product_dtype
from kformer.layers.shapes import flat, linear, unflat
from kformer.utils.checks import check_choice

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@keras.saving.register_keras_serializable(package="kformer")
class FeedForward(ReadsLists):
    """Two linear maps with an activation between them, applied to each position.

    The output is `activation(x W1 + b1) W2 + b2`. With `gated` the hidden layer is
    `activation(x V + c) * (x W1 + b1)`.

    Args:
        intermediate_dim: int. The width of the hidden layer (the paper's d_ff).
        activation: str, default "relu". `"relu"` (the paper), `"gelu"` (exact, by the error
            function), `"gelu_tanh"` (its approximation, as in T5's models) or `"silu"` (swish).
        gated: bool, default False. Whether a third map gates the hidden layer: GeGLU with gelu,
            SwiGLU with silu. It adds half as many parameters again.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate after the activation. The paper
            has none there.
        use_bias: bool, default True. Whether the linear maps add a bias.
        kernel_initializer: Keras initializer or its name, default "glorot_uniform". Of all kernels.
        seed: int or `None`, default `None`. For the initializers and the dropout; `None` for a
            random one.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `[..., D]`.
        training: bool, default `None`.

    Returns:
        Float tensor of the inputs' shape.

    Raises:
        ValueError: the activation is unknown, or the rate is out of range.

    Example:
    ```python
    kformer.layers.FeedForward(2048)(ops.ones((2, 5, 512))).shape  # (2, 5, 512)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", equation 2.
        Shazeer 2020, "GLU variants improve Transformer" (gated).
    """

    def __init__(
        self,
        intermediate_dim,
        *,
        activation="relu",
        gated=False,
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        check_choice("activation", activation, ACTIVATIONS)
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.gated = gated
        self.use_bias = use_bias
        self.seed = settled_seed(seed)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.quantized, self.adapters = {}, {}
        self.activation_dropout = Dropout(
            dropout,
            seed=derive_seed(self.seed, "activation"),
            dtype=self.dtype_policy,
            name="activation_dropout",
        )

    def _dense(self, units, name):
        if name in self.quantized:
            return keras.layers.Dense.from_config(self.quantized[name])
        initializer = seeded(self.kernel_initializer, self.seed, name)
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        self.intermediate = self._dense(self.intermediate_dim, "intermediate")
        self.intermediate.build(input_shape)
        if self.gated:
            self.gate = self._dense(self.intermediate_dim, "gate")
            self.gate.build(input_shape)
        self.output_projection = self._dense(hidden_dim, "output_projection")
        self.output_projection.build((*input_shape[:-1], self.intermediate_dim))
        self.activation_dropout.build((*input_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(self, inputs, training=None):
        # As rows, so that a graph reshapes once and fuses product, bias and activation.
        x = flat(inputs)
        if self.gated:
            gate = self._activate(self._project("gate", self.gate, x))
            hidden = gate * self._project("intermediate", self.intermediate, x)
        else:
            hidden = self._activate(self._project("intermediate", self.intermediate, x))
        hidden = self.activation_dropout(hidden, training=training)
        return unflat(self._project("output_projection", self.output_projection, hidden), inputs)

    def maps(self):
        """Dict of the `keras.layers.Dense` of each linear map, by its name."""
        maps = {"gate": self.gate} if self.gated else {}
        return {
            **maps,
            "intermediate": self.intermediate,
            "output_projection": self.output_projection,
        }

    def _project(self, name, dense, x):
        return adapted(self, name, x, _dense(dense, x))

    def _activate(self, x):
        if self.activation.startswith("gelu"):
            return keras.activations.gelu(x, approximate=self.activation == "gelu_tanh")
        return keras.activations.get(self.activation)(x)

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "gated": self.gated,
            "dropout": self.activation_dropout.rate,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
            **self.quantized_config(),
        }

    def quantized_config(self):
        """Configurations of the linear maps that `keras.Model.quantize` changed, by name.

        The maps are made in `build`, so a loaded layer must know which kernels are quantized.

        Returns:
            Dict with `quantized`; empty where no map is quantized.
        """
        maps = self.maps() if self.built else {}
        configs = {n: dense.get_config() for n, dense in maps.items() if dense.quantization_mode}
        return {"quantized": configs} if configs else {}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantized = config.pop("quantized", {})
        layer = super().from_config(config)
        layer.quantized = quantized
        return layer


def _dense(dense, x):
    """The output of a `keras.layers.Dense` for rows `[rows, D]`."""
    special = dense.lora_enabled or dense.quantization_mode is not None
    if (
        special
        or keras.backend.backend() != "tensorflow"
        and product_dtype(dense.compute_dtype) == dense.compute_dtype
    ):
        return dense(x)
    bias = None if dense.bias is None else ops.cast(dense.bias, dense.compute_dtype)
    return linear(
        ops.cast(x, dense.compute_dtype), ops.cast(dense.kernel, dense.compute_dtype), bias
    )
