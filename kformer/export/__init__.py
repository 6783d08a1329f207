"""Export formats: a trained model for programs other than kformer."""

from kformer.export.huggingface import export_huggingface
from kformer.export.registry import FORMATS, export
from kformer.export.saved_model import SavedModelTranslator, export_model, export_saved_model

__all__ = [
    "FORMATS",
    "SavedModelTranslator",
    "export",
    "export_huggingface",
    "export_model",
    "export_saved_model",
]
