"""Reads the models of OpenNMT-py: a `.pt` file with weights, the options of the training, and
vocabularies. It is read as data, and without PyTorch.
"""

import ast
import contextlib
import pathlib
import re

import numpy as np

from kformer.interop.limits import MOST_LAYERS, MOST_PIECES
from kformer.interop.toolkits.files import make_tokenizer, models_beside
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.interop.toolkits.torch_files import ForeignObject, read_torch
from kformer.utils.checks import check_choice, check_whole, shown

_SPECIAL = {"unknown": "<unk>", "pad": "<blank>", "start": "<s>", "end": "</s>"}
_SIGNS = ("<blank>", "<s>", "</s>")
_ACTIVATIONS = {
    **{"relu": "relu", "gelu": "gelu", "fast_gelu": "gelu_tanh", "silu": "silu"},
    **{"gated-gelu": "gelu", "gated-silu": "silu"},
}
_TABLE = "{}.embeddings.make_embedding.emb_luts.0.weight"
_TABLES = {
    "encoder": "model.encoder.embed_tokens.weight",
    "decoder": "model.decoder.embed_tokens.weight",
}
_SHARED = "model.shared.weight"
_LAYERS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_PROJECTIONS = {
    **{"linear_query": "q_proj", "linear_keys": "k_proj", "linear_values": "v_proj"},
    "final_linear": "out_proj",
}
_MODELS = {
    "source": ("source.model", "src.model", "source.spm", "sentencepiece.model", "sp.model"),
    "target": ("target.model", "tgt.model", "target.spm", "sentencepiece.model", "sp.model"),
}
# Options of the training that change what a model computes, with the values that kformer has.
_REQUIRED = {
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "layer_norm": ("standard", "rms"),
    "n_src_feats": (0,),
    "multiquery": (False,),
    "relative_positions_buckets": (0,),
    "rotary_dim": (0,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "parallel_residual": (False,),
    "num_kv": (0,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "copy_attn": (False,),
    "aan_useffn": (False,),
    "generator_function": ("softmax",),
    "lambda_align": (0, 0.0),
}
# Its search: five beams, the mean log-probability of the tokens, at most 1.25 times the source
# plus 5 tokens and at most 250, the end token among them; what reaches this limit has none. Before
# version 3: their sum, and at most 100 tokens.
SEARCH = {
    **{"mode": "huggingface", "beam_size": 5, "length_penalty": 1.0, "forced_end": False},
    **{"max_length": 249, "length_ratio": 1.25, "length_offset": 4},
}
_OLD_SEARCH = {"length_penalty": 0.0, "max_length": 99, "length_ratio": 99.0}


def is_mine(path):
    """Whether a path is a file of OpenNMT-py's, or a folder with one."""
    return _file(path) is not None


def read(path, options):
    """Reads a model of OpenNMT-py.

    Args:
        path: `pathlib.Path` of a `.pt` file, or of a folder with one.
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the file is damaged, or the model is one that kformer cannot be.
    """
    file = _file(path)
    if file is None:
        raise FileNotFoundError(f"{path} has no model of OpenNMT-py (.pt).")
    content = read_torch(file)
    settings, vocabularies = content["opt"], content["vocab"]
    if isinstance(vocabularies, list):  # of pairs, before version 1
        pairs = (each for each in vocabularies if isinstance(each, tuple) and len(each) == 2)
        vocabularies = {str(name): each for name, each in pairs}
    if not isinstance(settings, dict) or not isinstance(vocabularies, dict):
        raise ValueError(
            f"{file} has no options or no vocabularies of OpenNMT-py: give the whole checkpoint "
            "that its training saved."
        )
    settings = dict(settings)
    for name, values in _REQUIRED.items():
        if settings.get(name, values[0]) not in values:
            raise ValueError(
                f"{file} has {name}={shown(settings[name])}, an architecture that kformer does not "
                f"import: it needs {shown(values[0])}."
            )
    stored = {}
    for group, prefix in (("model", ""), ("generator", "generator.")):
        tensors = content.get(group)
        if not isinstance(tensors, dict) or not all(hasattr(t, "shape") for t in tensors.values()):
            raise ValueError(f"{file} has no {group} with tensors by name.")
        if any(getattr(tensor, "dtype", None) is None for tensor in tensors.values()):
            raise ValueError(
                f"{file} has a tensor whose numbers kformer does not read (of 8 bits, perhaps): "
                "give the checkpoint that it was made from."
            )
        stored |= {prefix + str(name): tensor for name, tensor in tensors.items()}
    is_old = isinstance(vocabularies.get("tgt"), ForeignObject)
    if is_old:
        vocabularies = {side: _words(each) for side, each in vocabularies.items()}
        # The causal mask was stored, too.
        stored = {_new_name(k): v for k, v in stored.items() if not k.endswith(".mask")}
    arguments, table, tokenizer = read_parts(stored, settings, vocabularies, options, file)
    table = TensorTable(table, pathlib.Path(file).stat().st_size)
    search = SEARCH | (_OLD_SEARCH if is_old else {})
    return ToolkitModel("OpenNMT-py", arguments, table, tokenizer, search)


def read_parts(stored, settings, vocabularies, options, file):
    """Arguments, weights and tokenizer of a model.

    Args:
        stored: dict of name to tensor, with `shape` and `read()`.
        settings: dict. The options of the training.
        vocabularies: dict. "src" and "tgt" have lists of str.
        options: `ToolkitOptions`.
        file: `pathlib.Path`, for messages, and for what lies beside it.

    Returns:
        Dict of arguments of `Transformer`, dict of tensors as `TensorTable` takes it, `Tokenizer`.

    Raises:
        FileNotFoundError, ValueError: as `read`.
    """
    try:
        tensors, has_bias = _tensors(stored, settings.get("layer_norm") == "rms")
        arguments = _arguments(tensors, settings, has_bias, file)
    except KeyError as error:
        raise ValueError(f"{file} lacks the tensor {error}, so it is no Transformer.") from None
    except ValueError as error:
        message = str(error)
        message = message if str(file) in message else f"{file} is no such Transformer: {error}."
        raise ValueError(message) from None
    tokens = [_tokens(vocabularies, side, file) for side in ("src", "tgt")]
    sizes = arguments["vocabulary_size"], arguments["target_vocabulary_size"]
    for side, of_side, size in zip(("source", "target"), tokens, sizes, strict=True):
        if len(of_side) > size:
            raise ValueError(
                f"{file} has {len(of_side)} tokens of the {side}, but {size} rows for them."
            )
        of_side += [f"<no piece {i}>" for i in range(len(of_side), size)]  # padded tables
    ids = _special_ids(vocabularies, settings, tokens, file)
    controls = [ids[name] for name in ("pad", "start", "end")]
    folders, splitting = [pathlib.Path(file).parent], _splitting(settings, file)
    models = models_beside(options, folders, _MODELS, splitting)
    tokenizer = make_tokenizer(
        models,
        tokens,
        ids,
        [
            [i for i, token in enumerate(of_side) if token in _SIGNS or i in of_target]
            for of_side, of_target in zip(tokens, ((), controls), strict=True)
        ],
        prefixes={"source": (), "target": ()},
        suffixes={"source": (), "target": (ids["end"],)},
    )
    arguments |= {f"{name}_id": ids[name] for name in ("pad", "start", "end")}
    return arguments, dict(tensors), tokenizer


def _file(path):
    """The file of the model that a path means, or `None`."""
    path = pathlib.Path(path)
    try:
        if path.is_dir():
            files = [file for file in sorted(path.glob("*.pt")) if _is_checkpoint(file)]
            return files[-1] if len(files) == 1 else None
        return path if path.suffix == ".pt" and _is_checkpoint(path) else None
    except (OSError, ValueError):
        return None


def _is_checkpoint(path):
    content = read_torch(path)
    return isinstance(content, dict) and {"model", "generator", "vocab", "opt"} <= content.keys()


# ---- vocabularies ----


def _tokens(vocabularies, side, file):
    tokens = vocabularies.get(side)
    is_list = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    if not is_list or not 4 <= len(tokens) <= MOST_PIECES:
        raise ValueError(
            f"{file} has no list of tokens for {side!r}, or further features of them, which "
            "kformer does not read."
        )
    return list(tokens)


def _splitting(settings, file):
    """The settings of OpenNMT's tokenizer by side, or `None` where SentencePiece did all."""
    if "onmt_tokenize" not in str(settings.get("_all_transform") or settings.get("transforms")):
        return None
    sides = {}
    for side, short in (("source", "src"), ("target", "tgt")):
        values = settings.get(f"{short}_onmttok_kwargs") or {}
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            values = ast.literal_eval(values) if isinstance(values, str) else values
        if not isinstance(values, dict):
            raise ValueError(
                f"{file} has {shown(values)} for {short}_onmttok_kwargs, not settings."
            )
        sides[side] = {"mode": "none", **values}
        if settings.get(f"{short}_subword_type") == "bpe":
            model = settings.get(f"{short}_subword_model") or settings.get("src_subword_model")
            sides[side]["bpe_model_path"] = model
    is_split = any(each["mode"] != "none" or "bpe_model_path" in each for each in sides.values())
    return sides if is_split else None


def _words(vocabulary):
    """The list of tokens in a vocabulary of before version 3: inside torchtext's fields (from
    version 1 on), or in its own object.
    """
    for name in ("fields", "vocab", "itos"):
        if isinstance(vocabulary, ForeignObject) and isinstance(vocabulary.state, dict):
            vocabulary = vocabulary.state.get(name, vocabulary)
        match vocabulary:
            case [(_, field)]:
                vocabulary = field
    return vocabulary


def _new_name(name):
    """A tensor's name since version 3."""
    name = re.sub(r"^generator\.0\.", "generator.", name)
    return name.replace(".a_2", ".weight").replace(".b_2", ".bias")


def _special_ids(vocabularies, settings, tokens, file):
    names = dict(_SPECIAL)
    start = vocabularies.get("decoder_start_token") or settings.get("decoder_start_token")
    names["start"] = start if isinstance(start, str) and start else names["start"]
    ids = {}
    for name, token in names.items():
        target = tokens[1].index(token) if token in tokens[1] else None
        needs_source = name in ("unknown", "pad")
        if target is None or (needs_source and tokens[0][target : target + 1] != [token]):
            raise ValueError(
                f"{file} has no {token} in its vocabularies, or it has another id in each, which "
                "kformer does not read."
            )
        ids[name] = target
    return ids


# ---- weights ----


def _tensors(stored, is_rms):
    """Our tensors, dict of name to pair of shape and function that reads it, and whether any linear
    layer has a bias: those without get zeros then.
    """
    parts, read_names = {}, {"generator.weight", "generator.bias", *map(_TABLE.format, _LAYERS)}

    def whole(ours, theirs):
        read_names.add(theirs)
        parts[ours] = stored[theirs].shape, stored[theirs].read

    tables = {side: stored[_TABLE.format(side)] for side in ("encoder", "decoder")}
    if _is_same(*tables.values()):
        whole(_SHARED, _TABLE.format("encoder"))
    else:
        for side, name in _TABLES.items():
            whole(name, _TABLE.format(side))
    if not _is_same(stored["generator.weight"], tables["decoder"]):
        whole("lm_head.weight", "generator.weight")
    if "generator.bias" in stored:
        bias = stored["generator.bias"]
        parts["final_logits_bias"] = (1, *bias.shape), lambda: bias.read()[None]
    endings = ("linear_query.bias", "final_linear.bias", "w_1.bias", "w_2.bias")
    has_bias = any(name.endswith(endings) for name in stored)

    def linear(ours, theirs):
        whole(f"{ours}.weight", f"{theirs}.weight")
        if f"{theirs}.bias" in stored:
            whole(f"{ours}.bias", f"{theirs}.bias")
        elif has_bias:
            shape = stored[f"{theirs}.weight"].shape[:1]
            parts[f"{ours}.bias"] = shape, lambda: np.zeros(shape, "float32")

    def norm(ours, theirs):
        for ending in ("weight", "bias")[: 1 if is_rms else 2]:
            whole(f"{ours}.{ending}", f"{theirs}.{ending}")

    for side, prefix in _LAYERS.items():
        norm(f"model.{side}.layer_norm", f"{side}.layer_norm")
        count = _count(stored, prefix)
        for index in range(count):
            ours, theirs = f"model.{side}.layers.{index}", f"{prefix}.{index}"
            attentions = [("self_attn", "self_attn", "layer_norm")]
            if side == "decoder":
                attentions = [
                    ("self_attn", "self_attn", "layer_norm_1"),
                    ("encoder_attn", "context_attn", "layer_norm_2"),
                ]
            for our_name, their_name, their_norm in attentions:
                for their_projection, projection in _PROJECTIONS.items():
                    linear(
                        f"{ours}.{our_name}.{projection}",
                        f"{theirs}.{their_name}.{their_projection}",
                    )
                norm(f"{ours}.{our_name}_layer_norm", f"{theirs}.{their_norm}")
            relative = f"{theirs}.self_attn.relative_positions_embeddings.weight"
            if relative in stored:
                whole(f"{ours}.self_attn.relative_keys.weight", relative)
            is_gated = f"{theirs}.feed_forward.w_3.weight" in stored
            if is_gated:  # The activation is that of the gate.
                linear(f"{ours}.gate", f"{theirs}.feed_forward.w_1")
            linear(f"{ours}.fc1", f"{theirs}.feed_forward.{'w_3' if is_gated else 'w_1'}")
            linear(f"{ours}.fc2", f"{theirs}.feed_forward.w_2")
            norm(f"{ours}.final_layer_norm", f"{theirs}.feed_forward.layer_norm")
    # Vectors of fixed positions are computed.
    further = [name for name in stored if name not in read_names and not name.endswith(".pe.pe")]
    if further:
        raise ValueError(f"it has the further tensor {shown(further[0])}")
    return parts, has_bias


def _is_same(one, other):
    """Whether two tensors are one: training saves shared ones twice, or as one."""
    if one.shape != other.shape:
        return False
    return np.array_equal(one.read(), other.read())


def _count(stored, prefix):
    numbers = {
        name[len(prefix) + 1 :].partition(".")[0] for name in stored if name.startswith(prefix)
    }
    numbers = {int(number) for number in numbers if number.isdecimal() and len(number) < 4}
    if numbers != set(range(len(numbers))) or not 0 < len(numbers) <= MOST_LAYERS:
        raise KeyError(f"{prefix}.0")
    return len(numbers)


def _arguments(tensors, settings, has_bias, file):
    """The arguments of `Transformer`, but for the special ids."""
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    shared = _SHARED in shapes
    source = shapes[_SHARED if shared else _TABLES["encoder"]]
    target = source if shared else shapes[_TABLES["decoder"]]
    if len(source) != 2 or len(target) != 2:
        raise ValueError(f"{file} has tables of the shapes {list(source)} and {list(target)}.")
    name = settings.get("pos_ffn_activation_fn", "relu")
    check_choice(f"pos_ffn_activation_fn of {file}", name, _ACTIVATIONS)
    is_added = bool(settings.get("position_encoding"))
    max_relative = settings.get("max_relative_positions", 0)
    relative = "model.encoder.layers.0.self_attn.relative_keys.weight"
    positions = {"position_encoding": None}
    if relative in shapes:
        distance = (shapes[relative][0] - 1) // 2
        if is_added:
            raise ValueError(
                f"{file} has relative positions beside added ones, which kformer does not import."
            )
        positions = {
            "position_encoding": "shaw",
            "relative_max_distance": distance,
            "relative_shared": True,
        }
    elif max_relative == -1:
        positions = {
            "position_encoding": "rope",
            "rotary_base": float(
                check_whole(f"rotary_theta of {file}", settings.get("rotary_theta", 10_000))
            ),
            "rotary_interleaved": bool(settings.get("rotary_interleave")),
        }
    elif max_relative:
        kind = "ALiBi's" if max_relative == -2 else f"max_relative_positions={shown(max_relative)}"
        raise ValueError(f"{file} has {kind} positions, which are not imported from OpenNMT-py.")
    elif is_added:
        check_choice(
            f"position_encoding_type of {file}",
            settings.get("position_encoding_type", "SinusoidalInterleaved"),
            ("SinusoidalInterleaved", "SinusoidalConcat"),
        )
        is_interleaved = settings.get("position_encoding_type") != "SinusoidalConcat"
        kind = "sinusoidal" if is_interleaved else "sinusoidal_halves"
        positions = {"position_encoding": kind}
    heads = check_whole(f"heads of {file}", settings.get("heads"))
    layers = {
        side: len(
            {name.split(".")[3] for name in shapes if name.startswith(f"model.{side}.layers.")}
        )
        for side in ("encoder", "decoder")
    }
    epsilon = settings.get("norm_eps", 1e-6)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"{file} has norm_eps={shown(epsilon)}.")
    return {
        "vocabulary_size": source[0],
        "target_vocabulary_size": target[0],
        "share_embeddings": shared,
        "share_output": "lm_head.weight" not in shapes,
        "output_bias": "final_logits_bias" in shapes,
        "num_encoder_layers": layers["encoder"],
        "num_decoder_layers": layers["decoder"],
        "hidden_dim": source[1],
        "intermediate_dim": shapes["model.encoder.layers.0.fc1.weight"][0],
        "num_heads": heads,
        "activation": _ACTIVATIONS[name],
        "gated": "model.encoder.layers.0.gate.weight" in shapes,
        "normalization": "rms_norm" if settings.get("layer_norm") == "rms" else "layer_norm",
        "normalize_first": True,
        "layer_norm_epsilon": epsilon,
        "use_bias": has_bias,
        "scale_embeddings": is_added,
        **positions,
    }
