"""Functional models built of the layers."""

from kformer.models.ensemble import Ensemble
from kformer.models.network import DecoderCache
from kformer.models.presets import PRESETS, Preset
from kformer.models.transformer import Transformer

__all__ = ["PRESETS", "DecoderCache", "Ensemble", "Preset", "Transformer"]
