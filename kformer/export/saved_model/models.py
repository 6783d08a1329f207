"""SavedModels of the models that translate nothing: an encoder with its head, a language model, a
forecaster.
"""

import dataclasses
import pathlib

import keras

from kformer.decoding.searcher import check_options
from kformer.export.saved_model.export import (
    export_in_tensorflow,
    version_folder,
    write_aside,
    write_metadata,
)
from kformer.export.saved_model.tokenizer import GraphTokenizer
from kformer.models import Forecaster, TransformerDecoder, TransformerEncoder
from kformer.models.architecture import check_sizes
from kformer.text import Tokenizer

_MODEL_FILE, _TOKENIZER_FOLDER = "model.keras", "tokenizer"


def export_model(
    model,
    path,
    tokenizer=None,
    *,
    version=None,
    imports=(),
    special_tokens=False,
    labels=None,
    steps=None,
    max_new_tokens=None,
    **options,
):
    """Writes `path/VERSION/`, which TensorFlow Serving and `tf.saved_model.load` read, of a model
    that is no translator.

    | model                | signature `serving_default`     | what it returns                                                            |
    |----------------------|---------------------------------|----------------------------------------------------------------------------|
    | `TransformerEncoder` | `text: string[B]`               | by its head, see below; and `truncated: bool[B]`                           |
    | `TransformerDecoder` | `text: string[B]`, a prompt     | `text`, `continuation`: string[B], `score: float[B]`, `truncated: bool[B]` |
    | `Forecaster`         | `past: float[B, S, F]`          | `forecast: float[B, steps, G]`                                             |

    An encoder returns `probabilities: float[B, K]` and `label` (classification), the same for each
    of the `tokens: string[B, S]` (labelling; `label` is -1, or empty, where a row is filled up),
    `values: float[B, K]` (regression), `embedding: float[B, K]`, or
    `hidden_states: float[B, S, D]` and `tokens`. `score` is the sum of the log-probabilities of a
        continuation's tokens, its end token
    included. A text too long for the model is cut at its end, a prompt at its beginning;
    `truncated` tells. A past that is longer than a forecaster's learned positions is an error of
    the server.

    Models of tokens also have the signature `token_ids`, `token_ids: int[B, S]`, filled up with the
    model's `pad_id`, without texts in the results (`continuation` is then int[B, N]). It is the
    default, too, where no tokenizer is given. A language model puts its start token in front of
    either.

    From a JAX or PyTorch backend the graph is made in a second process with the TensorFlow backend.

    Args:
        model: as above.
        path: folder of the model; its name is the model's.
        tokenizer: a `kformer.Tokenizer`, or `None`.
        version: int, the name of the folder to write in it; `None` for the next free number.
        imports: names of modules that register layers of your own; the second process imports them
            first.
        special_tokens: whether an encoder's texts get the tokenizer's prefix and suffix of a
            source, as in training.
        labels: list of K strings, the names of classes, which `label` then has in place of their
            numbers.
        steps: int, how far a forecaster looks ahead.
        max_new_tokens: int, the most tokens that a language model adds; `None` for 64, or half of
            its `max_length` where that is less.
        **options: fields of `kformer.decoding.SearchOptions` for a language model but those of
            length, `n_best` and `sampling`; `beam_size` is 1 unless given.

    Returns:
        The path of the version's folder.

    Raises:
        TypeError: the model is none of these (a translator has `export` itself), or there is no
            such search option.
        ValueError: an argument does not suit the model, or the version exists.
        ImportError: TensorFlow is not installed, or tensorflow_text, which a tokenizer needs.
        RuntimeError: the process that makes the graph failed; with its last words.

    Example:
        >>> kformer.export.export_model(classifier, "saved_models/mood", tokenizer, labels=["glad", "sad"])
        PosixPath('saved_models/mood/1')
        >>> import tensorflow as tf, tensorflow_text
        >>> tf.saved_model.load("saved_models/mood/1").signatures["serving_default"](text=tf.constant(["what a day"]))["label"]
        <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'glad'], dtype=object)>
    """
    labels = None if labels is None else list(labels)
    given = {
        "labels": labels,
        "steps": steps,
        "special_tokens": special_tokens,
        "max_new_tokens": max_new_tokens,
        **options,
    }
    search = _checked(model, tokenizer, given)
    target = version_folder(path, version)
    if keras.backend.backend() != "tensorflow":
        settings = {**given, "version": int(target.name), "imports": list(imports)}
        packages = ("tensorflow",) if tokenizer is None else ("tensorflow", "tensorflow_text")
        export_in_tensorflow(
            "model", lambda folder: _save_parts(model, tokenizer, folder), path, settings, packages
        )
        return target
    return write_aside(target, lambda folder: _write(model, tokenizer, search, given, folder))


