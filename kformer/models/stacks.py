"""Stacks of encoder and of decoder layers, each with the norm after its last layer."""

import dataclasses

import keras

from kformer.layers import (
    DecoderLayer,
    Distances,
    EncoderLayer,
    PositionalEmbedding,
    RelativePositionBias,
    alibi_bias,
    band_distances,
    distances,
)
from kformer.layers.encoder_layer import LayerOptions
from kformer.layers.inputs import part_arguments
from kformer.layers.normalization import make_norm, normalize


def token_embedding(config, policy):
    """Makes the embedding of a model with one stack.

    Args:
        config: `kformer.models.config.TokenConfig`.
        policy: Keras dtype policy. The policy of the layer.

    Returns:
        `PositionalEmbedding`.
    """
    return PositionalEmbedding(
        config.vocabulary_size,
        config.hidden_dim,
        **config.embedding_options,
        scale=config.scale_embeddings,
        **part_arguments("embedding", config.seed, policy),
    )


class Stack:
    """The base of both stacks: their layers, and the positions that act within attention.

    A stack is a plain object, because a Keras model on PyTorch may own no layer before its
    constructor has run.

    Args:
        config: `kformer.models.config.Architecture`. Each of its options that the layers also have
            is passed to them.
        num_layers: int. The number of layers.
        policy: Keras dtype policy. The policy of the layers.
        **layer_options: further options of the layers.
    """

    layer_class = None
    label = None  # The beginning of the layers' names.
    bidirectional = None  # Whether a query attends to later keys.

    def __init__(self, config, num_layers, policy, **layer_options):
        names = [field.name for field in dataclasses.fields(LayerOptions)]
        options = {name: getattr(config, name) for name in names if hasattr(config, name)}
        options |= layer_options
        if config.position_encoding == "rope":
            interleaved = config.rotary_interleaved
            options["rotary"] = {"base": config.rotary_base, "interleaved": interleaved}
        if config.position_encoding == "shaw":
            distance, shared = config.relative_max_distance, config.relative_shared
            options["relative_positions"] = {"max_distance": distance, "shared": shared}
        self.layers = []
        for index in range(num_layers):
            options["stochastic_depth"] = config.stochastic_depth * (index + 1) / num_layers
            options |= part_arguments(f"{self.label}_layer_{index}", config.seed, policy)
            self.layers.append(self.layer_class(**options))
        self.is_local = config.attention_kind == "local"
        self._band = {}
        if self.is_local:
            self._band = {"window": config.attention_window, "dilation": config.attention_dilation}
            self._band["is_causal"] = not self.bidirectional
        self.norm = None
        if config.normalize_first if config.final_norm is None else config.final_norm:
            name = f"{self.label}_norm"
            epsilon = config.layer_norm_epsilon
            self.norm = make_norm(config.normalization, epsilon, dtype=policy, name=name)
        self._alibi_heads = config.num_heads if config.position_encoding == "alibi" else None
        self.relative_bias = None
        if config.position_encoding == "t5":
            self.relative_bias = RelativePositionBias(
                config.num_heads,
                config.relative_buckets,
                config.relative_max_distance,
                self.bidirectional,
                **part_arguments(f"{self.label}_relative_bias", config.seed, policy),
            )

    def attention_bias(self, x, cache=None, scores=False):
        """Computes the bias that every layer adds to the scores of its self-attention.

        Args:
            x: float tensor `[R, T, D]`. The input of the first layer.
            cache: cache of the first layer's self-attention, default `None`.
            scores: bool, default False. Whether the layers return attention scores: then local
                attention computes all pairs, not only its band.

        Returns:
            Float tensor `[N, T, S]`, or `None` for no bias. With a cache, S is its number of slots.
            For local attention T and S are those of a block, as in `band_distances`.
        """
        if self._alibi_heads is None and self.relative_bias is None:
            return None
        length, band = keras.ops.shape(x)[1], {} if scores else self._band
        if cache is not None:
            distance = cache.distances(length)
        elif isinstance(x, keras.KerasTensor):
            distance = Distances(**band)(x)
        else:  # The layer `Distances` would take twenty times as long for so small a tensor.
            distance = band_distances(**band) if band else distances(length, length)
        if self.relative_bias is None:
            return alibi_bias(self._alibi_heads, distance)
        return self.relative_bias(distance)


class EncoderStack(Stack):
    """A stack of encoder layers. Its arguments are those of `Stack`."""

    layer_class, label, bidirectional = EncoderLayer, "encoder", True

    def __call__(self, x, masks, training=None, record=None):
        """Runs the layers.

        Args:
            x: float tensor `[B, S, D]`.
            masks: dict. The arguments of the layers for their masks.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.

        Returns:
            Float tensor `[B, S, D]`.
        """
        append(record, "encoder_hidden_states", x)
        bias = self.attention_bias(x, scores=record is not None)
        for layer in self.layers:
            x = layer(
                x,
                **masks,
                attention_bias=bias,
                training=training,
                return_attention_scores=record is not None,
            )
            if record is not None:
                x, scores = x
                append(record, "encoder_attention_scores", scores)
                append(record, "encoder_hidden_states", x)
        return x if self.norm is None else normalize(self.norm, x)


class DecoderStack(Stack):
    """A stack of decoder layers. Its arguments are those of `Stack`."""

    layer_class, label, bidirectional = DecoderLayer, "decoder", False

    def __call__(
        self, x, encoded, masks, training=None, record=None, caches=None, recorded_layer=None
    ):
        """Runs the layers.

        Args:
            x: float tensor `[R, T, D]`.
            encoded: float tensor `[R, S, D]`, or `None` for layers without cross-attention or with
                a cache that has its keys and values.
            masks: dict. The arguments of the layers for their masks.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.
            caches: tuple with a cache per layer, default `None`.
            recorded_layer: int, default `None`. With `record`, only the cross-attention scores of
                this layer are collected; with `None` everything is.

        Returns:
            Float tensor `[R, T, D]`, and a tuple of the new caches, or `None` without `caches`.
        """
        full_record = record if recorded_layer is None else None
        append(full_record, "decoder_hidden_states", x)
        first_cache = None if caches is None else caches[0].self_attention
        bias = self.attention_bias(x, first_cache, scores=full_record is not None)
        new_caches = []
        for index, layer in enumerate(self.layers):
            is_recorded = record is not None and recorded_layer in (None, index)
            x = layer(
                x,
                encoded,
                **masks,
                attention_bias=bias,
                cache=None if caches is None else caches[index],
                training=training,
                return_attention_scores=is_recorded,
            )
            if caches is not None:
                *x, layer_cache = x
                new_caches.append(layer_cache)
                x = x[0] if len(x) == 1 else x
            if is_recorded:
                x, scores = x
                has_cross = layer.cross_attention is not None
                own_scores = scores[0] if has_cross else scores
                if own_scores is not None:  # An SSRU has none.
                    append(full_record, "decoder_attention_scores", own_scores)
                if has_cross:
                    append(record, "cross_attention_scores", scores[1])
                append(full_record, "decoder_hidden_states", x)
        x = x if self.norm is None else normalize(self.norm, x)
        return x, None if caches is None else tuple(new_caches)

    def init_caches(self, encoded, rows, max_length):
        """Returns a tuple with the first cache of each layer, from `DecoderLayer.init_cache`."""
        return tuple(layer.init_cache(encoded, rows, max_length) for layer in self.layers)


def append(record, key, value):
    """Adds a value to the list `record[key]`, unless `record` is `None`."""
    if record is not None:
        record.setdefault(key, []).append(value)
