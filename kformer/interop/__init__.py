"""Published checkpoints in and out."""

from kformer.interop.exporting import export_huggingface
from kformer.interop.importing import import_checkpoint, load_checkpoint

__all__ = ["export_huggingface", "import_checkpoint", "load_checkpoint"]
