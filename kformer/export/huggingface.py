"""The format hf: a folder that the Hugging Face library `transformers` loads."""

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
from keras import ops

from kformer.export.checks import (
    KNOWN_VARIANTS,
    check_exact,
    check_export,
    check_layers,
    check_special_tokens,
    forbidden_ids,
    write_sentencepiece,
)
from kformer.interop.slots import slots
from kformer.layers import sinusoidal_positions
from kformer.utils.checks import check_float16
from kformer.utils.files import new_folder, write_json
from kformer_options.names import named

# The size at which that library begins a new file, too.
_SHARD_BYTES = 2 * 10**9
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish", "gelu_sigmoid": "quick_gelu"}
_ARCHITECTURES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}


def export_huggingface(translator, path, *, dtype=None, **options):
    """Writes a translator as a folder that `transformers` loads.

    The folder has `config.json`, `model.safetensors`, `generation_config.json` and the tokenizer. A
    post-norm model becomes a Marian model (`MarianMTModel`), a pre-norm model a Pegasus model
    (`PegasusForConditionalGeneration`, which is Marian with the norms before the sub-layers);
    `AutoModelForSeq2SeqLM` finds the right one. The tokenizer is a `MarianTokenizer` in both.
    Logits are equal. That library has all sines of its positions before the cosines, where the
    paper alternates them: the dimensions of the residual stream are permuted accordingly in every
    weight, which changes no result.

    A model of several languages keeps the tags that its texts may begin with, as Marian's have
    them: `>>de<< A man rides a horse.` Two things differ in that library. It has no default
    language, so that every text needs its tag. And what stands between `>>` and the next `<<` at
    the beginning of a text is always a tag, an unknown one in `>>Achtung<< Baustelle`, where
    kformer reads text. The folder has one search for all languages.

    `generation_config.json` has the translator's search, exactly in the mode "huggingface". Of
    kformer's own beam search that library has the width and the exponent, but another length
    penalty (see `kformer.decoding.beam_huggingface`). In neither mode has it a limit relative to
    the source's length.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to make.
        dtype: str, default `None`, for the model's own. How weights are stored: "float32",
            "float16" or "bfloat16".
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: the architectures cannot be the model, its tokenizer or its search, or something
            exists at `path`.
        ImportError: safetensors is not installed.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    kformer.export.export_huggingface(translator, "exports/hf")
    # PosixPath('exports/hf')
    # transformers.AutoModelForSeq2SeqLM.from_pretrained("exports/hf") loads it.
    ```
    """
    path = check_export(path, "hf", dtype)
    model, tokenizer = translator.model, translator.tokenizer
    search = translator.search_options(options)
    check_model(model)
    check_tokenizer(tokenizer)
    if len(search.prefix_ids) > 1:
        raise ValueError(
            f"The search begins with the tokens {list(search.prefix_ids)}, but the format hf can "
            "force one token alone."
        )
    dtype = dtype or next(slots(model)).variable.dtype
    config = _config(model, search, dtype)
    names = {"pad_token": "pad", "unk_token": "unknown", "eos_token": "end"}
    special = {name: tokenizer.special_ids[key] for name, key in names.items()}
    languages = {"language_tags": tokenizer.language_tags, "target_lang": tokenizer.target_language}
    contents = {
        "config.json": config,
        "generation_config.json": _generation_config(search, model),
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "model_max_length": model.max_length,
            "separate_vocabs": not tokenizer.joint,
            **{name: tokenizer.id_to_token(token_id) for name, token_id in special.items()},
            **(languages if tokenizer.language_tags else {}),
        },
    }
    files = {"vocab.json": "source"} | ({} if tokenizer.joint else {"target_vocab.json": "target"})
    for name, side in files.items():
        pieces = tokenizer.vocabulary(side).pieces
        contents[name] = {piece: token_id for token_id, piece in enumerate(pieces)}
    with new_folder(path) as folder:
        write_sentencepiece(tokenizer, folder)
        _write_weights(model, config["max_position_embeddings"], np.dtype(dtype), folder)
        for name, content in contents.items():
            write_json(folder / name, content)
    return path


