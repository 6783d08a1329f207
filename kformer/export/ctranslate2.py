"""The CTranslate2 format: a model for a C++ engine, tokens in and tokens out."""

import dataclasses
import itertools

import keras
import numpy as np
from keras import ops

from kformer.decoding import SearchOptions
from kformer.export.checks import (
    KNOWN_VARIANTS,
    check_exact,
    check_export,
    check_layers,
    check_special_tokens,
    forbidden_ids,
    write_sentencepiece,
)
from kformer.saving.run_directory import without_paths
from kformer.utils.checks import check_float16
from kformer.utils.files import new_folder, write_json
from kformer_options.installed import check_extra
from kformer_options.names import named

METADATA_FILE = "kformer.json"
# The name that the engine looks for.
_LISTS_FILE = "vmap.txt"
FORMAT_VERSION = 1
# CTranslate2's default truncates sources at this number of tokens; with a shorter table of
# positions it would fail before.
_DEFAULT_INPUT_LENGTH = 1024


def export_ctranslate2(translator, path, *, dtype="float32"):
    """Writes a translator as a folder that `ctranslate2.Translator` loads, without this package.

    The folder has CTranslate2's `model.bin`, `config.json` and vocabularies, the SentencePiece
    models `source.spm` and `target.spm`, the kformer tokenizer in `tokenizer/`, and `kformer.json`,
    which describes how to get kformer's ids there:

    - `source_prefix`, `source_suffix`: tokens that the caller puts around the pieces of a source,
      such as a language. The end token is not among them where the engine adds it itself
      (`add_source_eos` in `config.json`), as for every tokenizer trained here. `target_prefix`:
      what the caller passes as `target_prefix`, a language or another token that the search of the
      translator begins with.
    - `languages`, of a model of several: the token of each language. `language_places` says what a
      caller changes for another one: with `{"source": [], "target": ["source_prefix"]}`, as for
      every tokenizer trained here, the token of the target language is the first of the source. The
      engine itself knows no languages.
    - `normalization`: SentencePiece alone gives the pieces that kformer gives, unless this is
      "identity", which takes the kformer tokenizer.
    - `translate_batch`: arguments that make the engine keep kformer's limits: sources are truncated
      at the model's maximum, a translation may be empty, and start and padding token are never
      generated. CTranslate2 leaves such tokens out before its softmax, kformer after it, so that
      scores differ by their small probability. `repetition_penalty` and `no_repeat_ngram_size` are
      there where the translator has them; the engine does not count the start token, and penalises
      logits in a beam, too, where kformer penalises log-probabilities.

    With token lists (`kformer shortlist`) there is also `vmap.txt`, and `use_vmap` among those
    arguments: the engine then computes the tokens alone that the source tokens of a batch may need.

    With those arguments greedy search gives the same tokens. CTranslate2's beam search follows
    Hugging Face's rules, so it gives the same tokens and scores as
    `SearchOptions(mode="huggingface", early_stopping=True, forced_end=False)`: there
    `length_penalty` is the exponent of the length, which counts the end token if
    `return_end_token=True`. (With `length_penalty=0` CTranslate2 stops by another rule, when the
    first of the beam ends.)

    The engine stores positions as a table. Fixed positions, which kformer computes for any length,
    end there at the model's `max_length` + 1 or at the 1024 tokens of CTranslate2's default,
    whichever is more.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to write; nothing may exist there.
        dtype: str, default "float32". How weights are stored: "float32", "float16",
            "bfloat16" (needs PyTorch), "int8", "int8_float32", "int8_float16" or "int8_bfloat16";
            the last three name what CTranslate2 computes the rest in.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: the path exists, the dtype is unknown, or CTranslate2 cannot run the
            model.
        ImportError: ctranslate2 is not installed, or PyTorch for a bfloat16 format.

    Example:

    ```python
    import ctranslate2

    from kformer.export.ctranslate2 import export_ctranslate2

    translator = kformer.Translator.load("runs/en-de")
    export_ctranslate2(translator, "exports/ctranslate2", dtype="int8")
    # PosixPath('exports/ctranslate2')
    engine = ctranslate2.Translator("exports/ctranslate2")
    pieces = translator.tokenizer.tokens(translator.tokenizer.tokenize(["A man rides."])[0])
    engine.translate_batch([pieces], beam_size=4)[0].hypotheses[0]
    # ['▁Ein', '▁Mann', '▁reitet', '.']
    # Of a model of several languages: engine.translate_batch([[">>de<<", *pieces]], beam_size=4)
    ```
    """
    path = check_export(path, "ctranslate2", dtype)
    model, tokenizer = translator.model, translator.tokenizer
    check_exact(model, "CTranslate2")
    check_layers(model, "CTranslate2", known=KNOWN_VARIANTS["ctranslate2"])
    ids = {"unknown": tokenizer.unknown_id, "end": model.end_id}
    check_special_tokens(tokenizer, ids, "CTranslate2")
    if "bfloat16" in dtype:
        check_extra(f"{named('dtype')}={dtype}", "torch", ("torch",))
    spec = build_spec(translator)
    spec.validate()
    if dtype == "float16":
        for name, variable in spec.variables(ordered=True):
            array = variable.numpy()
            if array.dtype == np.float32:
                check_float16(f"The weight {name!r}", array, "export it in bfloat16 or float32")
    spec.optimize(quantization=dtype)
    with new_folder(path) as folder:
        spec.save(str(folder))
        write_sentencepiece(tokenizer, folder)
        tokenizer.save(folder / "tokenizer")
        metadata = _metadata(translator, dtype, spec.config.add_source_eos)
        # A search over a shortlist has no lists: the forbidden tokens are the others.
        if translator.token_lists is not None and not translator.options.shortlist:
            _write_lists(folder / _LISTS_FILE, translator)
            metadata["translate_batch"]["use_vmap"] = True
        write_json(folder / METADATA_FILE, metadata)
    return path


