"""One function for all formats, and what several of them need."""

import importlib

from kformer.models import variants_of
from kformer.utils.checks import check_choice

# Format: where its function is. Looked up when it is asked for, since each has libraries of its
# own.
_FUNCTIONS = {
    "saved_model": ("kformer.export.saved_model", "export_saved_model"),
    "ctranslate2": ("kformer.export.ctranslate2", "export_ctranslate2"),
    "hf": ("kformer.export.huggingface", "export_huggingface"),
    "onnx": ("kformer.export.onnx", "export_onnx"),
}
FORMATS = tuple(_FUNCTIONS)


def export(translator, path, format="saved_model", **options):
    """Writes a translator's model in a format; see `kformer.Translator.export`.

    Raises:
        ValueError: there is no such format.
    """
    check_choice("format", format, FORMATS)
    module, name = _FUNCTIONS[format]
    return getattr(importlib.import_module(module), name)(translator, path, **options)


def check_free(path):
    """Makes sure that nothing stands where a folder is to be written.

    Raises:
        ValueError: something does, a link to nothing included.
    """
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists already: give another path, or remove it first.")


def check_layers(model, format, known=()):
    """Refuses a model that other programs cannot run: of an architecture that they do not know, or
    with layers that are more than weights.

    Args:
        model: a `Transformer`.
        format: what to call the format in error messages.
        known: positions beyond the paper's that the format has, as in `variants_of`.

    Raises:
        ValueError: an option of the model is none of the paper's Transformer; or a layer is
            quantized: its weights are whole numbers, and scales beside them say what those mean.
    """
    variants = variants_of(model.get_config(), known)
    if variants:
        raise ValueError(
            f"The model has {', '.join(variants)}, which {format} does not know here; export a SavedModel."
        )
    for layer in model._flatten_layers(include_self=False):
        if getattr(layer, "quantization_mode", None):
            raise ValueError(
                f"The layer '{layer.name}' is quantized ({layer.quantization_mode}), which cannot be exported to {format}; export the "
                "model as it was before it was quantized."
            )


def forbidden_ids(model, search):
    """The tokens that a search never generates, sorted: those of its options and, in kformer's own
    mode, padding and start token.

    With a shortlist all that are not on it, the tokens of the prefix excepted, which other systems
    force in another way."""
    ids = set(search.forbidden_ids)
    if search.shortlist:
        ids |= set(range(model.target_vocabulary_size)) - {
            *search.shortlist,
            *search.prefix_ids,
            model.end_id,
        }
    if search.mode == "kformer":
        ids |= {model.start_id, model.pad_id} - {model.end_id}
    return sorted(ids)
