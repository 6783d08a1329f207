"""The TensorFlow SavedModel: strings in, strings out."""

from kformer.export.saved_model.export import export_saved_model
from kformer.export.saved_model.models import export_model
from kformer.export.saved_model.reader import SavedModelTranslator

__all__ = ["SavedModelTranslator", "export_model", "export_saved_model"]