def _checked(model, tokenizer, given):
    """Refuses what does not belong together; returns the search of a language model."""
    if not isinstance(model, (TransformerEncoder, TransformerDecoder, Forecaster)):
        raise TypeError(
            f"export_model takes a TransformerEncoder, a TransformerDecoder or a Forecaster, not a {type(model).__name__}; a "
            "translator is exported by kformer.Translator(model, tokenizer).export(path)."
        )
    name, known = type(model).__name__, set()
    if isinstance(model, Forecaster):
        known |= {"steps"}
        if tokenizer is not None:
            raise ValueError("A Forecaster reads numbers: leave the tokenizer out.")
        model.check_steps(given["steps"])
    elif tokenizer is not None:
        size = (
            tokenizer.vocabulary_size
            if isinstance(model, TransformerEncoder)
            else tokenizer.target_vocabulary_size
        )
        if size > model.vocabulary_size or tokenizer.pad_id != model.pad_id:
            raise ValueError(
                f"The tokenizer has {size} tokens and pads with {tokenizer.pad_id}, the model {model.vocabulary_size} and "
                f"{model.pad_id}: give the tokenizer that the model was trained with."
            )
    if isinstance(model, TransformerEncoder):
        known |= {"labels", "special_tokens"}
        if given["special_tokens"] and tokenizer is None:
            raise ValueError(
                "special_tokens are a tokenizer's, and none was given; give one, or leave them out."
            )
        labels = given["labels"]
        if labels is not None and model.head not in ("classification", "labelling"):
            raise ValueError(
                f"labels name classes, but the model's head is {model.head!r}; leave them out."
            )
        if labels is not None and not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels must be strings, but {labels!r} was given.")
        if labels is not None and len(labels) != model.output_shape[-1]:
            raise ValueError(
                f"{len(labels)} labels were given for the model's {model.output_shape[-1]} classes."
            )
    if isinstance(model, TransformerDecoder):
        return _search_of(model, given)
    unknown = [
        key for key, value in given.items() if key not in known and value not in (None, False)
    ]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: a {name} has no use for this; leave it out.")
    return None


def _search_of(model, given):
    limit = (
        min(64, model.max_length // 2)
        if given["max_new_tokens"] is None
        else given["max_new_tokens"]
    )
    check_sizes(max_new_tokens=limit)
    if limit >= model.max_length:
        raise ValueError(
            f"max_new_tokens must lie between 1 and {model.max_length - 1} for this model, but {limit} was given."
        )
    unsuited = [name for name in ("labels", "steps", "special_tokens") if given[name]]
    if unsuited:
        raise ValueError(
            f"{', '.join(unsuited)}: a TransformerDecoder has no use for this; leave it out."
        )
    ours = {"labels", "steps", "special_tokens", "max_new_tokens"}
    options = {name: value for name, value in given.items() if name not in ours}
    if options.get("sampling"):
        raise ValueError(
            "A SavedModel continues a text the same way each time, so sampling cannot be exported; use a beam."
        )
    if "n_best" in options:
        raise ValueError(
            "n_best: a SavedModel returns the best continuation alone; leave this out."
        )
    search = model.continuation_options(limit, options)
    check_options(model, search)
    return search


def _write(model, tokenizer, search, given, folder):
    import tensorflow as tf

    from kformer.export.saved_model import signatures

    graph_tokenizer = None if tokenizer is None else GraphTokenizer(tokenizer)
    if isinstance(model, Forecaster):
        module, signatures = signatures.build_forecast_module(model, given["steps"])
    elif isinstance(model, TransformerDecoder):
        module, signatures = signatures.build_language_module(model, graph_tokenizer, search)
    else:
        special = given["special_tokens"]
        suffix = list(tokenizer.source_suffix) if special else []
        module, signatures = signatures.build_encoder_module(
            model, graph_tokenizer, special, suffix, given["labels"]
        )
    tf.saved_model.save(module, str(folder), signatures=signatures)
    metadata = {
        "model": type(model).__name__,
        "dtype": model.policy_name,
        "labels": given["labels"],
        "steps": given["steps"],
    }
    write_metadata(
        folder,
        metadata | ({} if search is None else {"language_search": dataclasses.asdict(search)}),
    )


def _save_parts(model, tokenizer, folder):
    folder = pathlib.Path(folder)
    model.save(folder / _MODEL_FILE)
    if tokenizer is not None:
        tokenizer.save(folder / _TOKENIZER_FOLDER)


def load_parts(folder, output):
    """The first three arguments of `export_model`, from what another process saved in `folder`."""
    folder = pathlib.Path(folder)
    has_tokenizer = (folder / _TOKENIZER_FOLDER).exists()
    tokenizer = Tokenizer.load(folder / _TOKENIZER_FOLDER) if has_tokenizer else None
    return keras.saving.load_model(folder / _MODEL_FILE, compile=False), output, tokenizer
