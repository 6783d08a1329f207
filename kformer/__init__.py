"""The encoder-decoder Transformer for Keras 3: train with `model.fit`, ship one SavedModel that takes and returns strings."""

from kformer import layers, models
from kformer.models import Transformer

__version__ = "0.1.0"

__all__ = ["Transformer", "layers", "models"]
