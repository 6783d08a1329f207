"""The forward pass of the encoder-decoder Transformer."""

from typing import Any, NamedTuple

import keras

from kformer.layers import (
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
from kformer.layers.positional_embedding import POSITION_ENCODINGS
from kformer.layers.shapes import linear
from kformer.models.stacks import RELATIVE_POSITIONS, DecoderStack, EncoderStack


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
        dropout,
        layer_norm_epsilon,
        position_encoding,
        max_length,
        target_vocabulary_size,
        share_embeddings,
        share_output,
        scale_embeddings,
        scale_output,
        position_offset,
        normalize_embeddings,
        output_bias,
        pad_id,
        seed,
        policy,
        **stack_options,
    ):
        if position_encoding not in (*POSITION_ENCODINGS, *RELATIVE_POSITIONS):
            named = ", ".join(repr(choice) for choice in (*POSITION_ENCODINGS, *RELATIVE_POSITIONS) if choice)
            raise ValueError(f"Unknown position encoding {position_encoding!r}: choose one of {named}, or None (no positions).")
        positions = {
            "position_encoding": None if position_encoding in RELATIVE_POSITIONS else position_encoding,
            "max_length": max_length if position_encoding == "learned" else None,
            "position_offset": position_offset,
            "dropout": dropout,
        }
        no_positions = {"position_encoding": None}
        stack_options |= {
            "dropout": dropout,
            "layer_norm_epsilon": layer_norm_epsilon,
            "position_encoding": position_encoding,
            "seed": seed,
            "policy": policy,
        }

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

        self.pad_id = pad_id
        self.source_embedding = embedding(vocabulary_size, "embedding" if share_embeddings else "source_embedding")
        self.target_embedding = (
            self.source_embedding
            if share_embeddings
            else embedding(target_vocabulary_size or vocabulary_size, "target_embedding")
        )
        self.source_positions = normalized_positions("source_positions")
        self.target_positions = normalized_positions("target_positions")
        self.encoder = EncoderStack(num_encoder_layers, "encoder", bidirectional=True, **stack_options)
        self.decoder = DecoderStack(num_decoder_layers, "decoder", bidirectional=False, **stack_options)
        self._output_scale = hidden_dim**-0.5 if scale_output else None
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

    @property
    def encoder_layers(self):
        """The layers of the encoder."""
        return self.encoder.layers

    @property
    def decoder_layers(self):
        """The layers of the decoder."""
        return self.decoder.layers

    def encode(self, source_ids, training=None, record=None, segments=None):
        """Source ids `[B, S]` to the encoder's output `[B, S, D]` and the mask of real tokens `[B, S]`."""
        source_mask = padding_mask(source_ids, self.pad_id)  # [B, S]
        masks, placed = {"padding_mask": source_mask}, {}
        if segments is not None:
            masks, placed = {"attention_mask": segment_mask(segments, segments)}, {"positions": segment_positions(segments)}
        x = _embed(self.source_embedding, self.source_positions, source_ids, placed, training)
        return self.encoder(x, masks, training=training, record=record), source_mask

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
            masks, placed = _packed_masks(*segments, joined=not self.decoder.is_local), {"positions": segment_positions(segments[1])}
        x = _embed(self.target_embedding, self.target_positions, target_ids, placed, training)
        caches = None if cache is None else cache.layers
        x, caches = self.decoder(x, encoded, masks, training=training, record=record, caches=caches)
        if self._output_scale is not None:
            x = x * self._output_scale
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
        return logits if cache is None else (logits, cache._replace(layers=caches, source_mask=source_mask))

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


def _packed_masks(source_segments, target_segments, joined):
    """The masks of a decoder layer over packed rows, made once for all layers; `joined`, the causal one is part of them."""
    length = keras.ops.shape(target_segments)[1]
    mask = segment_mask(target_segments, target_segments)
    return {
        "attention_mask": combine_masks(mask, causal_mask(length, length)) if joined else mask,
        "use_causal_mask": not joined,
        "cross_attention_mask": segment_mask(target_segments, source_segments),
    }


def _embed(embedding, positions, ids, placed, training):
    """Ids to vectors; `placed` are the arguments that tell their positions."""
    if positions is None:
        return embedding(ids, **placed, training=training)
    return positions(embedding(ids, training=training), **placed, training=training)
