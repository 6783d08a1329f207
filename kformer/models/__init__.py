"""Functional Keras models, built from the layers."""

from kformer.models.encoder_model import DualEncoder, Pooling, TransformerEncoder
from kformer.models.ensemble import Ensemble
from kformer.models.forecaster import Forecaster
from kformer.models.language_model import PromptCache, TransformerDecoder
from kformer.models.network import DecoderCache
from kformer.models.presets import PRESETS, Preset
from kformer.models.transformer import Transformer

__all__ = [
    "PRESETS",
    "DecoderCache",
    "DualEncoder",
    "Ensemble",
    "Forecaster",
    "Pooling",
    "Preset",
    "PromptCache",
    "Transformer",
    "TransformerDecoder",
    "TransformerEncoder",
]
