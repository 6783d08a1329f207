"""The forward pass of the encoder-decoder Transformer."""

from typing import Any, NamedTuple

import keras

from kformer.layers import (
    DecoderLayer,
    EncoderLayer,
    NormalizedPositions,
    OutputBias,
    PositionalEmbedding,
    causal_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    segment_positions,
)
from kformer.layers.counter_hash import derive_seed
from kformer.layers.normalization import normalize
from kformer.layers.shapes import linear


class DecoderCache(NamedTuple):
    """What a search carries between two steps of the decoder: a tuple of tensors.

    R is the number of rows of the decoder's batch, B the number of source sentences; R is a multiple of B.
    """

    layers: Any  # a DecoderLayerCache per decoder layer
    source_mask: Any  # boolean [B, S], True at real source tokens
    output_kernel: Any = None  # [D, V], the projection to the vocabulary, where a backend is faster with it turned beforehand
    output_bias: Any = ()  # [V], where the projection is one of some tokens only

    def reorder(self, rows):
        """The cache in which row i is what row `rows[i]` was; rows stay with their sentence."""
        return self._replace(layers=tuple(layer.reorder(rows) for layer in self.layers))

    def select(self, sentences, rows):
        """The cache of some sentences `[C]`, whose rows are `rows` `[R]`."""
        layers = tuple(layer.select(sentences, rows) for layer in self.layers)
        return self._replace(layers=layers, source_mask=keras.ops.take(self.source_mask, sentences, axis=0))


