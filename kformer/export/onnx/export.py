"""The ONNX format: encoder and decoder step as two graphs, for a search loop in any language."""

import contextlib
import dataclasses
import math

import keras
import numpy as np

from kformer import layers
from kformer.decoding.searcher import check_options
from kformer.export.checks import (
    KNOWN_VARIANTS,
    check_exact,
    check_export,
    check_layers,
    forbidden_ids,
)
from kformer.layers.dropout import Dropout
from kformer.layers.low_rank import layers_inside
from kformer.saving.run_directory import without_paths
from kformer.utils.files import new_folder, write_json

METADATA_FILE = "kformer.json"
FORMAT_VERSION = 1

# The layers that the graphs know. Exact classes: a user's subclass may compute anything.
_LAYERS = {
    *(layers.PositionalEmbedding, layers.NormalizedPositions, layers.OutputBias),
    *(layers.EncoderLayer, layers.DecoderLayer, layers.FeedForward),
    *(layers.MultiHeadAttention, layers.SSRU),
    *(Dropout, keras.layers.Dense, keras.layers.InputLayer, keras.layers.LayerNormalization),
}
# Above this size the weights get a file of their own: a protobuf message is at most 2 GiB, and the
# graph needs some of it.
_INLINE_BYTES = 1_900_000_000
_WEIGHTS_FILE = "weights.bin"


def export_onnx(translator, path, *, dtype="float32", **options):
    """Writes a translator as two ONNX graphs, with its tokenizer and what a search needs.

    - `encoder.onnx`: `source_ids` int64 `[B, S]` -> `encoded` `[B, S, D]`, `source_mask` bool `[B,
      S]` and, for every decoder layer i, `cross_key_i` and `cross_value_i` `[B, N, S, H]`;
    - `decoder_step.onnx`: `target_ids` int64 `[B, T]`, `past_key_i` and `past_value_i` `[B, N, P,
      H]`, `cross_key_i` and `cross_value_i`, `source_mask` -> `logits` float32 `[B, T, V]`,
      `present_key_i` and `present_value_i` `[B, N, P + T, H]`; with an SSRU `past_state_i` and
      `present_state_i` float32 `[B, D]` in their place, and `past_length` and `present_length`,
      int64 scalars, for P and P + T;
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
    same. Large weights are stored in `weights.bin`, which both graphs read; it must stay beside
    them.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to make.
        dtype: str, default "float32". Or "float16" for weights, keys, values and sums of half the
            size; softmax and logits stay in float32.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's, in
            `kformer.json`.

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
        signatures = _write_graphs(translator.model, folder, dtype)
        translator.tokenizer.save(folder / "tokenizer")
        write_json(folder / METADATA_FILE, _metadata(translator, search, signatures, dtype))
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


def _write_graphs(model, folder, dtype):
    """Writes both graphs; returns their description for `kformer.json`: file, inputs, outputs."""
    from kformer.export.onnx.graph import WeightStore
    from kformer.export.onnx.networks import build_decoder_step, build_encoder

    size = sum(math.prod(weight.shape) for weight in model.weights) * np.dtype(dtype).itemsize
    signatures = {}
    is_large = size > _INLINE_BYTES
    with open(folder / _WEIGHTS_FILE, "wb") if is_large else contextlib.nullcontext() as file:
        weights = WeightStore(dtype, file)
        for name, build in (("encoder", build_encoder), ("decoder_step", build_decoder_step)):
            graph = build(model.network, weights)
            graph.save(folder / f"{name}.onnx")
            signatures[name] = {"file": f"{name}.onnx", **graph.signature()}
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
    }