def check_model(model):
    """Refuses a model that neither architecture can be.

    Args:
        model: Keras model.

    Raises:
        ValueError: the message names the option that neither has.
    """
    check_exact(model, "the format hf")
    remedy = (
        f"A training with {named('made_for')}=transformers chooses a model that fits; export this "
        "one as a SavedModel."
    )
    check_layers(model, "the format hf", KNOWN_VARIANTS["hf"], remedy)
    config = model.get_config()
    reasons = {
        "position_encoding": config["position_encoding"] not in ("sinusoidal", "sinusoidal_halves"),
        "position_offset": config["position_offset"] != 0,
        "normalize_embeddings": config["normalize_embeddings"],
        "layer_norm_epsilon": config["layer_norm_epsilon"] != 1e-5,
        "decoder_normalize_first": config["decoder_normalize_first"] is not None,
        "hidden_dim": config["position_encoding"] == "sinusoidal" and config["hidden_dim"] % 2 == 1,
    }
    for name, is_unknown in reasons.items():
        if is_unknown:
            raise ValueError(
                f"The model has {name}={config[name]!r}, which the format hf cannot hold: its "
                "architectures have sinusoidal positions from 0, no norm after the embeddings, an "
                "epsilon of 1e-5, an even hidden size and norms in the same order on both sides. "
                f"{remedy}"
            )
    if config["normalize_first"] and not config["share_embeddings"]:
        raise ValueError(
            "The format hf cannot hold a pre-norm model with separate embeddings: train with one "
            f"vocabulary for both sides, or with {named('norm')}=post. {remedy}"
        )


def check_tokenizer(tokenizer):
    """Refuses a tokenizer that `MarianTokenizer` cannot be.

    Args:
        tokenizer: `kformer.Tokenizer`.

    Raises:
        ValueError: the message names what it cannot do.
    """
    source_suffix, target_suffix = tokenizer.source_suffix, tokenizer.target_suffix
    # Texts have their tags in that library.
    has_tag = tokenizer.language_tags and tokenizer.target_language is not None
    reason = None
    if (tokenizer.source_prefix and not has_tag) or tokenizer.target_prefix:
        reason = "puts tokens before the text (such as a language's)"
    elif tokenizer.normalization == "identity":
        reason = "has normalization='identity'"
    elif (source_suffix, target_suffix) != ((tokenizer.end_id,), (tokenizer.end_id,)):
        reason = f"ends texts with the tokens {source_suffix} and {target_suffix}"
    if reason is not None:
        raise ValueError(
            f"The tokenizer {reason}, and that of the format hf cannot: export to saved_model or "
            "onnx."
        )
    ids = {name: tokenizer.special_ids[name] for name in ("pad", "unknown", "end")}
    check_special_tokens(tokenizer, ids, "the format hf")


def _config(model, search, dtype):
    config = model.get_config()
    model_type = "pegasus" if config["normalize_first"] else "marian"
    shared = {
        "model_type": model_type,
        "architectures": [_ARCHITECTURES[model_type]],
        "is_encoder_decoder": True,
        "vocab_size": model.vocabulary_size,
        "d_model": config["hidden_dim"],
        # Of the table of fixed positions: for the longest search and source.
        "max_position_embeddings": max(model.max_length, search.max_length + 2),
        "activation_function": _ACTIVATIONS[config["activation"]],
        **{name: config[name] for name in ("dropout", "attention_dropout", "activation_dropout")},
        "scale_embedding": config["scale_embeddings"],
        "tie_word_embeddings": config["share_output"],
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        "bos_token_id": model.start_id,
        "decoder_start_token_id": model.start_id,
        "forced_eos_token_id": model.end_id,
        "dtype": dtype,
    }
    for side, sizes in (("encoder", model.config), ("decoder", model.config.of_decoder)):
        shared[f"{side}_layers"] = config[f"num_{side}_layers"]
        shared[f"{side}_ffn_dim"] = sizes.intermediate_dim
        shared[f"{side}_attention_heads"] = sizes.num_heads
    if model_type == "marian":
        shared["share_encoder_decoder_embeddings"] = config["share_embeddings"]
        shared["decoder_vocab_size"] = model.target_vocabulary_size
    return shared


