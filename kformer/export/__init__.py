"""Formats that carry a trained model away."""

from kformer.export.formats import FORMATS, export
from kformer.export.model_export import export_model
from kformer.export.saved_model import export_saved_model
from kformer.export.saved_model_translator import SavedModelTranslator

__all__ = ["FORMATS", "SavedModelTranslator", "export", "export_model", "export_saved_model"]
