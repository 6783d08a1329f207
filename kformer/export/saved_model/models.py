"""SavedModels of the models that do not translate: an encoder with its head, a language model, a
forecaster.
"""

import dataclasses
import pathlib

import keras

from kformer.decoding.searcher import check_options
from kformer.export.saved_model.process import write_version
from kformer.models import Forecaster, TransformerDecoder, TransformerEncoder
from kformer.text import Tokenizer
from kformer.utils.checks import check_whole

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
    max_text_bytes=None,
    **options,
):
    """Writes a model that does not translate as a TensorFlow SavedModel.

    `path/VERSION/` is what TensorFlow Serving and `tf.saved_model.load` read.

    | model                | `serving_default`          | outputs                                 |
    |----------------------|----------------------------|-----------------------------------------|
    | `TransformerEncoder` | `text: string[B]`          | `truncated: bool[B]`, and by head       |
    | `TransformerDecoder` | `text: string[B]` (prompt) | `text`, `continuation`: string[B],      |
    |                      |                            | `score: float[B]`, `truncated: bool[B]` |
    | `Forecaster`         | `past: float[B, S, F]`     | `forecast: float[B, steps, G]`          |

    An encoder returns `probabilities: float[B, K]` and `label` (classification), the same for each
    of the `tokens: string[B, S]` (labelling; `label` is -1, or empty, where a row is filled up),
    `values: float[B, K]` (regression), `embedding: float[B, K]`, or `hidden_states: float[B, S, D]`
    and `tokens`. `score` is the sum of the log-probabilities of a continuation's tokens, its end
    token included. A text too long for the model is truncated at its end, a prompt at its
    beginning; `truncated` marks it. A past that is longer than a forecaster's learned positions is
    an error of the server.

    Models of tokens also have the signature `token_ids`, `token_ids: int[B, S]`, filled up with the
    model's `pad_id`, without texts in the results (`continuation` is then int[B, N]). It is the
    default, too, where no tokenizer is given. A language model puts its start token in front of
    either.

    From a JAX or PyTorch backend the graph is made in a second process with the TensorFlow backend.

    Args:
        model: `TransformerEncoder`, `TransformerDecoder` or `Forecaster`.
        path: path. The model's folder; its name is the model's.
        tokenizer: `kformer.Tokenizer`, default `None`, for no signature with texts.
        version: int, default `None`, for the next free number. The name of the folder to write in
            it.
        imports: sequence of str, default empty. Modules that register layers of your own; the
            second process imports them first.
        special_tokens: bool, default `False`. Whether an encoder's texts get the tokenizer's prefix
            and suffix of a source, as in training.
        labels: list of K str, default `None`. Names of the classes, which `label` then has instead
            of their numbers.
        steps: int, default `None`. How far a forecaster looks ahead.
        max_new_tokens: int, default `None`, for 64 or half of the model's `max_length`, whichever
            is less. The maximum number of tokens that a language model adds.
        max_text_bytes: int, default `None`, for 64 for each token that the model reads, and at
            least 4096. A text is cut to so many bytes before it is tokenized: at its end, or at its
            beginning for a language model. `truncated` marks it.
        **options: fields of `kformer.decoding.SearchOptions` for a language model but those of
            length, `n_best` and `sampling`; `beam_size` is 1 by default.

    Returns:
        `pathlib.Path` of the version's folder.

    Raises:
        TypeError: the model is of another class (a translator has `export` itself), or there is no
            such search option.
        ValueError: an argument does not suit the model, or the version exists.
        ImportError: TensorFlow is not installed, or tensorflow_text, which a tokenizer needs.
        RuntimeError: the process that makes the graph failed.

    Example:

    ```python
    classifier = kformer.TransformerEncoder(100, num_layers=1, head="classification", num_outputs=2)
    kformer.export.export_model(classifier, "exports/mood", labels=["glad", "sad"])
    # PosixPath('exports/mood/1')

    import tensorflow as tf
    model = tf.saved_model.load("exports/mood/1")
    model.signatures["serving_default"](token_ids=tf.constant([[5, 6, 7]]))["label"]
    # <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'glad'], dtype=object)>
    ```
    """
    labels = None if labels is None else list(labels)
    arguments = {"labels": labels, "steps": steps, "special_tokens": special_tokens}
    arguments |= {"max_new_tokens": max_new_tokens, "max_text_bytes": max_text_bytes, **options}
    search = _checked(model, tokenizer, arguments)
    return write_version(
        path,
        version,
        lambda: _build(model, tokenizer, search, arguments),
        kind="model",
        save=lambda folder: _save_parts(model, tokenizer, folder),
        options=arguments,
        imports=imports,
        has_texts=tokenizer is not None,
    )