def _generation_config(search, model):
    ours = search.mode == "kformer"
    early_stopping, penalty = search.early_stopping, float(search.repetition_penalty)
    if ours:
        # "never" is nearest to a search that stops when no better hypothesis can come, and False
        # to one that stops early, since it compares at the present length.
        early_stopping = False if early_stopping is True else "never"
    elif early_stopping == "shrink":  # Marian's own rule, which that library has not.
        early_stopping = False
    is_endless = model.end_id in search.forbidden_ids
    shortest = search.max_length if is_endless else search.min_length
    config = {
        "num_beams": search.beam_size,
        "num_return_sequences": search.n_best if search.n_best > 1 else None,
        "length_penalty": float(search.length_penalty),
        "early_stopping": early_stopping,
        # The start token and the end token are counted there.
        "max_length": search.max_length + 2,
        # That library never forbids the end token, but it can put it off.
        "min_length": shortest + 1 if shortest else 0,
        "bad_words_ids": [[i] for i in forbidden_ids(model, search) if i != model.end_id] or None,
        # A shortlist's probabilities are normalised over its tokens.
        "renormalize_logits": search.renormalize or bool(search.shortlist) or None,
        "forced_bos_token_id": search.prefix_ids[0] if search.prefix_ids else None,
        "repetition_penalty": None if penalty == 1 else penalty,
        "no_repeat_ngram_size": search.no_repeat_ngram_size or None,
        "decoder_start_token_id": model.start_id,
        "bos_token_id": model.start_id,
        "eos_token_id": model.end_id,
        "pad_token_id": model.pad_id,
        "forced_eos_token_id": model.end_id if ours or search.forced_end else None,
    }
    if search.sampling:
        config |= {
            "do_sample": True,
            "num_beams": 1,
            **{name: getattr(search, name) for name in ("temperature", "top_k", "top_p")},
        }
    return {name: value for name, value in config.items() if value is not None}


def _write_weights(model, num_positions, number_type, folder):
    """Writes the tensors in files of at most `_SHARD_BYTES`; one is in memory at a time."""
    from safetensors.numpy import save_file

    shards, size = [[]], 0
    for slot in slots(model):
        num_bytes = int(np.prod(slot.variable.shape)) * number_type.itemsize
        size += num_bytes
        if shards[-1] and size > _SHARD_BYTES:
            shards.append([])
            size = num_bytes
        shards[-1].append(slot)
    names, count = ["model.safetensors"], len(shards)
    if count > 1:
        names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    files, total, order = {}, 0, None
    if model.config.position_encoding == "sinusoidal":
        # For each dimension of the exported residual stream the index of ours.
        indices = np.arange(model.hidden_dim)
        order = np.concatenate([indices[::2], indices[1::2]])
    for name, shard in zip(names, shards, strict=True):
        tensors = {}
        for slot in shard:
            array = ops.convert_to_numpy(ops.cast(slot.variable, "float32"))
            for axis in () if order is None else slot.residual_axes:
                array = np.take(array, order, axis=axis)
            if number_type == np.float16:
                check_float16(f"The weight {slot.names[0]!r}", array, "export it in bfloat16")
            for key, tensor in zip(slot.names, slot.split(array), strict=True):
                tensors[key] = np.ascontiguousarray(tensor).astype(number_type)
        if shard is shards[0]:
            for key, array in _expected_besides(model, num_positions, tensors).items():
                tensors[key] = array.astype(number_type)
        save_file(tensors, str(folder / name), metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if count > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_json(folder / "model.safetensors.index.json", index)


def _expected_besides(model, num_positions, tensors):
    """Tensors that the library expects though our model has no such weight; `tensors` are those of
    the first file.
    """
    config = model.get_config()
    extra = {}
    if not config["output_bias"]:
        extra["final_logits_bias"] = np.zeros((1, model.target_vocabulary_size), "float32")
    for side in ("encoder", "decoder"):
        if config["normalize_first"]:
            positions = np.arange(num_positions, dtype="int32")
            vectors = sinusoidal_positions(positions, config["hidden_dim"], layout="halves")
            extra[f"model.{side}.embed_positions.weight"] = ops.convert_to_numpy(vectors)
        if config["share_embeddings"] and not config["share_output"]:
            # Where the projection is not tied to the table, that library does not tie the tables of
            # the two sides either.
            extra[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"]
    return extra
