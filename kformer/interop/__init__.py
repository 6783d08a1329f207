"""Published checkpoints in."""

from kformer.interop.importing import import_checkpoint, load_checkpoint

__all__ = ["import_checkpoint", "load_checkpoint"]
