"""The CTranslate2 format: the model for a C++ engine with quantized weights, tokens in and tokens
out.
"""

import dataclasses
import json
import pathlib

import keras
import numpy as np
from keras import ops

from kformer.export.checks import check_free, check_layers, forbidden_ids
from kformer.models import Transformer
from kformer.utils.checks import check_choice
from kformer.utils.files import new_folder

METADATA_FILE = "kformer.json"
FORMAT_VERSION = 1
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)
# CTranslate2 cuts sources at so many tokens unless told otherwise; a shorter table of positions
# would make it fail before that.
_DEFAULT_INPUT_LENGTH = 1024


def export_ctranslate2(translator, path, *, quantization="float32"):
    """Writes a model folder that `ctranslate2.Translator` loads, with neither Keras nor this
    package.

    The folder has CTranslate2's `model.bin`, `config.json` and vocabularies, the SentencePiece
    models `source.spm` and `target.spm`, the kformer tokenizer in `tokenizer/`, and `kformer.json`,
    which says how kformer's ids come about there:

    - `source_prefix`, `source_suffix`: tokens that the caller puts around the pieces of a source,
      such as a language. The end token is none of them where the engine adds it itself
      (`add_source_eos` in `config.json`), as for every tokenizer trained here. `target_prefix`:
      what the caller passes as `target_prefix`, a language or another token that a translation
      begins with.
    - `normalization`: SentencePiece alone gives the pieces that kformer gives, unless this is
      "identity", which takes the kformer tokenizer.
    - `translate_batch`: arguments with which the engine keeps to kformer's limits: sources are cut
      at the model's, a translation may be empty, and start and padding token are never proposed.
      CTranslate2 leaves such tokens out before its softmax, kformer behind it, so that scores
      differ by their little probability.

    With those arguments greedy search gives the same tokens. A beam of CTranslate2's follows
    Hugging Face's rules, so it gives the same tokens and scores as
    `SearchOptions(mode="huggingface", early_stopping=True, forced_end=False)`: there
    `length_penalty` is the exponent of the length, which counts the end token if
    `return_end_token=True`. (With `length_penalty=0` CTranslate2 stops by another rule, when the
    first of the beam ends.)

    The engine holds positions as a table. Fixed positions, which kformer computes for any length,
    end there with the longer of the model's `max_length` + 1 and the 1024 tokens that CTranslate2
    takes by default.

    Args:
        translator: a `kformer.Translator`.
        path: the folder to write; nothing may stand there.
        quantization: how weights are stored: `"float32"`, `"float16"`, `"bfloat16"` (needs
            PyTorch), `"int8"`, `"int8_float32"`, `"int8_float16"` or `"int8_bfloat16"`; the last
            three say what CTranslate2 computes the rest in.

    Returns:
        The path of the folder.

    Raises:
        ValueError: the path exists, the quantization is unknown, or CTranslate2 cannot hold the
            model.
        ImportError: ctranslate2 is not installed, or PyTorch for a bfloat16 format.

    Example:
        >>> export_ctranslate2(kformer.Translator.load("runs/en-de"), "models/en-de", quantization="int8")
        PosixPath('models/en-de')
        >>> engine = ctranslate2.Translator("models/en-de")
        >>> engine.translate_batch([source_pieces], beam_size=4)[0].hypotheses[0]
        ['▁Ein', '▁Mann', '▁reitet', ...]
    """
    path = pathlib.Path(path)
    _check(translator, path, quantization)
    spec = build_spec(translator)
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(path) as folder:
        spec.save(str(folder))
        _write_tokenizer(translator.tokenizer, folder)
        metadata = json.dumps(_metadata(translator, quantization), ensure_ascii=False, indent=2)
        (folder / METADATA_FILE).write_text(metadata + "\n", encoding="utf-8")
    return path


