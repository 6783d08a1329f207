"""Formats that carry a trained model away."""

from kformer.export.saved_model import export_saved_model
from kformer.export.saved_model_translator import SavedModelTranslator

__all__ = ["SavedModelTranslator", "export_saved_model"]