def build_spec(translator):
    """The `ctranslate2.specs.TransformerSpec` of a translator in float32, not validated yet."""
    from ctranslate2 import specs

    network, config = translator.model.network, translator.model.get_config()
    activation = specs.common_spec.Activation
    activations = {"relu": activation.RELU, "gelu": activation.GELU, "silu": activation.SWISH}
    activations["gelu_sigmoid"] = activation.GELUSigmoid
    sides = []
    for kind, stack in (
        (specs.TransformerEncoderSpec, network.encoder),
        (specs.TransformerDecoderSpec, network.decoder),
    ):
        attention, options = stack.layers[0].self_attention, {}
        if attention.rotary is not None:
            options = {
                "rotary_dim": attention.head_size,
                "rotary_interleave": attention.rotary["interleaved"],
                "rotary_base": attention.rotary["base"],
            }
        options["relative_position"] = attention.relative_positions is not None
        options |= {
            "pre_norm": stack.layers[0].normalize_first,
            "activation": activations[config["activation"]],
            "layernorm_embedding": network.source_positions is not None,
        }
        sides.append(kind(len(stack.layers), attention.num_heads, **options))
    spec = specs.TransformerSpec(*sides)
    _set_tables(spec, network)
    for side, stack, embedding, positions in (
        (spec.encoder, network.encoder, network.source_embedding, network.source_positions),
        (spec.decoder, network.decoder, network.target_embedding, network.target_positions),
    ):
        side.scale_embeddings = embedding.scale
        if hasattr(side, "position_encodings"):  # A decoder with rotary positions has none.
            layer = embedding if positions is None else positions
            rows = _positions(translator.model)
            vectors = np.zeros((rows, config["hidden_dim"]), dtype="float32")
            if layer.position_encoding is not None:
                vectors = _array(layer.position_vectors(rows, config["hidden_dim"], 0))
            side.position_encodings.encodings = vectors
        if positions is not None:
            _set_norm(side.layernorm_embedding, positions.norm)
        if stack.norm is not None:
            _set_norm(side.layer_norm, stack.norm)
        for layer_spec, layer in zip(side.layer, stack.layers, strict=True):
            _set_layer(layer_spec, layer)
    _set_vocabularies(spec, translator)
    spec.config.layer_norm_epsilon = config["layer_norm_epsilon"]
    return spec


def _array(weight):
    """A float32 copy of a weight of any backend and dtype: quantizing writes into it."""
    return np.array(ops.convert_to_numpy(ops.cast(weight, "float32")), dtype="float32", order="C")


def _set_tables(spec, network):
    """Sets token vectors and the projection to the vocabulary. A table that both share is one
    array, which the engine stores once.
    """
    source = _array(network.source_embedding.embeddings)  # [V, D]
    is_shared = network.target_embedding is network.source_embedding
    target = source if is_shared else _array(network.target_embedding.embeddings)
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    if network.output_projection is not None:
        target = _array(ops.transpose(network.output_projection.kernel))
    spec.decoder.projection.weight = target  # [V, D]
    if network.output_bias is not None:
        spec.decoder.projection.bias = _array(network.output_bias.bias)


def _positions(model):
    """The number of positions that the engine gets: all learned ones, or as many as it may need."""
    if model.get_config()["position_encoding"] == "learned":
        return model.max_length
    return max(model.max_length + 1, _DEFAULT_INPUT_LENGTH)


