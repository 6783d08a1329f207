"""How a program makes models and layers, for the type checkers alone: each sees every argument.

A line with `type: ignore` is wrong, and the checkers say so: else the comment itself is an error.
"""

from typing import assert_type

import kformer


def models() -> None:
    """Right calls."""
    model = kformer.Transformer(8000, hidden_dim=64, dropout=0.2, position_encoding=None)
    assert_type(model, kformer.Transformer)
    kformer.Transformer(vocabulary_size=8000, dtype="mixed_bfloat16", name="model", trainable=False)
    tiny = kformer.Transformer.from_preset("tiny", 8000, num_encoder_layers=2, name="tiny")
    assert_type(tiny, kformer.Transformer)
    kformer.Transformer.from_preset(preset="tiny", vocabulary_size=8000)
    kformer.TransformerDecoder(8000, num_layers=2, position_encoding="rope", name="decoder")
    kformer.TransformerEncoder(8000, num_layers=2, head="classification", num_outputs=3)
    kformer.Forecaster(3, 1, hidden_dim=64, dtype="float32")


def layers() -> None:
    """Right calls."""
    kformer.layers.EncoderLayer(256, 4, dropout=0.1, rotary={"base": 10_000.0}, name="layer")
    kformer.layers.DecoderLayer(256, num_heads=4, cross_attention=False, dtype="float32")
    kformer.layers.MultiHeadAttention(8, window=16, kind="local", trainable=False)
    kformer.layers.PositionalEmbedding(8000, 512, max_length=128, position_encoding="learned")
    kformer.layers.FeedForward(2048, gated=True, seed=1)


def wrong_models() -> None:
    """Misspelt, missing and mistyped arguments."""
    kformer.Transformer(8000, hiden_dim=3)  # type: ignore[call-arg]
    kformer.Transformer(hidden_dim=3)  # type: ignore[call-arg]
    kformer.Transformer(8000, hidden_dim="3")  # type: ignore[arg-type]
    kformer.Transformer(8000, nam="model")  # type: ignore[call-arg]
    kformer.Transformer.from_preset("tiny", 8000, hiden_dim=3)  # type: ignore[call-arg]
    kformer.Transformer.from_preset("tiny")  # type: ignore[call-arg]
    kformer.Transformer.from_preset(5, 8000)  # type: ignore[arg-type]
    kformer.TransformerDecoder(8000, num_layer=2)  # type: ignore[call-arg]
    kformer.TransformerEncoder(8000, head=3)  # type: ignore[arg-type]
    kformer.Forecaster(hidden_dim=64)  # type: ignore[call-arg]


def wrong_layers() -> None:
    """Misspelt, missing and mistyped arguments."""
    kformer.layers.EncoderLayer(256, 4, dropot=0.1)  # type: ignore[call-arg]
    kformer.layers.EncoderLayer(256)  # type: ignore[call-arg]
    kformer.layers.DecoderLayer(256, 4, activation=3)  # type: ignore[arg-type]
    kformer.layers.MultiHeadAttention(8, windo=16)  # type: ignore[call-arg]
    kformer.layers.PositionalEmbedding(8000, 512, name=5)  # type: ignore[arg-type]
    kformer.layers.FeedForward(2048, gate=True)  # type: ignore[call-arg]
