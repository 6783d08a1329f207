"""Imports of published checkpoints, and what makes them smaller."""

from kformer.interop.importing import import_checkpoint, load_checkpoint
from kformer.interop.trimming import trim_vocabulary

__all__ = ["import_checkpoint", "load_checkpoint", "trim_vocabulary"]