def _set_layer(spec, layer):
    """Sets a layer of the encoder or decoder. A dense kernel is `[inputs, outputs]` here and
    `[outputs, inputs]` there.
    """
    attention = layer.self_attention
    joined, output = spec.self_attention.linear
    # Queries, keys and values side by side in one kernel: both packages have them in this order.
    _set_linear(joined, attention.query_key_value_kernel, attention.query_key_value_bias)
    _set_linear(output, attention.output_kernel, attention.output_bias)
    if attention.relative_positions is not None:
        spec.self_attention.relative_position_keys = _array(attention.relative_keys)
        spec.self_attention.relative_position_values = _array(attention.relative_values)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    if hasattr(layer, "cross_attention"):
        attention = layer.cross_attention
        query, key_value, output = spec.attention.linear
        _set_linear(query, attention.query_kernel, attention.query_bias)
        _set_linear(key_value, attention.key_value_kernel, attention.key_value_bias)
        _set_linear(output, attention.output_kernel, attention.output_bias)
        _set_norm(spec.attention.layer_norm, layer.cross_attention_norm)
    inner, outer = layer.feed_forward.intermediate, layer.feed_forward.output_projection
    _set_linear(spec.ffn.linear_0, inner.kernel, inner.bias)
    _set_linear(spec.ffn.linear_1, outer.kernel, outer.bias)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _set_linear(spec, kernel, bias):
    spec.weight = _array(ops.transpose(kernel))
    if bias is not None:
        spec.bias = _array(bias)


def _set_norm(spec, norm):
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _tokens(translator, side):
    """One name for each row of the model's table: the tokenizer's pieces, then made-up names for
    the rows without one.
    """
    model = translator.model
    rows = model.vocabulary_size if side == "source" else model.target_vocabulary_size
    tokens = list(translator.tokenizer.vocabulary(side).pieces)
    pieces = set(tokens)
    names = (name for i in itertools.count() if (name := f"<unused_{i}>") not in pieces)
    return tokens + list(itertools.islice(names, rows - len(tokens)))


def _set_vocabularies(spec, translator):
    model, config = translator.model, spec.config
    source, target = _tokens(translator, "source"), _tokens(translator, "target")
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config.unk_token = target[translator.tokenizer.unknown_id]
    config.eos_token = target[model.end_id]
    config.decoder_start_token = target[model.start_id]
    # It is never added to a source (the caller adds a prefix). But it must be in the source
    # vocabulary: CTranslate2 would append a token that is missing.
    start = config.decoder_start_token
    config.bos_token = start if start in source else config.eos_token
    config.add_source_bos = False
    # The engine can add the end token alone; any other suffix is the caller's.
    config.add_source_eos = tuple(translator.tokenizer.source_suffix) == (model.end_id,)


def _write_lists(path, translator):
    """Writes the token lists as the engine reads them: a source token, a tab, its target tokens.

    The line of no source token has those of every sentence.
    """
    lists = translator.token_lists
    source, target = _tokens(translator, "source"), _tokens(translator, "target")
    # A space or the end of the line would end a token.
    source, target = ([None if set(" \t\r\n") & set(i) else i for i in s] for s in (source, target))
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for token, row in zip(["", *source], [lists.always, *lists.lists], strict=False):
            tokens = [target[i] for i in row if target[i] is not None]
            if token is not None and tokens:
                file.write(f"{token}\t{' '.join(tokens)}\n")


def _languages(tokenizer, source, target):
    """What the metadata have of the languages of a model of several, dict."""
    if not tokenizer.languages:
        return {}
    places = tokenizer._language_places
    has_source = any(place.startswith("source") for place in [*places["source"], *places["target"]])
    tokens = source if has_source else target
    languages = {code: tokens[i] for code, i in tokenizer.languages.items()}
    return {"languages": languages, "language_places": places}


def _metadata(translator, dtype, adds_end):
    import ctranslate2

    model, tokenizer, options = translator.model, translator.tokenizer, translator.options
    source, target = _tokens(translator, "source"), _tokens(translator, "target")
    suffix = () if adds_end else tokenizer.source_suffix
    repetition = {
        name: getattr(options, name)
        for name in ("repetition_penalty", "no_repeat_ngram_size")
        if getattr(options, name) != getattr(SearchOptions, name)
    }
    return {
        "format_version": FORMAT_VERSION,
        "dtype": dtype,
        "normalization": tokenizer.normalization,
        "source_prefix": [source[token_id] for token_id in tokenizer.source_prefix],
        "source_suffix": [source[token_id] for token_id in suffix],
        "target_prefix": [target[i] for i in options.prefix_ids],
        **_languages(tokenizer, source, target),
        "translate_batch": {
            "max_input_length": model.max_length,
            # CTranslate2 counts the end token.
            "max_decoding_length": min(options.max_length + 1, _positions(model)),
            "min_decoding_length": options.min_length,
            "suppress_sequences": [[target[i]] for i in forbidden_ids(model, options)],
            **repetition,
        },
        "search": dataclasses.asdict(options),
        "versions": {"ctranslate2": ctranslate2.__version__, "keras": keras.__version__},
        "config": without_paths(translator.config),
    }