def build_spec(translator):
    """The model and its vocabularies as a `ctranslate2.specs.TransformerSpec` in float32, not
    validated yet.
    """
    from ctranslate2.specs import (
        TransformerDecoderSpec,
        TransformerEncoderSpec,
        TransformerSpec,
        common_spec,
    )

    model = translator.model
    config = model.get_config()
    # Not Keras's public list of layers: what shares what, and in which order, only the network
    # knows.
    network = model.network
    activations = {
        "relu": common_spec.Activation.RELU,
        "gelu": common_spec.Activation.GELU,
        "silu": common_spec.Activation.SWISH,
    }
    options = {
        "pre_norm": config["normalize_first"],
        "activation": activations[config["activation"]],
        "layernorm_embedding": network.source_positions is not None,
        **_rotary_options(network.encoder_layers[0].self_attention),
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config["num_encoder_layers"], config["num_heads"], **options),
        TransformerDecoderSpec(config["num_decoder_layers"], config["num_heads"], **options),
    )
    _set_tables(spec, network)
    for side, embedding, positions, norm in (
        (spec.encoder, network.source_embedding, network.source_positions, network.encoder.norm),
        (spec.decoder, network.target_embedding, network.target_positions, network.decoder.norm),
    ):
        side.scale_embeddings = embedding.scale
        if hasattr(side, "position_encodings"):  # A decoder with rotary positions has none.
            side.position_encodings.encodings = _position_table(
                embedding if positions is None else positions, model
            )
        if positions is not None:
            _set_norm(side.layernorm_embedding, positions.norm)
        if norm is not None:
            _set_norm(side.layer_norm, norm)
    for part, layer in zip(spec.encoder.layer, network.encoder_layers, strict=True):
        _set_layer(part, layer)
    for part, layer in zip(spec.decoder.layer, network.decoder_layers, strict=True):
        _set_layer(part, layer)
        _set_cross_attention(part.attention, layer)
    _set_vocabularies(spec, translator)
    spec.config.layer_norm_epsilon = config["layer_norm_epsilon"]
    return spec


def _rotary_options(attention):
    """What both sides of the engine are told of rotary positions, if the model has any."""
    if attention.rotary is None:
        return {}
    return {
        "rotary_dim": attention.head_size,
        "rotary_interleave": attention.rotary["interleaved"],
        "rotary_base": attention.rotary["base"],
    }


def _check(translator, path, quantization):
    """Refuses what cannot be written, before anything is."""
    check_choice("quantization", quantization, QUANTIZATIONS)
    check_free(path)
    if type(translator.model) is not Transformer:
        raise ValueError(
            f"CTranslate2 runs the model that it knows, and what {type(translator.model).__name__} does differently would be lost: "
            "only a kformer.Transformer itself, not a class of your own, can be exported to it."
        )
    check_layers(translator.model, "CTranslate2", known=("rope",))
    tables = [_tokens(translator, side) for side in ("source", "target")]
    for name, token_id in (
        ("unknown", translator.tokenizer.unknown_id),
        ("end", translator.model.end_id),
    ):
        pieces = [tokens[token_id] for tokens in tables]
        if pieces[0] != pieces[1]:
            raise ValueError(
                f"The {name} token is {pieces[0]!r} in the source vocabulary but {pieces[1]!r} in the target's; CTranslate2 has one "
                "name for both, so make the tokenizer with the same special tokens on both sides."
            )
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'A CTranslate2 export needs ctranslate2, which is not installed here ({error}): run `pip install "kformer[ctranslate2]"`.'
        ) from error
    if "bfloat16" in quantization:
        from ctranslate2.specs import model_spec

        if not model_spec.torch_is_available:
            raise ImportError(
                f"quantization={quantization!r} needs PyTorch, which is not installed here: run `pip install torch`."
            )


def _array(weight):
    """A weight of any backend and dtype as a float32 array of its own: quantizing writes into it."""
    return np.array(ops.convert_to_numpy(ops.cast(weight, "float32")), dtype="float32", order="C")


def _set_tables(spec, network):
    """Token vectors and the projection to the vocabulary. What is one table here is one array
    there, which is stored once.
    """
    source = _array(network.source_embedding.embeddings)  # [V, D]
    is_shared = network.target_embedding is network.source_embedding
    target = source if is_shared else _array(network.target_embedding.embeddings)
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    projection = network.output_projection
    spec.decoder.projection.weight = (
        target if projection is None else _array(ops.transpose(projection.kernel))
    )  # [V, D]
    if network.output_bias is not None:
        spec.decoder.projection.bias = _array(network.output_bias.bias)


def _position_table(layer, model):
    """The position vectors of one side, `[positions, D]`; zeros for a model without positions."""
    rows = _positions(model)
    if layer.position_encoding is None:
        return np.zeros((rows, model.hidden_dim), dtype="float32")
    return _array(layer.position_vectors(rows, model.hidden_dim, 0))


