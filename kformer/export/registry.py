"""One function for all export formats, which `kformer_options.export_formats` lists."""

import importlib
import pathlib

from kformer.models.lora import merge_lora
from kformer.translating.translator import Translator
from kformer.utils.checks import check_choice
from kformer.utils.types import Path
from kformer_options.export_formats import FORMATS, ExportFormat

__all__ = ["FORMATS", "ExportFormat", "export"]


def export(translator, path: Path, format: str = "saved_model", **options) -> pathlib.Path:
    """Writes a translator's model in a format.

    Args:
        translator: `kformer.Translator`. LoRA adapters of its model are merged.
        path: path. The folder to write.
        format: str, default "saved_model". A name in `FORMATS`.
        **options: arguments of the format's function.

    Returns:
        `pathlib.Path` of what was written.

    Raises:
        ValueError: there is no such format, or it cannot have the model or an option.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    kformer.export.export(translator, "exports/onnx", format="onnx", dtype="float16")
    # PosixPath('exports/onnx')
    ```
    """
    entry = FORMATS[check_choice("format", format, FORMATS)]
    function = getattr(importlib.import_module(entry.module), entry.function)
    merged = merge_lora(translator.model)
    if merged is not translator.model:
        others = translator.tokenizer, translator.options, translator.config, translator.dtype
        lists, translator = translator.token_lists, Translator(merged, *others)
        translator.token_lists = lists
    return function(translator, path, **options)