class Network:
    """The layers of a `Transformer` and the order in which data goes through them.

    Building the functional model, encoding, cached decoding and inspecting all run `encode` and `decode`, so there is one
    forward pass. It is a plain object because a Keras model on PyTorch may own no layer before its constructor has run,
    and the functional constructor needs the outputs. The arguments are those of `Transformer`.

    `record`, a dict, collects hidden states and attention scores on the way.

    With `segments`, which tell for packed rows which of its sequences each token belongs to, attention stays inside a segment
    and positions begin anew with each. Padding is a segment of its own, 0, that real tokens do not see.
    """

    def __init__(
        self,
        vocabulary_size,
        *,
        num_encoder_layers,
        num_decoder_layers,
        hidden_dim,
        intermediate_dim,
        num_heads,
        dropout,
        attention_dropout,
        activation_dropout,
        activation,
        normalize_first,
        layer_norm_epsilon,
        position_encoding,
        max_length,
        target_vocabulary_size,
        share_embeddings,
        share_output,
        scale_embeddings,
        position_offset,
        normalize_embeddings,
        output_bias,
        pad_id,
        seed,
        policy,
    ):
        positions = {
            "position_encoding": position_encoding,
            "max_length": max_length if position_encoding == "learned" else None,
            "position_offset": position_offset,
            "dropout": dropout,
        }
        no_positions = {"position_encoding": None}

        def embedding(size, label):
            return PositionalEmbedding(
                size,
                hidden_dim,
                **(no_positions if normalize_embeddings else positions),
                scale=scale_embeddings,
                seed=derive_seed(seed, label),
                dtype=policy,
                name=label,
            )

        def normalized_positions(label):
            if not normalize_embeddings:
                return None
            return NormalizedPositions(
                **positions, layer_norm_epsilon=layer_norm_epsilon, seed=derive_seed(seed, label), dtype=policy, name=label
            )

        def stack(layer_class, count, label):
            return [
                layer_class(
                    intermediate_dim,
                    num_heads,
                    dropout=dropout,
                    attention_dropout=attention_dropout,
                    activation_dropout=activation_dropout,
                    activation=activation,
                    normalize_first=normalize_first,
                    layer_norm_epsilon=layer_norm_epsilon,
                    seed=derive_seed(seed, f"{label}_{index}"),
                    dtype=policy,
                    name=f"{label}_{index}",
                )
                for index in range(count)
            ]

        def final_norm(label):
            if not normalize_first:
                return None
            return keras.layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=policy, name=label)

        self.pad_id = pad_id
        self.source_embedding = embedding(vocabulary_size, "embedding" if share_embeddings else "source_embedding")
        self.target_embedding = (
            self.source_embedding
            if share_embeddings
            else embedding(target_vocabulary_size or vocabulary_size, "target_embedding")
        )
        self.source_positions = normalized_positions("source_positions")
        self.target_positions = normalized_positions("target_positions")
        self.encoder_layers = stack(EncoderLayer, num_encoder_layers, "encoder_layer")
        self.encoder_norm = final_norm("encoder_norm")
        self.decoder_layers = stack(DecoderLayer, num_decoder_layers, "decoder_layer")
        self.decoder_norm = final_norm("decoder_norm")
        self.output_projection = (
            None
            if share_output
            else keras.layers.Dense(
                target_vocabulary_size or vocabulary_size,
                use_bias=False,
                kernel_initializer=keras.initializers.RandomNormal(
                    stddev=hidden_dim**-0.5, seed=derive_seed(seed, "output_projection")
                ),
                dtype=policy,
                name="output_projection",
            )
        )
        self.output_bias = OutputBias(dtype=policy, name="output_bias") if output_bias else None

    def encode(self, source_ids, training=None, record=None, segments=None):
        """Source ids `[B, S]` to the encoder's output `[B, S, D]` and the mask of real tokens `[B, S]`."""
        source_mask = padding_mask(source_ids, self.pad_id)  # [B, S]
        masks, placed = {"padding_mask": source_mask}, {}
        if segments is not None:
            masks, placed = {"attention_mask": segment_mask(segments, segments)}, {"positions": segment_positions(segments)}
        if self.source_positions is None:
            x = self.source_embedding(source_ids, **placed, training=training)
        else:
            x = self.source_positions(self.source_embedding(source_ids, training=training), **placed, training=training)
        _append(record, "encoder_hidden_states", x)
        for layer in self.encoder_layers:
            x = layer(x, **masks, training=training, return_attention_scores=record is not None)
            if record is not None:
                x, scores = x
                _append(record, "encoder_attention_scores", scores)
                _append(record, "encoder_hidden_states", x)
        if self.encoder_norm is not None:
            x = normalize(self.encoder_norm, x)
        return x, source_mask

    def decode(
        self,
        target_ids,
        encoded,
        source_mask,
        training=None,
        record=None,
        cache=None,
        start_index=0,
        project=True,
        segments=None,
    ):
        """Target ids `[R, T]` and the encoded source to logits `[R, T, V]`; with a cache also the cache that has them.

        Without `project` what `output_table` projects to the vocabulary, `[R, T, D]`, takes the place of the logits.
        `segments` are a pair, the source's and the target's.
        """
        masks, placed = {"encoded_padding_mask": source_mask}, {"start_index": start_index}
        if segments is not None:
            masks, placed = _packed_masks(*segments), {"positions": segment_positions(segments[1])}
        if self.target_positions is None:
            x = self.target_embedding(target_ids, **placed, training=training)
        else:
            x = self.target_positions(self.target_embedding(target_ids, training=training), **placed, training=training)
        _append(record, "decoder_hidden_states", x)
        layer_caches = []
        for index, layer in enumerate(self.decoder_layers):
            x = layer(
                x,
                encoded,
                **masks,
                cache=None if cache is None else cache.layers[index],
                training=training,
                return_attention_scores=record is not None,
            )
            if cache is not None:
                *x, layer_cache = x
                layer_caches.append(layer_cache)
                x = x[0] if len(x) == 1 else x
            if record is not None:
                x, (self_scores, cross_scores) = x
                _append(record, "decoder_attention_scores", self_scores)
                _append(record, "cross_attention_scores", cross_scores)
                _append(record, "decoder_hidden_states", x)
        if self.decoder_norm is not None:
            x = normalize(self.decoder_norm, x)
        if not project:
            # A column of ones meets the bias in the last column of the table.
            logits = x if self.output_bias is None else keras.ops.concatenate([x, keras.ops.ones_like(x[..., :1])], axis=-1)
        elif cache is not None and cache.output_kernel is not None:
            logits = linear(x, cache.output_kernel)
        elif self.output_projection is None:
            logits = self.target_embedding(x, reverse=True)
        else:
            logits = self.output_projection(x)
        if project and self.output_bias is not None:
            if cache is not None and not isinstance(cache.output_bias, tuple):
                logits = logits + cache.output_bias
            else:
                logits = self.output_bias(logits)
        return logits if cache is None else (logits, cache._replace(layers=tuple(layer_caches), source_mask=source_mask))

    def output_kernel(self, tokens=None):
        """The projection as a matrix `[D, V]` for TensorFlow, whose product with a turned one takes longer; elsewhere `None`.

        With `tokens`, int array `[C]`, on every backend the matrix `[D, C]` of these tokens.
        """
        ops = keras.ops
        if keras.backend.backend() != "tensorflow" and tokens is None:
            return None
        if self.output_projection is not None:
            kernel = ops.cast(ops.convert_to_tensor(self.output_projection.kernel), self.output_projection.compute_dtype)
            return kernel if tokens is None else ops.take(kernel, tokens, axis=1)
        table = ops.convert_to_tensor(self.target_embedding.embeddings)
        table = table if tokens is None else ops.take(table, tokens, axis=0)
        return ops.transpose(ops.cast(table, self.target_embedding.compute_dtype))

    def output_bias_of(self, tokens):
        """The output bias `[C]` of some tokens; an empty tuple where there is none, or where `tokens` is `None`."""
        if tokens is None or self.output_bias is None:
            return ()
        return keras.ops.cast(keras.ops.take(self.output_bias.bias, tokens, axis=0), self.output_bias.compute_dtype)

    def output_table(self):
        """The projection to the vocabulary as a table, `[V, D]` in the compute dtype; with an output bias `[V, D + 1]`."""
        ops = keras.ops
        if self.output_projection is None:
            table = ops.cast(self.target_embedding.embeddings, self.target_embedding.compute_dtype)
        else:
            table = ops.transpose(ops.cast(self.output_projection.kernel, self.output_projection.compute_dtype))
        if self.output_bias is None:
            return table
        return ops.concatenate([table, ops.expand_dims(ops.cast(self.output_bias.bias, table.dtype), 1)], axis=1)


def _packed_masks(source_segments, target_segments):
    """The masks of a decoder layer over packed rows, made once for all layers."""
    length = keras.ops.shape(target_segments)[1]
    return {
        "attention_mask": combine_masks(segment_mask(target_segments, target_segments), causal_mask(length, length)),
        "use_causal_mask": False,
        "cross_attention_mask": segment_mask(target_segments, source_segments),
    }


def _append(record, key, value):
    if record is not None:
        record.setdefault(key, []).append(value)