def _positions(model):
    """How many positions the engine gets: all that are learned, or as many as it may come to need."""
    if model.get_config()["position_encoding"] == "learned":
        return model.max_length
    return max(model.max_length + 1, _DEFAULT_INPUT_LENGTH)


def _set_layer(spec, layer):
    """What encoder and decoder layers share. A dense kernel is `[inputs, outputs]` here and
    `[outputs, inputs]` there.
    """
    attention = layer.self_attention
    # Queries, keys and values side by side in one kernel: both packages have them in this order.
    _set_linear(
        spec.self_attention.linear[0],
        attention.query_key_value_kernel,
        attention.query_key_value_bias,
    )
    _set_linear(spec.self_attention.linear[1], attention.output_kernel, attention.output_bias)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    feed_forward = layer.feed_forward
    _set_linear(spec.ffn.linear_0, feed_forward.intermediate.kernel, feed_forward.intermediate.bias)
    _set_linear(
        spec.ffn.linear_1,
        feed_forward.output_projection.kernel,
        feed_forward.output_projection.bias,
    )
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _set_cross_attention(spec, layer):
    attention = layer.cross_attention
    _set_linear(spec.linear[0], attention.query_kernel, attention.query_bias)
    _set_linear(spec.linear[1], attention.key_value_kernel, attention.key_value_bias)
    _set_linear(spec.linear[2], attention.output_kernel, attention.output_bias)
    _set_norm(spec.layer_norm, layer.cross_attention_norm)


def _set_linear(spec, kernel, bias):
    spec.weight = _array(ops.transpose(kernel))
    if bias is not None:
        spec.bias = _array(bias)


def _set_norm(spec, norm):
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _tokens(translator, side):
    """One name for each row of the model's table: the tokenizer's pieces, then names for rows that
    it has no piece for.
    """
    rows = {
        "source": translator.model.vocabulary_size,
        "target": translator.model.target_vocabulary_size,
    }[side]
    tokens = list(translator.tokenizer.vocabulary(side).pieces)
    taken = set(tokens)
    number = 0
    while len(tokens) < rows:
        if (name := f"<unused_{number}>") not in taken:
            tokens.append(name)
        number += 1
    return tokens


def _set_vocabularies(spec, translator):
    source, target = _tokens(translator, "source"), _tokens(translator, "target")
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    model, tokenizer = translator.model, translator.tokenizer
    config = spec.config
    config.unk_token = target[tokenizer.unknown_id]
    config.eos_token = target[model.end_id]
    config.decoder_start_token = target[model.start_id]
    # Never added to a source (a prefix is the caller's), but CTranslate2 appends a token that it
    # misses to a vocabulary.
    config.bos_token = (
        target[model.start_id] if target[model.start_id] in source else config.eos_token
    )
    config.add_source_bos = False
    config.add_source_eos = _adds_end(translator)


def _adds_end(translator):
    """Whether the engine can put the source's suffix itself: it knows the end token alone."""
    return tuple(translator.tokenizer.source_suffix) == (translator.model.end_id,)


def _write_tokenizer(tokenizer, folder):
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(tokenizer.sentencepiece_model(side))
    tokenizer.save(folder / "tokenizer")


def _metadata(translator, quantization):
    import ctranslate2

    model, tokenizer, options = translator.model, translator.tokenizer, translator.options
    source, target = _tokens(translator, "source"), _tokens(translator, "target")
    return {
        "format_version": FORMAT_VERSION,
        "quantization": quantization,
        "normalization": tokenizer.normalization,
        "source_prefix": [source[token_id] for token_id in tokenizer.source_prefix],
        "source_suffix": []
        if _adds_end(translator)
        else [source[token_id] for token_id in tokenizer.source_suffix],
        "target_prefix": [
            target[token_id] for token_id in options.prefix_ids or tokenizer.target_prefix
        ],
        "translate_batch": {
            "max_input_length": model.max_length,
            # CTranslate2 counts the end token.
            "max_decoding_length": min(options.max_length + 1, _positions(model)),
            "min_decoding_length": options.min_length,
            "suppress_sequences": [
                [target[token_id]] for token_id in forbidden_ids(model, options)
            ],
        },
        "search": dataclasses.asdict(options),
        "versions": {"ctranslate2": ctranslate2.__version__, "keras": keras.__version__},
        "config": translator.config,
    }
