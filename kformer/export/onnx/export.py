"""The ONNX format: a whole search as one graph, and two graphs for search loops of your own."""

import dataclasses
import pathlib
import shutil

import keras

from kformer import layers
from kformer.decoding.searcher import check_options
from kformer.export.checks import (
    KNOWN_VARIANTS,
    check_exact,
    check_export,
    check_layers,
    forbidden_ids,
)
from kformer.export.target_languages import target_choices
from kformer.layers.dropout import Dropout
from kformer.layers.low_rank import layers_inside
from kformer.saving.run_directory import without_paths
from kformer.text.folder import CONFIG_NAME
from kformer.text.text_bound import byte_bound
from kformer.utils.files import new_folder, read_json, write_json

METADATA_FILE = "kformer.json"
FORMAT_VERSION = 1

# The layers that the graphs know. Exact classes: a user's subclass may compute anything.
_LAYERS = {
    *(layers.PositionalEmbedding, layers.NormalizedPositions, layers.OutputBias),
    *(layers.EncoderLayer, layers.DecoderLayer, layers.FeedForward),
    *(layers.MultiHeadAttention, layers.SSRU),
    *(Dropout, keras.layers.Dense, keras.layers.InputLayer, keras.layers.LayerNormalization),
}
_WEIGHTS_FILE = "weights.bin"
# Copied into every folder.
_TRANSLATOR_FILE = "translator.py"


def export_onnx(translator, path, *, dtype="float32", **options):
    """Writes a translator as ONNX graphs, with its tokenizer and what a search needs.

    - `encoder.onnx`: `source_ids` int64 `[B, S]` -> `encoded` `[B, S, D]`, `source_mask` bool `[B,
      S]` and, for every decoder layer i, `cross_key_i` and `cross_value_i` `[B, N, S, H]`;
    - `decoder_step.onnx`: `target_ids` int64 `[B, T]`, `past_key_i` and `past_value_i` `[B, N, P,
      H]`, `cross_key_i` and `cross_value_i`, `source_mask` -> `logits` float32 `[B, T, V]`,
      `present_key_i` and `present_value_i` `[B, N, P + T, H]`; with an SSRU `past_state_i` and
      `present_state_i` float32 `[B, D]` in their place, and `past_length` and `present_length`,
      int64 scalars, for P and P + T;
    - `search.onnx`: a whole search with the options and the translator's lists of tokens, from
      `source_ids` to hypotheses (see `kformer.export.onnx.search.build_search`); left out where the
      options sample;
    - `weights.bin`: each weight once, which all graphs read; it must stay beside them;
    - `translator.py`: translates texts with these files by numpy, onnxruntime and sentencepiece
      alone;
    - `tokenizer/`: the folder that `kformer.Tokenizer.load` reads. `tokenizer/tokenizer.json` has
      the ids around a source (`prefix` and `suffix`), and of a model of several languages the id of
      each (`languages`), which is the first of `source_ids` for a tokenizer trained here;
    - `kformer.json`: format version, special ids, names, types and shapes of inputs and outputs in
      their order, sizes, the default search options, the maximum number of tokens of a source.

    All sizes but D, N, H and V are dynamic. A search starts with the start token, then the
    `prefix_ids` of its options, and P = 0; it never chooses a token of `forbidden_ids`, follows the
    `repetition_penalty` and `no_repeat_ngram_size` of its options, and passes what is present back
    as the past (states begin with zeros). A beam search repeats each row of the encoder's outputs
    for its beams and reorders the rows of the present ones. The graphs are made from the model's
    configuration and weights with the `onnx` package alone (opset 17), so every backend writes the
    same.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to make.
        dtype: str, default "float32". Or "float16" for weights of half the size, and "int8" for a
            quarter. The search computes in float32 with any of them; encoder and decoder step
            compute in float16 with weights of that kind, except softmax and logits.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: the path exists, or the model or an option cannot be exported.
        ImportError: `onnx` is not installed.

    Example:

    ```python
    from kformer.export.onnx import export_onnx

    translator = kformer.Translator.load("runs/en-de")
    export_onnx(translator, "onnx/en-de")
    # PosixPath('onnx/en-de')
    ```
    """
    path = check_export(path, "onnx", dtype)
    search = translator.search_options(options)
    check_model(translator.model)
    check_options(translator.model, search)
    with new_folder(path) as folder:
        signatures = _write_graphs(translator, search, folder, dtype)
        translator.tokenizer.save(folder / "tokenizer")
        metadata = _metadata(translator, search, signatures, dtype)
        if not search.sampling:
            metadata |= _search_metadata(translator, search, options, folder / "tokenizer")
        write_json(folder / METADATA_FILE, metadata)
        shutil.copyfile(
            pathlib.Path(__file__).with_name(_TRANSLATOR_FILE), folder / _TRANSLATOR_FILE
        )
    return path