def _checked(model, tokenizer, arguments):
    """Checks that model, tokenizer and arguments fit; returns `SearchOptions` of a language model,
    `None` of others.
    """
    if isinstance(model, Forecaster):
        if tokenizer is not None:
            raise ValueError("A Forecaster reads numbers: leave the tokenizer out.")
        model.check_steps(arguments["steps"])
        _check_unused(model, arguments, {"steps"})
    elif isinstance(model, TransformerEncoder):
        _check_tokenizer(model, tokenizer)
        if arguments["special_tokens"] and tokenizer is None:
            raise ValueError(
                "special_tokens are a tokenizer's, and none was given; give one, or leave them out."
            )
        _check_labels(model, arguments["labels"])
        if arguments["max_text_bytes"] is not None:
            check_whole("max_text_bytes", arguments["max_text_bytes"], least=4)
        _check_unused(model, arguments, {"labels", "special_tokens", "max_text_bytes"})
    elif isinstance(model, TransformerDecoder):
        _check_tokenizer(model, tokenizer)
        return _search_of(model, arguments)
    else:
        raise TypeError(
            "export_model takes a TransformerEncoder, a TransformerDecoder or a Forecaster, not a "
            f"{type(model).__name__}; a translator is exported by "
            "kformer.Translator(model, tokenizer).export(path)."
        )
    return None


def _check_tokenizer(model, tokenizer):
    if tokenizer is None:
        return
    is_encoder = isinstance(model, TransformerEncoder)
    size = tokenizer.vocabulary_size if is_encoder else tokenizer.target_vocabulary_size
    if size > model.vocabulary_size or tokenizer.pad_id != model.pad_id:
        raise ValueError(
            f"The tokenizer has {size} tokens and pads with {tokenizer.pad_id}, the model "
            f"{model.vocabulary_size} and {model.pad_id}: give the tokenizer that the model was "
            "trained with."
        )


def _check_labels(model, labels):
    if labels is None:
        return
    if model.head not in ("classification", "labelling"):
        raise ValueError(
            f"labels name classes, but the model's head is {model.head!r}; leave them out."
        )
    count = model.output_shape[-1]
    if len(labels) != count or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels must be {count} strings, one a class, but {labels!r} was given.")


def _check_unused(model, arguments, known):
    """Refuses arguments that a model of this class does not use."""
    passed = (name for name, value in arguments.items() if value not in (None, False))
    unused = [name for name in passed if name not in known]
    if unused:
        raise ValueError(
            f"{', '.join(unused)}: a {type(model).__name__} has no use for this; leave it out."
        )


def _search_of(model, arguments):
    """`SearchOptions` of a language model."""
    names = ("labels", "steps", "special_tokens", "max_new_tokens")
    limit = arguments["max_new_tokens"]
    limit = min(64, model.max_length // 2) if limit is None else limit
    check_whole("max_new_tokens", limit, most=model.max_length - 1)
    _check_unused(model, {name: arguments[name] for name in names}, {"max_new_tokens"})
    options = {name: value for name, value in arguments.items() if name not in names}
    if "n_best" in options:
        raise ValueError("n_best: a SavedModel returns the best continuation alone; leave it out.")
    search = model.continuation_options(limit, options)
    check_options(model, search)
    return search


def _build(model, tokenizer, search, arguments):
    """The module, the signatures and the metadata, for `write_version`."""
    from kformer.export.saved_model.signatures import EncoderGraph, ForecastGraph, LanguageGraph

    graph_tokenizer = None
    if tokenizer is not None:
        from kformer.export.saved_model.tokenizer import GraphTokenizer

        graph_tokenizer = GraphTokenizer(tokenizer)
    if isinstance(model, Forecaster):
        graph = ForecastGraph(model, arguments["steps"])
    elif isinstance(model, TransformerDecoder):
        graph = LanguageGraph(model, graph_tokenizer, search)
    else:
        special, names = arguments["special_tokens"], arguments["labels"]
        suffix = list(tokenizer.source_suffix) if special else []
        bound = arguments["max_text_bytes"]
        graph = EncoderGraph(model, graph_tokenizer, special, suffix, names, bound)
    module, signatures = graph.build()
    metadata = {"model": type(model).__name__, "dtype": model.policy_name}
    metadata |= {name: arguments[name] for name in ("labels", "steps")}
    if search is not None:
        metadata["language_search"] = dataclasses.asdict(search)
    return module, signatures, metadata


def _save_parts(model, tokenizer, folder):
    folder = pathlib.Path(folder)
    model.save(folder / _MODEL_FILE)
    if tokenizer is not None:
        tokenizer.save(folder / _TOKENIZER_FOLDER)


def load_parts(folder):
    """Loads what `export_model` saved for another process: the model, and its tokenizer or `None`.

    Args:
        folder: path.
    """
    folder = pathlib.Path(folder)
    model = keras.saving.load_model(folder / _MODEL_FILE, compile=False)
    has_tokenizer = (folder / _TOKENIZER_FOLDER).exists()
    return model, Tokenizer.load(folder / _TOKENIZER_FOLDER) if has_tokenizer else None
