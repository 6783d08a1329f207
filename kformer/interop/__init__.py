"""Imports of published checkpoints."""

from kformer.interop.importing import import_checkpoint, load_checkpoint
from kformer.utils.moved import moved_names

__all__ = ["import_checkpoint", "load_checkpoint"]

__getattr__ = moved_names(__name__)
