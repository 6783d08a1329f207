"""One function for all formats."""

import importlib

# Format: where its function is. Looked up when it is asked for, since each has libraries of its own.
_FUNCTIONS = {
    "saved_model": ("kformer.export.saved_model", "export_saved_model"),
    "ctranslate2": ("kformer.export.ctranslate2", "export_ctranslate2"),
    "hf": ("kformer.interop", "export_huggingface"),
    "onnx": ("kformer.export.onnx", "export_onnx"),
}
FORMATS = tuple(_FUNCTIONS)


def export(translator, path, format="saved_model", **options):
    """Writes a translator's model in a format; see `kformer.Translator.export`.

    Raises:
        ValueError: there is no such format.
    """
    if format not in _FUNCTIONS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, but {format!r} was given.")
    module, name = _FUNCTIONS[format]
    return getattr(importlib.import_module(module), name)(translator, path, **options)
