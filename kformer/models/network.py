"""The forward pass of the encoder-decoder Transformer."""

from typing import Any, NamedTuple

import keras

from kformer.layers import (
    NormalizedPositions,
    PositionalEmbedding,
    causal_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    segment_positions,
)
from kformer.layers.inputs import part_arguments
from kformer.models.output import TokenOutput
from kformer.models.stacks import DecoderStack, EncoderStack


class DecoderCache(NamedTuple):
    """The decoder's state between two steps of a search.

    It has R rows for B source sentences; R is a multiple of B.
    """

    layers: Any  # a DecoderLayerCache per decoder layer
    source_mask: Any  # boolean [B, S], True at real source tokens
    # The projection to the vocabulary: [D, C] with a shortlist of C tokens; without one [D, V] on
    # TensorFlow and None on other backends, where a layer projects.
    output_kernel: Any = None
    output_bias: Any = ()  # [C] with a shortlist; else an empty tuple

    def reorder(self, rows):
        """Returns the cache with its rows reordered: row i is the former row `rows[i]`.

        Both belong to the same sentence; `rows` has the shape `[R]`.
        """
        return self._replace(layers=tuple(layer.reorder(rows) for layer in self.layers))

    def select(self, sentences, rows):
        """Returns the cache of the sentences `[C]` alone; their rows are `rows` `[R]`."""
        layers = tuple(layer.select(sentences, rows) for layer in self.layers)
        source_mask = keras.ops.take(self.source_mask, sentences, axis=0)
        return self._replace(layers=layers, source_mask=source_mask)


class Network:
    """The layers of a `Transformer`, and the order in which data goes through them.

    The functional model, encoding, cached decoding and `inspect` all run `encode` and `decode`.
    Searches on TensorFlow and PyTorch have a second implementation of the decoder,
    `kformer/decoding/fast/`; `tests/decoding/fast/test_decoder.py` compares the two.

    The network is a plain object, not a Keras model. On PyTorch a Keras model may own no layer
    before its constructor has run, but the constructor of a functional model needs the outputs, and
    these need the layers.

    For packed rows, `segments` has the number of the sequence that each token belongs to. Attention
    then stays within a segment, and positions are counted within each. Padding is segment 0, which
    real tokens do not attend to.

    Args:
        config: `kformer.models.config.TransformerConfig`.
        policy: Keras dtype policy. The policy of the layers.
    """

    def __init__(self, config, policy):
        target_size = config.target_vocabulary_size or config.vocabulary_size
        positions = {**config.embedding_options, "position_offset": config.position_offset}
        zero_id = config.start_id if config.zero_start else None

        def embedding(size, label):
            return PositionalEmbedding(
                size,
                config.hidden_dim,
                **({"position_encoding": None} if config.normalize_embeddings else positions),
                scale=config.scale_embeddings,
                zero_id=None if label == "source_embedding" else zero_id,
                **part_arguments(label, config.seed, policy),
            )

        def normalized_positions(label):
            if not config.normalize_embeddings:
                return None
            return NormalizedPositions(
                **positions,
                layer_norm_epsilon=config.layer_norm_epsilon,
                **part_arguments(label, config.seed, policy),
            )

        self.pad_id = config.pad_id
        shared = config.share_embeddings
        name = "embedding" if shared else "source_embedding"
        self.source_embedding = self.target_embedding = embedding(config.vocabulary_size, name)
        if not shared:
            self.target_embedding = embedding(target_size, "target_embedding")
        self.source_positions = normalized_positions("source_positions")
        self.target_positions = normalized_positions("target_positions")
        self.encoder = EncoderStack(config, config.num_encoder_layers, policy)
        self.is_recurrent = config.decoder_autoregression == "ssru"
        self.decoder = DecoderStack(
            config.of_decoder,
            config.num_decoder_layers,
            policy,
            autoregression=config.decoder_autoregression,
        )
        self.encoder_layers, self.decoder_layers = self.encoder.layers, self.decoder.layers
        scale = config.hidden_dim**-0.5 if config.scale_output else None
        self.output = TokenOutput(
            config, target_size, self.target_embedding, policy, config.output_bias, scale
        )
        # The projection is `None` if the target's embedding table projects; the bias is `None` if
        # the logits have none.
        self.output_projection, self.output_bias = self.output.projection, self.output.bias

    def encode(self, source_ids, training=None, record=None, segments=None):
        """Encodes source sentences.

        Args:
            source_ids: int32 tensor `[B, S]`.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.
            segments: int32 tensor `[B, S]`, default `None`. The segments of packed rows.

        Returns:
            The encoder's output, float `[B, S, D]`, and the mask of real tokens, boolean `[B, S]`.
        """
        source_mask = padding_mask(source_ids, self.pad_id)  # [B, S]
        masks, positions = {"padding_mask": source_mask}, {}
        if segments is not None:
            masks = {"attention_mask": segment_mask(segments, segments)}
            positions = {"positions": segment_positions(segments)}
        x = _embed(self.source_embedding, self.source_positions, source_ids, positions, training)
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
        recorded_layer=None,
    ):
        """Computes the logits of target tokens.

        Args:
            target_ids: int32 tensor `[R, T]`.
            encoded: float tensor `[R, S, D]`; `None` if the cache has its keys and values.
            source_mask: boolean tensor `[R, S]`; with a cache `[B, S]`. True at real source tokens.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.
            cache: `DecoderCache`, default `None`. The state after the tokens before `target_ids`.
            start_index: int or scalar tensor, default 0. The number of tokens in the cache.
            project: bool, default True. Whether to return logits; if not, the input of the
                projection, `[R, T, D]`. With a cache the result is always logits.
            segments: pair of int32 tensors `[R, S]` and `[R, T]`, default `None`. The segments of
                packed rows, of source and target.
            recorded_layer: int, default `None`. With `record`, only the cross-attention scores of
                this decoder layer are collected; with `None` everything is.

        Returns:
            Logits `[R, T, V]`; with a cache a tuple of them and the cache with the new tokens.
        """
        masks, positions = {"encoded_padding_mask": source_mask}, {"start_index": start_index}
        if segments is not None:
            source_segments, segments = segments
            positions = {"positions": segment_positions(segments)}
            masks = {"cross_attention_mask": segment_mask(segments, source_segments)}
            if self.is_recurrent:
                masks["sequence_starts"] = keras.ops.equal(positions["positions"], 0)
            else:
                mask, length = segment_mask(segments, segments), keras.ops.shape(segments)[1]
                # One causal mask serves all layers. Only local attention makes its own.
                if not self.decoder.is_local:
                    mask = combine_masks(mask, causal_mask(length, length))
                masks |= {"attention_mask": mask, "use_causal_mask": self.decoder.is_local}
        x = _embed(self.target_embedding, self.target_positions, target_ids, positions, training)
        caches = None if cache is None else cache.layers
        recording = {"record": record, "recorded_layer": recorded_layer}
        x, caches = self.decoder(x, encoded, masks, training=training, caches=caches, **recording)
        if cache is not None:
            logits = self.output.project(x, cache.output_kernel, cache.output_bias)
            return logits, cache._replace(layers=caches, source_mask=source_mask)
        return self.output.project(x) if project else self.output.before_projection(x)


def _embed(embedding, position_layer, ids, positions, training):
    """Returns the embeddings of ids; `positions` are the arguments that set their positions."""
    if position_layer is None:
        return embedding(ids, **positions, training=training)
    return position_layer(embedding(ids, training=training), **positions, training=training)