def check_model(model):
    """Refuses a model that the graphs would not be equal to.

    Args:
        model: Keras model.

    Raises:
        ValueError: the model's class is not `kformer.Transformer` itself; or a layer is not of this
            package, is quantized or has LoRA weights.
    """
    check_exact(model, "ONNX")
    for layer in layers_inside(model):
        has_lora = getattr(layer, "lora_enabled", False)
        if type(layer) not in _LAYERS or has_lora:
            what = "has LoRA weights" if has_lora else f"is a {type(layer).__name__}"
            raise ValueError(
                f"The layer '{layer.name}' {what}, which the export to ONNX does not know; export "
                "a SavedModel."
            )
    check_layers(model, "ONNX", known=KNOWN_VARIANTS["onnx"])


def _write_graphs(translator, search, folder, dtype):
    """Writes the graphs; returns their description for `kformer.json`: file, inputs, outputs."""
    from kformer.export.onnx.graph import WeightStore
    from kformer.export.onnx.networks import build_decoder_step, build_encoder
    from kformer.export.onnx.search import build_search

    model, signatures = translator.model, {}
    with open(folder / _WEIGHTS_FILE, "wb") as file:
        weights = WeightStore(dtype, file)
        for graph in (
            build_encoder(model.network, weights),
            build_decoder_step(model.network, weights),
            *(
                []
                if search.sampling
                else [build_search(model, weights, search, translator.token_lists)]
            ),
        ):
            graph.save(folder / f"{graph.name}.onnx")
            signatures[graph.name] = {"file": f"{graph.name}.onnx", **graph.signature()}
    return signatures


def _metadata(translator, search, signatures, dtype):
    model, attention = translator.model, translator.model.network.decoder_layers[0].cross_attention
    special_ids = {"pad": model.pad_id, "unknown": translator.tokenizer.unknown_id}
    special_ids |= {"start": model.start_id, "end": model.end_id}
    return {
        "format_version": FORMAT_VERSION,
        "special_ids": special_ids,
        **signatures,
        "dtype": dtype,
        "num_decoder_layers": len(model.network.decoder_layers),
        "num_heads": attention.num_heads,
        "head_dim": model.hidden_dim // attention.num_heads,
        "hidden_dim": model.hidden_dim,
        "vocabulary_size": model.vocabulary_size,
        "target_vocabulary_size": model.target_vocabulary_size,
        "max_length": model.max_length,
        "search": dataclasses.asdict(search),
        # In kformer's own mode, padding and start token are among them.
        "forbidden_ids": forbidden_ids(model, search),
        "config": without_paths(translator.config),
        "text": None,
    }


def _search_metadata(translator, search, changes, folder):
    """What the graph of the search needs beside it: texts to ids and back, and what each target
    language changes.
    """
    model, tokenizer = translator.model, translator.tokenizer
    choices = target_choices(translator, search, changes) or {"": (tokenizer, search)}
    names = "prefix_ids", "length_penalty", "length_ratio", "length_offset", "least_limit"
    languages = {
        code: {
            "source_prefix": own.source_prefix,
            "source_suffix": own.source_suffix,
            **{name: getattr(options, name) for name in names},
        }
        for code, (own, options) in choices.items()
    }
    bound = byte_bound(model.max_length, search.max_text_bytes)
    return {"languages": languages, "text": describe_text(tokenizer, bound, folder)}


def describe_text(tokenizer, max_bytes, folder):
    """How texts become ids and back, for programs without kformer.

    Args:
        tokenizer: `kformer.Tokenizer`.
        max_bytes: int. The bytes of a text that are read.
        folder: `pathlib.Path`. The folder that it was saved to.

    Returns:
        Dict of JSON values; `None` where texts are split by OpenNMT's tokenizer.
    """
    sides = {side: tokenizer.vocabulary(side) for side in ("source", "target")}
    if any(side.splitter is not None for side in sides.values()):
        return None
    config, rule = read_json(folder / CONFIG_NAME), sides["source"].normalization
    return {
        "max_bytes": max_bytes,
        "unknown_id": tokenizer.unknown_id,
        "has_tags": bool(tokenizer.language_tags),
        "only_known_tags": tokenizer.language_tags == "known",
        "tags": tokenizer.tag_ids,
        "is_words": rule.name == "tokens",
        "before": rule.before,
        "after": rule.after,
        "sides": {
            name: _describe_side(vocabulary, config[name]) for name, vocabulary in sides.items()
        },
    }


def _describe_side(vocabulary, config):
    """What the vocabulary of one side does, as `kformer.text.vocabulary.Vocabulary` has it."""
    signs, added = vocabulary.leading_space_signs, vocabulary.added_words
    described = {
        "model": config["model"],
        "pieces": config["vocabulary"],
        "control_ids": vocabulary.control_ids,
        "leading_space_signs": min(signs, 2),
        "added_words": None,
    }
    if added is not None:
        described["added_words"] = {
            "ids": added.ids,
            "patterns": added.words,
            "lstrip": sorted(added.lstrip),
            "rstrip": sorted(added.rstrip),
            "keeps_spaces": added.keeps_spaces,
        }
    return described
