"""The blocks of the Transformer, each usable in any Keras model on any backend."""

from kformer.layers.cache import (
    CrossAttentionCache,
    DecoderLayerCache,
    KeyValueCache,
    StaticKeyValueCache,
)
from kformer.layers.decoder_layer import DecoderLayer
from kformer.layers.dropout import Dropout, StochasticDepth
from kformer.layers.encoder_layer import EncoderLayer
from kformer.layers.feature_embedding import FeatureEmbedding
from kformer.layers.feed_forward import FeedForward
from kformer.layers.linear_attention import LinearAttentionCache
from kformer.layers.local_attention import WindowCache, window_mask
from kformer.layers.masks import causal_mask, combine_masks, padding_mask, segment_mask
from kformer.layers.multi_head_attention import MultiHeadAttention
from kformer.layers.output_bias import OutputBias
from kformer.layers.positional_embedding import (
    NormalizedPositions,
    PositionalEmbedding,
    segment_positions,
    sinusoidal_positions,
)
from kformer.layers.relative_positions import (
    Distances,
    RelativePositionBias,
    alibi_bias,
    alibi_slopes,
    band_distances,
    distances,
    relative_buckets,
    rotate_positions,
)
from kformer.layers.ssru import SSRU, SSRUCache, linear_recurrence

__all__ = [
    "CrossAttentionCache",
    "DecoderLayer",
    "DecoderLayerCache",
    "Distances",
    "Dropout",
    "EncoderLayer",
    "FeatureEmbedding",
    "FeedForward",
    "KeyValueCache",
    "LinearAttentionCache",
    "MultiHeadAttention",
    "NormalizedPositions",
    "OutputBias",
    "PositionalEmbedding",
    "RelativePositionBias",
    "SSRU",
    "SSRUCache",
    "StaticKeyValueCache",
    "StochasticDepth",
    "WindowCache",
    "alibi_bias",
    "alibi_slopes",
    "band_distances",
    "causal_mask",
    "combine_masks",
    "distances",
    "linear_recurrence",
    "padding_mask",
    "relative_buckets",
    "rotate_positions",
    "segment_mask",
    "segment_positions",
    "sinusoidal_positions",
    "window_mask",
]
