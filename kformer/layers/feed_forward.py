"""The position-wise feed-forward network."""

from typing import Unpack

import keras
from keras import ops

from kformer.layers.counter_hash import settled_seed
from kformer.layers.dropout import Dropout
from kformer.layers.initializers import seeded
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.layers.low_rank import adapted
from kformer.layers.products import product_dtype
from kformer.layers.shapes import flat, linear, unflat
from kformer.utils.checks import check_choice

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu")
# Of the approximation "gelu_sigmoid".
GELU_FACTOR = 1.702


@keras.saving.register_keras_serializable(package="kformer")
class FeedForward(ReadsLists):
    """Two linear maps with an activation between them, applied to each position.

    The output is `activation(x W1 + b1) W2 + b2`. With `gated` the hidden layer is
    `activation(x V + c) * (x W1 + b1)`.

    Args:
        intermediate_dim: int. The width of the hidden layer (the paper's d_ff).
        activation: str, default "relu". `"relu"` (the paper), `"gelu"` (exact, by the error
            function), `"gelu_tanh"` (its approximation, as in T5's models), `"gelu_sigmoid"`
            (`x * sigmoid(1.702 x)`, as in Marian's) or `"silu"` (swish).
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

    saved_arguments = (
        "intermediate_dim activation gated dropout use_bias kernel_initializer seed".split()
    )

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
        self.intermediate_dim, self.activation, self.gated = intermediate_dim, activation, gated
        self.use_bias, self.seed = use_bias, settled_seed(seed)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.quantized, self.adapters = {}, {}
        self.activation_dropout = Dropout(dropout, **self._part("activation_dropout", "activation"))
        self.dropout = self.activation_dropout.rate

    def _dense(self, name, input_shape, units):
        config = self.quantized.get(name) or {
            "units": units,
            "use_bias": self.use_bias,
            "kernel_initializer": seeded(self.kernel_initializer, self.seed, name),
            "dtype": self.dtype_policy,
            "name": name,
        }
        dense = keras.layers.Dense.from_config(config)
        dense.build(input_shape)
        return dense

    def build(self, input_shape):
        self.intermediate = self._dense("intermediate", input_shape, self.intermediate_dim)
        if self.gated:
            self.gate = self._dense("gate", input_shape, self.intermediate_dim)
        hidden_shape = (*input_shape[:-1], self.intermediate_dim)
        self.output_projection = self._dense("output_projection", hidden_shape, input_shape[-1])
        self.activation_dropout.build(hidden_shape)
        self.built = True

    def call(self, inputs, training=None):
        # As rows, so that a graph reshapes once and fuses product, bias and activation.
        x = flat(inputs)
        if self.gated:
            gate = self._activate(self._project(self.gate, x))
            hidden = gate * self._project(self.intermediate, x)
        else:
            hidden = self._activate(self._project(self.intermediate, x))
        hidden = self.activation_dropout(hidden, training=training)
        return unflat(self._project(self.output_projection, hidden), inputs)

    def maps(self):
        """Dict of the `keras.layers.Dense` of each linear map, by its name."""
        gate = [self.gate] if self.gated else []
        return {dense.name: dense for dense in (*gate, self.intermediate, self.output_projection)}

    def _project(self, dense, x):
        """The output of a linear map and its adapter for rows `[rows, D]`."""
        dtype = dense.compute_dtype
        is_plain = not dense.lora_enabled and dense.quantization_mode is None
        if is_plain and (keras.backend.backend() == "tensorflow" or product_dtype(dtype) != dtype):
            kernel = ops.cast(dense.kernel, dtype)
            bias = None if dense.bias is None else ops.cast(dense.bias, dtype)
            outputs = linear(ops.cast(x, dtype), kernel, bias)
        else:
            outputs = dense(x)
        return adapted(self, dense.name, x, outputs)

    def _activate(self, x):
        if self.activation == "gelu_sigmoid":
            return x * ops.sigmoid(GELU_FACTOR * x)
        if self.activation.startswith("gelu"):
            return keras.activations.gelu(x, approximate=self.activation == "gelu_tanh")
        return keras.activations.get(self.activation)(x)

    def get_config(self):
        return {**super().get_config(), **self.quantized_config()}

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
