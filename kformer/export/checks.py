"""What several export formats check before they write anything, and what they write alike."""

import pathlib

from kformer.layers.low_rank import layers_inside
from kformer.models import Transformer
from kformer.models.config import variants_of
from kformer.utils.checks import check_choice, shown
from kformer_options.export_formats import FORMATS, check_installed

# Values of options beyond the paper's Transformer that a format has, as for `variants_of`.
KNOWN_VARIANTS = {
    "onnx": ("rope", "ssru", "gelu_sigmoid"),
    "ctranslate2": ("rope", "shaw", "gelu_sigmoid"),
    "hf": ("gelu_sigmoid",),
}


def check_export(path, format, dtype):
    """Checks what the export formats for other programs have in common.

    Args:
        path: path. The folder to write.
        format: str. A name in `FORMATS`.
        dtype: str or `None`, for the model's own. How weights are to be stored.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: something exists at the path, a link to nothing included, or the format has no
            such dtype.
        ImportError: the package that the format needs is not installed.
    """
    entry, path = FORMATS[format], pathlib.Path(path)
    if dtype is not None:
        check_choice("dtype", dtype, entry.dtypes)
    check_installed(format)
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists already: give another path, or remove it first.")
    return path


def check_exact(model, format):
    """Refuses a model of another class than `kformer.Transformer`.

    Args:
        model: Keras model.
        format: str. The format's name in error messages.

    Raises:
        ValueError: it is of another class, also of a subclass.
    """
    if type(model) is not Transformer:
        raise ValueError(
            f"Only a kformer.Transformer itself can be exported to {format}, but this model is a "
            f"{type(model).__name__}, which may compute something else. Export a SavedModel."
        )


def check_layers(model, format, known=(), remedy="Export a SavedModel."):
    """Refuses a model that other programs cannot run: of an architecture that they do not know, or
    with layers whose weights are not plain numbers.

    Args:
        model: `kformer.Transformer`.
        format: str. The format's name in error messages.
        known: tuple of str, default empty. What the format has beyond the paper's Transformer, one
            of `KNOWN_VARIANTS`.
        remedy: str. The sentence that ends the refusal of an architecture.

    Raises:
        ValueError: an option of the model is not one of the paper's Transformer, the model has
            LoRA adapters, or a layer is quantized: its weights are integers that mean nothing
            without the scales beside them.
    """
    if model.lora is not None:
        raise ValueError(
            f"The model has LoRA adapters, which {format} does not know here; export what "
            "kformer.training.merge_lora makes of it."
        )
    variants = variants_of(model.config.to_dict(), known)
    if variants:
        raise ValueError(
            f"The model has {', '.join(variants)}, which {format} does not know here. {remedy}"
        )
    for layer in layers_inside(model):
        if getattr(layer, "quantization_mode", None):
            raise ValueError(
                f"The layer '{layer.name}' is quantized ({layer.quantization_mode}), which cannot "
                f"be exported to {format}; export the model as it was before it was quantized."
            )


def check_special_tokens(tokenizer, ids, format):
    """Refuses a tokenizer whose special tokens have other names on one side than on the other.

    Args:
        tokenizer: `kformer.Tokenizer`.
        ids: dict of a token's name in error messages to its id.
        format: str. The format's name in error messages.

    Raises:
        ValueError: a token has two names.
    """
    for name, token_id in ids.items():
        source, target = (tokenizer.id_to_token(token_id, side) for side in ("source", "target"))
        if source != target:
            raise ValueError(
                f"The {name} token is {source!r} in the source vocabulary but {target!r} in the "
                f"target's; {format} has one name for both, so make the tokenizer with the same "
                "special tokens on both sides."
            )


def forbidden_ids(model, search):
    """The tokens that a search never generates.

    Those are the forbidden tokens of its options and, in kformer's own mode, padding and start
    token. With a shortlist they are all tokens that are not on it, except those of the prefix,
    which other systems force in another way.

    Args:
        model: `kformer.Transformer`.
        search: `SearchOptions`.

    Returns:
        Sorted list of int.
    """
    ids = set(search.forbidden_ids)
    if search.shortlist:
        allowed = {*search.shortlist, *search.prefix_ids, model.end_id}
        ids |= set(range(model.target_vocabulary_size)) - allowed
    if search.mode == "kformer":
        ids |= {model.start_id, model.pad_id} - {model.end_id}
    return sorted(ids)


def write_sentencepiece(tokenizer, folder):
    """Writes the SentencePiece models of a tokenizer, `source.spm` and `target.spm`.

    Args:
        tokenizer: `kformer.Tokenizer`.
        folder: `pathlib.Path`.

    Raises:
        ValueError: the tokenizer has added words, which the models alone would not find.
    """
    if added := tokenizer.vocabulary("source").added_words:
        raise ValueError(
            f"The tokenizer reads the added words {shown(list(added.ids))}, which SentencePiece "
            "alone does not find: export to saved_model."
        )
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(tokenizer.sentencepiece_model(side))
