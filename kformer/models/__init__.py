"""Functional models built of the layers."""

from kformer.models.architecture import check_packing
from kformer.models.encoder_model import DualEncoder, Pooling, TransformerEncoder
from kformer.models.ensemble import Ensemble
from kformer.models.forecaster import Forecaster
from kformer.models.language_model import PromptCache, TransformerDecoder
from kformer.models.network import DecoderCache
from kformer.models.presets import PRESETS, Preset
from kformer.models.transformer import Transformer
from kformer.models.variants import VARIANTS, variants_of
from kformer.utils.moved import moved_names

__all__ = [
    "PRESETS",
    "VARIANTS",
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
    "check_packing",
    "variants_of",
]

__getattr__ = moved_names(__name__)
