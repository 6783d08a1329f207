"""The format hf: a folder that the Hugging Face library `transformers` loads."""

import numpy as np
from keras import ops

from kformer.export.checks import (
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
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish"}
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
    contents = {
        "config.json": _config(model, search, dtype),
        "generation_config.json": _generation_config(search, model),
        "tokenizer_config.json": _tokenizer_config(model, tokenizer),
        "vocab.json": _vocabulary(tokenizer, "source"),
    }
    if not tokenizer.joint:
        contents["target_vocab.json"] = _vocabulary(tokenizer, "target")
    with new_folder(path) as folder:
        write_sentencepiece(tokenizer, folder)
        _write_weights(model, search, _number_type(dtype), folder)
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
    check_layers(model, "the format hf", remedy=_remedy())
    config = model.get_config()
    reasons = {
        "position_encoding": config["position_encoding"] not in ("sinusoidal", "sinusoidal_halves"),
        "position_offset": config["position_offset"] != 0,
        "normalize_embeddings": config["normalize_embeddings"],
        "layer_norm_epsilon": config["layer_norm_epsilon"] != 1e-5,
        "hidden_dim": config["position_encoding"] == "sinusoidal" and config["hidden_dim"] % 2 == 1,
    }
    for name, is_unknown in reasons.items():
        if is_unknown:
            raise ValueError(
                f"The model has {name}={config[name]!r}, which the format hf cannot hold: its "
                "architectures have sinusoidal positions from 0, no norm after the embeddings, an "
                f"epsilon of 1e-5 and an even hidden size. {_remedy()}"
            )
    if config["normalize_first"] and not config["share_embeddings"]:
        raise ValueError(
            "The format hf cannot hold a pre-norm model with separate embeddings: train with one "
            f"vocabulary for both sides, or with {named('norm')}=post. {_remedy()}"
        )


def _remedy():
    return (
        f"A training with {named('made_for')}=transformers chooses a model that fits; export this "
        "one as a SavedModel."
    )


def check_tokenizer(tokenizer):
    """Refuses a tokenizer that `MarianTokenizer` cannot be.

    Args:
        tokenizer: `kformer.Tokenizer`.

    Raises:
        ValueError: the message names what it cannot do.
    """
    if tokenizer.source_prefix or tokenizer.target_prefix:
        raise ValueError(
            "The tokenizer puts tokens before the text (such as a language's), and the tokenizer "
            "of the format hf cannot: export to saved_model or onnx."
        )
    if tokenizer.normalization == "identity":
        raise ValueError(
            "The tokenizer has normalization='identity', whose escapes the tokenizer of the format "
            "hf does not know: export to saved_model or onnx, or train with "
            "normalization='nmt_nfkc'."
        )
    for side, suffix in (("source", tokenizer.source_suffix), ("target", tokenizer.target_suffix)):
        if suffix != (tokenizer.end_id,):
            raise ValueError(
                f"The tokenizer ends the {side} with {suffix}, but the format hf with the end "
                f"token {tokenizer.end_id} alone."
            )
    ids = {name: tokenizer.special_ids[name] for name in ("pad", "unknown", "end")}
    check_special_tokens(tokenizer, ids, "the format hf")


def _num_positions(model, search):
    """The size of that library's table of fixed positions: for the longest search and source."""
    return max(model.max_length, search.max_length + 2)


def _config(model, search, dtype):
    config = model.get_config()
    model_type = "pegasus" if config["normalize_first"] else "marian"
    shared = {
        "model_type": model_type,
        "architectures": [_ARCHITECTURES[model_type]],
        "is_encoder_decoder": True,
        "vocab_size": model.vocabulary_size,
        "d_model": config["hidden_dim"],
        "max_position_embeddings": _num_positions(model, search),
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


def _tokenizer_config(model, tokenizer):
    names = {"pad_token": "pad", "unk_token": "unknown", "eos_token": "end"}
    return {
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": model.max_length,
        "separate_vocabs": not tokenizer.joint,
        **{name: tokenizer.id_to_token(tokenizer.special_ids[key]) for name, key in names.items()},
    }


def _vocabulary(tokenizer, side):
    return {piece: token_id for token_id, piece in enumerate(tokenizer.vocabulary(side).pieces)}


def _write_weights(model, search, number_type, folder):
    """Writes the tensors in files of at most `_SHARD_BYTES`; one is in memory at a time."""
    from safetensors.numpy import save_file

    shards, size = [[]], 0
    for slot in slots(model):
        num_bytes = int(np.prod(slot.variable.shape)) * number_type.itemsize
        if shards[-1] and size + num_bytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(slot)
        size += num_bytes
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    files, total = {}, 0
    order = _residual_order(model)
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
            for key, array in _expected_besides(model, search, tensors).items():
                tensors[key] = array.astype(number_type)
        save_file(tensors, str(folder / name), metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_json(folder / "model.safetensors.index.json", index)


def _expected_besides(model, search, tensors):
    """Tensors that the library expects though our model has no such weight; `tensors` are those of
    the first file.
    """
    config = model.get_config()
    extra = {}
    if not config["output_bias"]:
        extra["final_logits_bias"] = np.zeros((1, model.target_vocabulary_size), "float32")
    for side in ("encoder", "decoder"):
        if config["normalize_first"]:
            positions = np.arange(_num_positions(model, search), dtype="int32")
            vectors = sinusoidal_positions(positions, config["hidden_dim"], layout="halves")
            extra[f"model.{side}.embed_positions.weight"] = ops.convert_to_numpy(vectors)
        if config["share_embeddings"] and not config["share_output"]:
            # Where the projection is not tied to the table, that library does not tie the tables of
            # the two sides either.
            extra[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"]
    return extra


def _number_type(dtype):
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _residual_order(model):
    """For each dimension of the exported residual stream the index of ours; `None` where the
    layouts are the same.
    """
    config = model.get_config()
    if config["position_encoding"] != "sinusoidal":
        return None
    indices = np.arange(config["hidden_dim"])
    return np.concatenate([indices[::2], indices[1::2]])
