"""One layer of the encoder."""

from dataclasses import dataclass, field, replace
from typing import Any

import keras

from kformer.layers.counter_hash import settled_seed
from kformer.layers.dropout import Dropout, StochasticDepth
from kformer.layers.feed_forward import FeedForward
from kformer.layers.inputs import LayerArguments, ReadsLists
from kformer.layers.multi_head_attention import MultiHeadAttention
from kformer.layers.normalization import make_norm, normalize
from kformer.utils.signatures import takes


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """The arguments of `EncoderLayer`; its docstring describes them."""

    intermediate_dim: int = field(kw_only=False)
    num_heads: int = field(kw_only=False)
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    stochastic_depth: float = 0.0
    activation: str = "relu"
    gated: bool = False
    normalize_first: bool = False
    normalization: str = "layer_norm"
    layer_norm_epsilon: float = 1e-5
    use_bias: bool = True
    head_dim: int | None = None
    num_key_value_heads: int | None = None
    attention_scale: float | None = None
    rotary: dict | None = None
    relative_positions: dict | None = None
    attention_kind: str = "full"
    attention_window: int | None = None
    attention_dilation: int = 1
    global_tokens: int = 0
    seed: int | None = None
    name: str | None = None
    dtype: Any = None
    trainable: bool = True
    autocast: bool = True
    activity_regularizer: Any = None


class ResidualLayer(ReadsLists):
    """The base of encoder and decoder layers: self-attention, feed-forward network, residuals.

    Args:
        options: `LayerOptions`.
    """

    input_axes = "[B, T, D]"

    def __init__(self, options):
        names = LayerArguments.__annotations__
        super().__init__(**{name: getattr(options, name) for name in names})
        self.options = options = replace(options, seed=settled_seed(options.seed))
        self.seed = options.seed
        self.num_heads, self.normalize_first = options.num_heads, options.normalize_first
        self.feed_forward = FeedForward(
            options.intermediate_dim,
            activation=options.activation,
            gated=options.gated,
            dropout=options.activation_dropout,
            use_bias=options.use_bias,
            **self._part("feed_forward"),
        )
        self.feed_forward_norm, self.feed_forward_dropout, self.feed_forward_depth = (
            self._make_residual("feed_forward")
        )
        self.self_attention_norm, self.self_attention_dropout, self.self_attention_depth = (
            self._make_residual("self_attention")
        )
        self.self_attention = self._make_self_attention()

    def _make_self_attention(self):
        options = self.options
        return self._make_attention(
            "self_attention",
            rotary=options.rotary,
            relative_positions=options.relative_positions,
            kind=options.attention_kind,
            window=options.attention_window,
            dilation=options.attention_dilation,
            global_tokens=options.global_tokens,
        )

    def _make_attention(self, name, **self_attention_options):
        options = self.options
        return MultiHeadAttention(
            options.num_heads,
            options.head_dim,
            num_key_value_heads=options.num_key_value_heads,
            scale=options.attention_scale,
            dropout=options.attention_dropout,
            use_bias=options.use_bias,
            **self._part(name),
            **self_attention_options,
        )

    def _make_residual(self, sublayer):
        """Returns a sub-layer's norm, its dropout and its stochastic depth (`None` at rate 0)."""
        options, name = self.options, f"{sublayer}_norm"
        epsilon = options.layer_norm_epsilon
        norm = make_norm(options.normalization, epsilon, dtype=self.dtype_policy, name=name)
        part = self._part(f"{sublayer}_dropout", f"{sublayer}_residual")
        dropout, depth = Dropout(options.dropout, **part), None
        if options.stochastic_depth:
            depth = StochasticDepth(options.stochastic_depth, **self._part(f"{sublayer}_depth"))
        return norm, dropout, depth

    def build(self, x_shape):
        for layer in (
            self.feed_forward,
            self.feed_forward_norm,
            self.feed_forward_dropout,
            self.feed_forward_depth,
            self.self_attention,
            self.self_attention_norm,
            self.self_attention_dropout,
            self.self_attention_depth,
        ):
            if layer is not None:
                layer.build(x_shape)
        self.built = True

    def _sublayer_input(self, norm, x):
        """Returns the input of a sub-layer: the residual stream, normalised under pre-norm."""
        return normalize(norm, x) if self.normalize_first else x

    def _add(self, norm, dropout, depth, x, output, training):
        """Returns the residual stream `x + dropout(output)`, normalised under post-norm."""
        output = dropout(output, training=training)
        if depth is not None:
            output = depth(output, training=training)
        x = x + output
        return x if self.normalize_first else normalize(norm, x)

    def _add_self_attention(self, x, output, training):
        return self._add(
            self.self_attention_norm,
            self.self_attention_dropout,
            self.self_attention_depth,
            x,
            output,
            training,
        )

    def _run_feed_forward(self, x, training):
        norm, dropout = self.feed_forward_norm, self.feed_forward_dropout
        output = self.feed_forward(self._sublayer_input(norm, x), training=training)
        return self._add(norm, dropout, self.feed_forward_depth, x, output, training)

    def compute_output_spec(self, x, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        shape = (x.shape[0], self.num_heads, x.shape[1], x.shape[1])
        scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return (output, scores) if return_attention_scores else output

    def get_config(self):
        options, config = vars(self.options), super().get_config()
        names = options.keys() - LayerArguments.__annotations__.keys()
        config |= {name: options[name] for name in names}
        return {**config, **self.feed_forward.quantized_config()}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantized = config.pop("quantized", {})
        layer = super().from_config(config)
        layer.feed_forward.quantized = quantized
        return layer


@keras.saving.register_keras_serializable(package="kformer")
class EncoderLayer(ResidualLayer):
    """Self-attention and a feed-forward network, each with a residual connection and a layer norm.

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
        activation: str, default "relu". As in `FeedForward`.
        gated: bool, default False. Whether the feed-forward network is gated (GeGLU, SwiGLU).
        normalize_first: bool, default False. `False` for post-norm, `norm(x + f(x))`, as in the
            paper; `True` for pre-norm, `x + f(norm(x))`. A pre-norm stack needs a norm after its
            last layer.
        normalization: str, default "layer_norm". `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: float, default 1e-5. The number that is added to the variance.
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
        seed: int or `None`, default `None`. The seed of the initializers and the dropout; `None`
            for a random seed.
        name, dtype, trainable, autocast, activity_regularizer: as in `keras.layers.Layer`.

    Call arguments:
        x: float tensor `[B, S, D]`.
        padding_mask: boolean tensor `[B, S]`, default `None`. `True` at real tokens.
        attention_mask: boolean tensor `[S, S]`, `[B, S, S]` or `[B, N, S, S]`, default `None`.
            `True` where a query may attend to a key.
        attention_bias: float tensor `[N, S, S]` or `[B, N, S, S]`, default `None`. The bias that is
            added to the scores (ALiBi, T5's relative bias).
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

    @takes(LayerOptions)
    def __init__(self, *args, **kwargs):
        super().__init__(LayerOptions(*args, **kwargs))

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
            self._sublayer_input(self.self_attention_norm, x),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            return_attention_scores=return_attention_scores,
            training=training,
            query_mask=mask if mask is not None else x_mask,
        )
        output, scores = output if return_attention_scores else (output, None)
        x = self._run_feed_forward(self._add_self_attention(x, output, training), training)
        return (x, scores) if return_attention_scores else x
