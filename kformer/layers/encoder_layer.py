"""One layer of the encoder."""

import keras

from kformer.layers.counter_hash import derive_seed, settled_seed
from kformer.layers.dropout import Dropout, StochasticDepth
from kformer.layers.feed_forward import FeedForward
from kformer.layers.inputs import ReadsLists
from kformer.layers.multi_head_attention import MultiHeadAttention
from kformer.layers.normalization import make_norm, normalize

# The options of encoder and decoder layers, with their defaults.
LAYER_OPTIONS = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "stochastic_depth": 0.0,
    "activation": "relu",
    "gated": False,
    "normalize_first": False,
    "normalization": "layer_norm",
    "layer_norm_epsilon": 1e-5,
    "use_bias": True,
    "head_dim": None,
    "num_key_value_heads": None,
    "attention_scale": None,
    "rotary": None,
    "attention_kind": "full",
    "attention_window": None,
    "attention_dilation": 1,
    "global_tokens": 0,
}


class ResidualLayer(ReadsLists):
    """The base of encoder and decoder layers: options, residual connections, dropout and norms."""

    input_axes = "[B, T, D]"

    def __init__(self, intermediate_dim, num_heads, *, seed=None, **options):
        own = {name: options.pop(name, default) for name, default in LAYER_OPTIONS.items()}
        super().__init__(**options)
        self.intermediate_dim, self.num_heads = intermediate_dim, num_heads
        for name, value in own.items():
            setattr(self, name, value)
        self.seed = settled_seed(seed)
        self.supports_masking = True
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            dropout=self.activation_dropout,
            use_bias=self.use_bias,
            seed=derive_seed(self.seed, "feed_forward"),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self._add_residual("feed_forward")

    def _add_attention(self, name, **options):
        attention = MultiHeadAttention(
            self.num_heads,
            self.head_dim,
            num_key_value_heads=self.num_key_value_heads,
            scale=self.attention_scale,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            seed=derive_seed(self.seed, name),
            dtype=self.dtype_policy,
            name=name,
            **options,
        )
        self._add_residual(name)
        return attention

    def _add_self_attention(self):
        return self._add_attention(
            "self_attention",
            rotary=self.rotary,
            kind=self.attention_kind,
            window=self.attention_window,
            dilation=self.attention_dilation,
            global_tokens=self.global_tokens,
        )

    def _add_residual(self, name):
        """The norm and the dropout around the sub-layer `name`."""
        norm = make_norm(
            self.normalization,
            self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=f"{name}_norm",
        )
        setattr(self, f"{name}_norm", norm)
        kinds = [("dropout", Dropout, self.dropout, "residual")]
        if self.stochastic_depth:
            kinds.append(("depth", StochasticDepth, self.stochastic_depth, "depth"))
        for kind, layer_class, rate, label in kinds:
            label = derive_seed(self.seed, f"{name}_{label}")
            setattr(
                self,
                f"{name}_{kind}",
                layer_class(rate, seed=label, dtype=self.dtype_policy, name=f"{name}_{kind}"),
            )

    def _build_residual(self, name, shape):
        for kind in ("norm", "dropout", *(["depth"] if self.stochastic_depth else [])):
            getattr(self, f"{name}_{kind}").build(shape)

    def _before(self, name, x):
        """The input of a sub-layer: the residual stream, normalised under pre-norm."""
        return normalize(getattr(self, f"{name}_norm"), x) if self.normalize_first else x

    def _after(self, name, x, output, training):
        """The stream after a sub-layer: `x + dropout(output)`, normalised under post-norm."""
        output = getattr(self, f"{name}_dropout")(output, training=training)
        if self.stochastic_depth:
            output = getattr(self, f"{name}_depth")(output, training=training)
        x = x + output
        return x if self.normalize_first else normalize(getattr(self, f"{name}_norm"), x)

    def _feed_forward(self, x, training):
        output = self.feed_forward(self._before("feed_forward", x), training=training)
        return self._after("feed_forward", x, output, training)

    def get_config(self):
        names = ("intermediate_dim", "num_heads", *LAYER_OPTIONS, "seed")
        own = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **own, **self.feed_forward.quantized_config()}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantized = config.pop("quantized", {})
        layer = super().from_config(config)
        layer.feed_forward.quantized = quantized
        return layer


