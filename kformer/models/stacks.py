"""Encoder and decoder layers on top of each other, and the norm behind the last."""

import keras

from kformer.layers import (
    DecoderLayer,
    Distances,
    EncoderLayer,
    PositionalEmbedding,
    RelativePositionBias,
    alibi_bias,
)
from kformer.layers.counter_hash import derive_seed
from kformer.layers.normalization import make_norm, normalize
from kformer.layers.positional_embedding import POSITION_ENCODINGS
from kformer.utils.checks import check_choice

# Positions that attention sees; the others are added to the embeddings.
RELATIVE_POSITIONS = ("rope", "alibi", "t5")


def check_positions(position_encoding):
    """Raises a ValueError for an unknown position encoding."""
    choices = (*filter(None, POSITION_ENCODINGS), *RELATIVE_POSITIONS, None)
    check_choice("position_encoding", position_encoding, choices)


def embedding_and_layers(vocabulary_size, max_length, scale, seed, policy, options):
    """The embedding of a model of one stack, and the options of its layers.

    Args:
        vocabulary_size, max_length, seed, policy: of the model.
        scale: whether token vectors are multiplied by sqrt(D).
        options: dict, as `architecture_of` gives it.

    Raises:
        ValueError: the position encoding is unknown.
    """
    positions = options["position_encoding"]
    check_positions(positions)
    embedding = PositionalEmbedding(
        vocabulary_size,
        options["hidden_dim"],
        position_encoding=None if positions in RELATIVE_POSITIONS else positions,
        max_length=max_length if positions == "learned" else None,
        scale=scale,
        dropout=options["dropout"],
        seed=derive_seed(seed, "embedding"),
        dtype=policy,
        name="embedding",
    )
    return embedding, {name: value for name, value in options.items() if name != "hidden_dim"}


class Stack:
    """What both stacks share: their layers, and the positions that attention sees.

    A plain object, because a Keras model on PyTorch may own no layer before its constructor has
    run.

    Args:
        num_layers: int.
        label: names of the layers begin with it.
        num_heads, normalize_first, normalization, layer_norm_epsilon, attention_kind,
        attention_window, attention_dilation, global_tokens,
            **layer_options: of the layers.
        final_norm: whether a norm follows the last layer; `None` for the layers of pre-norm alone,
            which need it.
        stochastic_depth: rate at the last layer; it grows evenly from layer to layer.
        position_encoding, rotary_base, rotary_interleaved, relative_buckets, relative_max_distance:
            as in `Transformer`.
        bidirectional: whether a query sees later keys, which then have buckets of their own in T5's
            bias.
        seed, policy: of the layers.
    """

    layer_class = None

    def __init__(
        self,
        num_layers,
        label,
        *,
        num_heads,
        normalize_first,
        normalization,
        layer_norm_epsilon,
        final_norm,
        stochastic_depth,
        position_encoding,
        rotary_base,
        rotary_interleaved,
        relative_buckets,
        relative_max_distance,
        attention_kind,
        attention_window,
        attention_dilation,
        global_tokens,
        bidirectional,
        seed,
        policy,
        **layer_options,
    ):
        is_rotary = position_encoding == "rope"
        self.layers = [
            self.layer_class(
                num_heads=num_heads,
                normalize_first=normalize_first,
                normalization=normalization,
                layer_norm_epsilon=layer_norm_epsilon,
                stochastic_depth=stochastic_depth * (index + 1) / num_layers,
                rotary={"base": rotary_base, "interleaved": rotary_interleaved}
                if is_rotary
                else None,
                attention_kind=attention_kind,
                attention_window=attention_window,
                attention_dilation=attention_dilation,
                global_tokens=global_tokens,
                **layer_options,
                seed=derive_seed(seed, f"{label}_layer_{index}"),
                dtype=policy,
                name=f"{label}_layer_{index}",
            )
            for index in range(num_layers)
        ]
        self.is_local = attention_kind == "local"
        self._band = None
        if self.is_local:
            self._band = {
                "window": attention_window,
                "dilation": attention_dilation,
                "is_causal": not bidirectional,
            }
        if position_encoding in ("alibi", "t5") and (attention_kind == "linear" or global_tokens):
            other = (
                "attention_kind='linear'"
                if attention_kind == "linear"
                else f"global_tokens={global_tokens}"
            )
            raise ValueError(
                f"position_encoding={position_encoding!r} adds to the scores, which does not go with {other}: choose 'rope', or positions "
                "that are added to the embeddings."
            )
        has_norm = normalize_first if final_norm is None else final_norm
        self.norm = (
            make_norm(normalization, layer_norm_epsilon, dtype=policy, name=f"{label}_norm")
            if has_norm
            else None
        )
        self._alibi_heads = num_heads if position_encoding == "alibi" else None
        self.relative_bias = None
        if position_encoding == "t5":
            self.relative_bias = RelativePositionBias(
                num_heads,
                relative_buckets,
                relative_max_distance,
                bidirectional,
                seed=derive_seed(seed, f"{label}_relative_bias"),
                dtype=policy,
                name=f"{label}_relative_bias",
            )

    def attention_bias(self, x, cache=None, scores=False):
        """What every layer adds to the scores of its self-attention, or `None`.

        `[N, T, S]`, where S is with a cache the number of its slots; for local attention without
        cache or `scores` that of the band."""
        if self._alibi_heads is None and self.relative_bias is None:
            return None
        if cache is not None:
            distance = cache.distances(keras.ops.shape(x)[1])
        else:
            distance = Distances(**({} if self._band is None or scores else self._band))(x)
        return (
            alibi_bias(self._alibi_heads, distance)
            if self.relative_bias is None
            else self.relative_bias(distance)
        )

    def _finish(self, x):
        return x if self.norm is None else normalize(self.norm, x)


class EncoderStack(Stack):
    """Encoder layers."""

    layer_class = EncoderLayer

    def __call__(self, x, masks, training=None, record=None):
        """`[B, S, D]` to the encoder's output; `masks` are arguments of the layers.

        `record`, a dict, collects hidden states and attention scores on the way.
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
        return self._finish(x)


class DecoderStack(Stack):
    """Decoder layers."""

    layer_class = DecoderLayer

    def __call__(self, x, encoded, masks, training=None, record=None, caches=None):
        """`[R, T, D]` to the decoder's output and the layers' caches, which are `None` if none were
        given.
        """
        append(record, "decoder_hidden_states", x)
        bias = self.attention_bias(
            x, None if caches is None else caches[0].self_attention, scores=record is not None
        )
        found = []
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                encoded,
                **masks,
                attention_bias=bias,
                cache=None if caches is None else caches[index],
                training=training,
                return_attention_scores=record is not None,
            )
            if caches is not None:
                *x, layer_cache = x
                found.append(layer_cache)
                x = x[0] if len(x) == 1 else x
            if record is not None:
                x, scores = x
                self_scores, cross_scores = (
                    scores if layer.cross_attention is not None else (scores, None)
                )
                append(record, "decoder_attention_scores", self_scores)
                if cross_scores is not None:
                    append(record, "cross_attention_scores", cross_scores)
                append(record, "decoder_hidden_states", x)
        return self._finish(x), None if caches is None else tuple(found)


def append(record, key, value):
    """Adds a value to the list `record[key]`, if there is a record."""
    if record is not None:
        record.setdefault(key, []).append(value)
