"""One layer of the decoder."""

from dataclasses import dataclass

import keras

from kformer.layers.cache import DecoderLayerCache
from kformer.layers.encoder_layer import LayerOptions, ResidualLayer
from kformer.layers.masks import both
from kformer.layers.ssru import SSRU
from kformer.utils.checks import check_choice
from kformer.utils.signatures import takes

AUTOREGRESSIONS = ("self_attention", "ssru")
_NO_SOURCE = "A decoder layer needs `encoded`, the encoder's output, or a `cache` made from it."


@dataclass(frozen=True, kw_only=True)
class DecoderLayerOptions(LayerOptions):
    """The arguments of `DecoderLayer`; its docstring describes them."""

    cross_attention: bool = True
    autoregression: str = "self_attention"


@keras.saving.register_keras_serializable(package="kformer")
class DecoderLayer(ResidualLayer):
    """Causal self-attention, cross-attention on the encoded source, then a feed-forward network.

    Each of the three has a residual connection, dropout and a layer norm.

    Args:
        intermediate_dim: int. The width of the feed-forward network.
        num_heads: int. N, the number of attention heads; it must divide the hidden size, unless
            `head_dim` is given.
        cross_attention: bool, default True. Whether the layer has cross-attention. A language model
            has none.
        autoregression: str, default "self_attention". What reads the earlier target tokens:
            `"self_attention"`, or `"ssru"`, the recurrent cell `SSRU` in its place.
        **options: the arguments of `EncoderLayer`.

    Call arguments:
        x: float tensor `[B, T, D]`.
        encoded: float tensor `[B, S, D]`, default `None`. The encoder's output. It is not needed
            with a `cache`, which has its keys and values.
        padding_mask: boolean tensor `[B, T]`, default `None`. `True` at real target tokens. It
            is rarely needed, since the causal mask hides padding on the right; and it would hide a
            start token that is the padding token.
        left_padding: integer tensor `[B]`, default `None`. The number of padding tokens at the
            start of each row.
        encoded_padding_mask: boolean tensor `[B, S]`, default `None`. `True` at real source tokens.
        attention_mask: boolean tensor `[T, T]`, `[B, T, T]` or `[B, N, T, T]`, default `None`. The
            mask of the self-attention, combined with the causal mask by AND.
        cross_attention_mask: boolean tensor `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, default
            `None`. The mask of the cross-attention, combined with `encoded_padding_mask` by AND.
        attention_bias: float tensor `[N, T, T]` or `[B, N, T, T]`, default `None`. The bias that is
            added to the scores of the self-attention. With a `cache` it covers all slots of the
            cache, `[N, T, slots]`.
        use_causal_mask: bool, default True. Whether a token attends to no later token.
        sequence_starts: boolean tensor `[B, T]`, default `None`. `True` at the first token of
            each sequence of a packed row. For an SSRU, which takes no mask of pairs.
        cache: `DecoderLayerCache` or `None`, default `None`. The tokens before `x`, from
            `init_cache` or an earlier call.
        return_attention_scores: bool, default False. Whether to return the probabilities, too.
        training: bool, default `None`.
        mask, x_mask, encoded_mask: implicit Keras masks, passed by Keras.

    Returns:
        Float tensor `[B, T, D]`; then, with `return_attention_scores`, the pair of the
        self-attention's probabilities `[B, N, T, T]` and the cross-attention's `[B, N, T, S]`
        (without cross-attention only the former; `None` for it with an SSRU); then, with `cache`,
        the cache with the new tokens.

    Raises:
        ValueError: an option is unknown or out of range, or does not fit the hidden size; or a call
            has neither `encoded` nor `cache`, or a mask that an SSRU cannot have.

    Example:
    ```python
    layer = kformer.layers.DecoderLayer(intermediate_dim=2048, num_heads=8)
    layer(ops.ones((2, 4, 512)), ops.ones((2, 5, 512))).shape  # (2, 4, 512)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.1.
    """

    @takes(DecoderLayerOptions)
    def __init__(self, *args, **kwargs):
        super().__init__(DecoderLayerOptions(*args, **kwargs))
        self.cross_attention = None
        if self.options.cross_attention:
            self.cross_attention_norm, self.cross_attention_dropout, self.cross_attention_depth = (
                self._make_residual("cross_attention")
            )
            self.cross_attention = self._make_attention("cross_attention")

    def _make_self_attention(self):
        options = self.options
        check_choice("autoregression", options.autoregression, AUTOREGRESSIONS)
        self.is_recurrent = options.autoregression == "ssru"
        if self.is_recurrent:
            return SSRU(use_bias=options.use_bias, **self._part("ssru"))
        return super()._make_self_attention()

    def build(self, x_shape, encoded_shape=None):
        if self.cross_attention is not None:
            if encoded_shape is None:
                raise ValueError(_NO_SOURCE)
            self.cross_attention.build(x_shape, encoded_shape)
            self.cross_attention_norm.build(x_shape)
            self.cross_attention_dropout.build(x_shape)
            if self.cross_attention_depth is not None:
                self.cross_attention_depth.build(x_shape)
        super().build(x_shape)

    def init_cache(self, encoded, rows=None, max_length=None):
        """Returns the cache that a search begins with: the source's keys and values, no target.

        Args:
            encoded: float tensor `[B, S, D]`, or `None` without cross-attention. The encoder's
                output.
            rows: int, scalar tensor or `None`, default `None`. The rows of the decoder's batch, a
                multiple of B; `None` for B itself. Required without cross-attention.
            max_length: int or `None`, default `None`. The capacity of a static cache in tokens;
                `None` for a growing cache.

        Returns:
            `DecoderLayerCache`.
        """
        cross_attention = ()
        if self.cross_attention is not None:
            cross_attention = self.cross_attention.compute_cache(encoded)
            rows = keras.ops.shape(cross_attention.key)[0] if rows is None else rows
        return DecoderLayerCache(self.self_attention.init_cache(rows, max_length), cross_attention)

    def call(
        self,
        x,
        encoded=None,
        padding_mask=None,
        left_padding=None,
        encoded_padding_mask=None,
        attention_mask=None,
        cross_attention_mask=None,
        attention_bias=None,
        use_causal_mask=True,
        sequence_starts=None,
        cache=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        x_mask=None,
        encoded_mask=None,
    ):
        if encoded is None and cache is None and self.cross_attention is not None:
            raise ValueError(_NO_SOURCE)
        options = {"return_attention_scores": return_attention_scores, "training": training}
        implicit_mask = mask if mask is not None else x_mask
        inputs = self._sublayer_input(self.self_attention_norm, x)
        self_cache = None if cache is None else cache.self_attention
        if self.is_recurrent:
            unusable = (left_padding, attention_mask, attention_bias)
            if not use_causal_mask or any(value is not None for value in unusable):
                raise ValueError(
                    "An SSRU reads one token after the other, so it takes no attention_mask, "
                    "attention_bias or left_padding, and is always causal: give padding_mask and "
                    "sequence_starts."
                )
            padding_mask = both(padding_mask, implicit_mask)
            masks = {"padding_mask": padding_mask, "sequence_starts": sequence_starts}
            outputs = self.self_attention(inputs, **masks, cache=self_cache)
            output, scores, self_cache = _unpack(outputs, False, cache)
        else:
            if sequence_starts is not None:
                raise ValueError(
                    "sequence_starts is for an SSRU: give self-attention an attention_mask."
                )
            outputs = self.self_attention(
                inputs,
                padding_mask=padding_mask,
                left_padding=left_padding,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                use_causal_mask=use_causal_mask,
                cache=self_cache,
                query_mask=implicit_mask,
                **options,
            )
            output, scores, self_cache = _unpack(outputs, return_attention_scores, cache)
        x = self._add_self_attention(x, output, training)
        cross_cache = ()
        if self.cross_attention is not None:
            norm, dropout = self.cross_attention_norm, self.cross_attention_dropout
            outputs = self.cross_attention(
                self._sublayer_input(norm, x),
                None if cache is not None else encoded,
                padding_mask=encoded_padding_mask,
                attention_mask=cross_attention_mask,
                cache=None if cache is None else cache.cross_attention,
                value_mask=encoded_mask,
                **options,
            )
            output, cross_scores, cross_cache = _unpack(outputs, return_attention_scores, cache)
            x = self._add(norm, dropout, self.cross_attention_depth, x, output, training)
            scores = (scores, cross_scores)
        outputs = [self._run_feed_forward(x, training)]
        if return_attention_scores:
            outputs.append(scores)
        if cache is not None:
            outputs.append(DecoderLayerCache(self_cache, cross_cache))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compute_output_spec(self, x, encoded=None, return_attention_scores=False, **kwargs):
        if not return_attention_scores:
            return super().compute_output_spec(x)
        output, scores = super().compute_output_spec(x, True)
        own = None if self.is_recurrent else scores
        if self.cross_attention is None:
            return output, own
        shape = (*scores.shape[:3], encoded.shape[1])
        return output, (own, keras.KerasTensor(shape, dtype=self.compute_dtype))


def _unpack(outputs, has_scores, cache):
    """Returns output, scores and cache of what an attention returned; `None` for what is absent."""
    if not has_scores:
        return (outputs, None, None) if cache is None else (outputs[0], None, outputs[1])
    return (*outputs, None) if cache is None else outputs