@keras.saving.register_keras_serializable(package="kformer")
class EncoderLayer(ResidualLayer):
    """Self-attention, then a feed-forward network, each with residual connection and layer norm.

    Args:
        intermediate_dim: int. The width of the feed-forward network.
        num_heads: int. N, the number of attention heads; it must divide the hidden size, unless
            `head_dim` is given.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate on each sub-layer's output, before
            it is added, as in the paper.
        attention_dropout: float in `[0, 1)`, default 0.0. The dropout rate on the attention
            probabilities.
        activation_dropout: float in `[0, 1)`, default 0.0. The dropout rate inside the feed-forward
            network.
        stochastic_depth: float in `[0, 1)`, default 0.0. The rate at which training skips a
            sub-layer for a whole sequence.
        activation: str, default "relu". `"relu"`, `"gelu"`, `"gelu_tanh"` or `"silu"`.
        gated: bool, default False. Whether the feed-forward network is gated (GeGLU, SwiGLU).
        normalize_first: bool, default False. `False` for post-norm, `norm(x + f(x))`, as in the
            paper; `True` for pre-norm, `x + f(norm(x))`. A pre-norm stack needs a norm after its
            last layer.
        normalization: str, default "layer_norm". `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: float, default 1e-5. Added to the variance.
        use_bias: bool, default True. Whether the linear maps add a bias.
        head_dim: int or `None`, default `None`. The size of a head, as in `MultiHeadAttention`.
        num_key_value_heads: int or `None`, default `None`. As in `MultiHeadAttention`.
        attention_scale: float or `None`, default `None`. `scale` of `MultiHeadAttention`.
        rotary: dict or `None`, default `None`. As in `MultiHeadAttention`, for the self-attention
            alone.
        attention_kind: str, default "full". `kind` of the self-attention: `"full"`, `"local"` or
            `"linear"`.
        attention_window: int or `None`, default `None`. `window` of a local self-attention.
        attention_dilation: int, default 1. `dilation` of a local self-attention.
        global_tokens: int, default 0. `global_tokens` of a local self-attention.
        seed: int or `None`, default `None`. For the initializers and the dropout; `None` for a
            random one.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        x: float tensor `[B, S, D]`.
        padding_mask: boolean tensor `[B, S]`, default `None`. `True` at real tokens.
        attention_mask: boolean tensor `[S, S]`, `[B, S, S]` or `[B, N, S, S]`, default `None`.
            `True` where a query may attend to a key.
        attention_bias: float tensor `[N, S, S]` or `[B, N, S, S]`, default `None`. Added to the
            scores (ALiBi, T5's relative bias).
        return_attention_scores: bool, default False. Whether to return the probabilities, too.
        training: bool, default `None`.
        mask, x_mask: the implicit Keras mask of `x`, passed by Keras.

    Returns:
        Float tensor `[B, S, D]`; with `return_attention_scores` also the probabilities
        `[B, N, S, S]`.

    Raises:
        ValueError: an option is unknown or out of range, or does not fit the hidden size.

    Example:
    ```python
    layer = kformer.layers.EncoderLayer(intermediate_dim=2048, num_heads=8)
    layer(ops.ones((2, 5, 512))).shape  # (2, 5, 512)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.1.
        Xiong et al. 2020, "On layer normalization in the Transformer architecture" (pre-norm).
    """

    def __init__(self, intermediate_dim, num_heads, **kwargs):
        super().__init__(intermediate_dim, num_heads, **kwargs)
        self.self_attention = self._add_self_attention()

    def build(self, x_shape):
        self.self_attention.build(x_shape)
        self.feed_forward.build(x_shape)
        for name in ("self_attention", "feed_forward"):
            self._build_residual(name, x_shape)
        self.built = True

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        attention_bias=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        x_mask=None,
    ):
        output = self.self_attention(
            self._before("self_attention", x),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            return_attention_scores=return_attention_scores,
            training=training,
            query_mask=mask if mask is not None else x_mask,
        )
        output, scores = output if return_attention_scores else (output, None)
        x = self._after("self_attention", x, output, training)
        x = self._feed_forward(x, training)
        return (x, scores) if return_attention_scores else x

    def compute_output_spec(self, x, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        scores_shape = (x.shape[0], self.num_heads, x.shape[1], x.shape[1])
        return output, keras.KerasTensor(scores_shape, dtype=self.compute_dtype)
