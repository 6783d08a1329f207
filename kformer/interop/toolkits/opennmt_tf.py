"""Reads the models of OpenNMT-tf: checkpoints of version 2, and those of version 1.

The checkpoint has the weights. The number of heads, the activation and the kind of positions stand
in `model_description.py` alone, which is Python code: it is parsed and never run.
"""

import ast
import contextlib
import pathlib
import re

import numpy as np

from kformer.interop.limits import MOST_LAYERS
from kformer.interop.toolkits.files import (
    file_beside,
    make_tokenizer,
    models_beside,
    read_lines,
    read_yaml,
)
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.interop.toolkits.tf_checkpoint import read_checkpoint
from kformer.utils.checks import check_choice, check_whole, shown
from kformer.utils.files import read_bytes
from kformer_options.names import named

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_DESCRIPTION = "model_description.py"
_MOST_CODE_BYTES = 1 << 20
# Keras's default, which OpenNMT-tf 2 has in all its norms.
_EPSILON = 1e-3
_MOST_TOKENS = 250  # `maximum_decoding_length`
_SPECIAL = {"pad": "<blank>", "start": "<s>", "end": "</s>"}
_PROJECTIONS = {"queries": "q_proj", "keys": "k_proj", "values": "v_proj", "output": "out_proj"}
# OpenNMT-tf's own gelu is the approximation by tanh.
_ACTIVATIONS = {
    **{"relu": "relu", "tf.nn.relu": "relu", "tf.keras.activations.relu": "relu"},
    **{"gelu": "gelu_tanh", "layers.gelu": "gelu_tanh", "opennmt.layers.gelu": "gelu_tanh"},
    **{"onmt.layers.gelu": "gelu_tanh", "common.gelu": "gelu_tanh", "tf.nn.gelu": "gelu"},
    **{"tf.nn.silu": "silu", "tf.nn.swish": "silu", "swish": "silu", "silu": "silu"},
}
# Heads, and the largest relative position, of the models in its catalog.
_CATALOG = {
    **{"Transformer": (8, None), "TransformerBase": (8, None), "TransformerTiny": (2, None)},
    **{
        "TransformerBig": (16, None),
        "TransformerFP16": (8, None),
        "TransformerBigFP16": (16, None),
    },
    **{"TransformerRelative": (8, 20), "TransformerBaseRelative": (8, 20)},
    **{"TransformerBigRelative": (16, 20), "TransformerBaseSharedEmbeddings": (8, None)},
    **{"TransformerBigSharedEmbeddings": (16, None), "TransformerAAN": None},
    **{"ScalingNmtEnDe": (16, None), "ScalingNmtEnFr": (16, None)},
}
_DEFAULT_HEADS = 8
# The arguments of `opennmt.models.Transformer` in their order, as far as they matter.
_ARGUMENTS = (
    *("source_inputter", "target_inputter", "num_layers", "num_units", "num_heads"),
    *("ffn_inner_dim", "dropout", "attention_dropout", "ffn_dropout", "ffn_activation"),
    *("mha_bias", "position_encoder_class"),
)
# Those that change what a layer computes.
_MEANINGS = ("num_heads", "ffn_activation", "position_encoder_class", "attention_span")
_VOCABULARIES = {
    "source": ("source.vocab", "src.vocab", "source_vocab.txt", "src-vocab.txt", "vocab.src"),
    "target": ("target.vocab", "tgt.vocab", "target_vocab.txt", "tgt-vocab.txt", "vocab.tgt"),
}
_SHARED_VOCABULARIES = ("shared.vocab", "joint.vocab", "vocab.txt", "sp.vocab", "vocab")
_MODELS = {
    "source": ("source.model", "src.model", "source.spm", "sp.model", "joint.model"),
    "target": ("target.model", "tgt.model", "target.spm", "sp.model", "joint.model"),
}


def is_mine(path):
    """Whether a path is a checkpoint of OpenNMT-tf, or a folder of one."""
    with contextlib.suppress(OSError, ValueError):
        prefix = _prefix(path)
        if prefix is None:
            return False
        if (prefix.parent / _DESCRIPTION).is_file():
            return True
        index = read_bytes(f"{prefix}.index", 1 << 20)
        return b"_inputter" in index or b"w_embs" in index
    return False


def read(path, options):
    """Reads a model of OpenNMT-tf.

    Args:
        path: `pathlib.Path` of a model directory, or of a checkpoint ("run/ckpt-700", with or
            without ".index").
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or kformer has no such model.
    """
    prefix = _prefix(path)
    if prefix is None:
        raise FileNotFoundError(f"{path} has no checkpoint of TensorFlow (ckpt-*.index).")
    stored, num_bytes = read_checkpoint(prefix)
    tensors, is_old = _tensors(stored, f"{prefix}.index")
    # An average is in a folder beside the checkpoints, or inside theirs.
    folders = [*prefix.resolve().parents][:3]
    others = []
    if path.is_dir() and path.resolve() == folders[1]:
        others = sorted(path.glob(f"*/{_DESCRIPTION}"))[:2]
    file = file_beside(folders[:2], [_DESCRIPTION]) or (others[0] if len(others) == 1 else None)
    description = _description(file or prefix.parent / _DESCRIPTION, options)
    arguments = _arguments(tensors, description, prefix)
    settings = _settings(folders)
    vocabularies, ids, orders = _vocabularies(options, folders, settings, arguments, tensors)
    controls = _controls(settings, vocabularies[0], ids)
    models = models_beside(options, folders, _MODELS, _splitting(settings))
    for side, order in orders.items():
        _reorder(tensors, side, order)
    tokenizer = make_tokenizer(
        models,
        vocabularies,
        ids,
        [
            [i for i, token in enumerate(tokens) if token in _SPECIAL.values()]
            for tokens in vocabularies
        ],
        prefixes={"source": (ids["start"],) * controls["start"], "target": ()},
        suffixes={"source": (ids["end"],) * controls["end"], "target": (ids["end"],)},
    )
    arguments |= {name: ids[name.removesuffix("_id")] for name in ("pad_id", "start_id", "end_id")}
    remarks = list(description["remarks"])
    if is_old:
        remarks.append(
            f"{prefix} is of OpenNMT-tf 1, and is computed as by OpenNMT-tf 2, whose norms add "
            f"{_EPSILON} to the variance."
        )
    return ToolkitModel(
        "OpenNMT-tf",
        arguments,
        TensorTable(
            {name: (tensor.shape, tensor.read) for name, tensor in tensors.items()}, num_bytes
        ),
        tokenizer,
        _search(settings, prefix.parent),
        tuple(remarks),
    )


# ---- files ----


def _prefix(path):
    """The prefix of the checkpoint that a path means, `pathlib.Path`, or `None`."""
    path = pathlib.Path(path)
    if not path.is_dir():
        for suffix in (r"\.index$", r"\.data-\d+-of-\d+$", r"\.meta$", ""):
            prefix = path.with_name(re.sub(suffix, "", path.name))
            if (suffix == "" or prefix != path) and pathlib.Path(f"{prefix}.index").is_file():
                return prefix
        return None
    # A folder with the vocabularies may have the model directory inside.
    folders = [path, *sorted(inner for inner in path.iterdir() if inner.is_dir())]
    folders = [folder for folder in folders if next(folder.glob("*.index"), None)]
    if folders and folders[0] != path and len(folders) > 1:
        # OpenNMT-tf's own average of the last checkpoints.
        folders = [folder for folder in folders if folder.name == "avg"]
    if not folders:
        return None
    folder = folders[0]
    if (state := file_beside([folder], ["checkpoint"])) is not None:
        latest = re.search(rb'^model_checkpoint_path: "([^"\n]*)"', read_bytes(state, 1 << 20))
        name = pathlib.PurePath(latest[1].decode("utf-8")).name if latest else ""
        if name and (folder / f"{name}.index").is_file():
            return folder / name
    steps = [(re.search(r"(\d*)\.index$", file.name)[1], file) for file in folder.glob("*.index")]
    return max((int(step or 0), file) for step, file in steps)[1].with_suffix("")


def _settings(folders):
    """The sections of a YAML file of OpenNMT-tf beside the model, dict; empty without one."""
    path = file_beside(folders, ["data.yml", "config.yml", "data.yaml", "config.yaml"])
    return {} if path is None else read_yaml(path)


def _section(settings, name):
    section = settings.get(name)
    return section if isinstance(section, dict) else {}


def _vocabularies(options, folders, settings, arguments, tensors):
    """The tokens of both sides, the special ids, and by side the order of the stored rows.

    OpenNMT-tf gives unknown words the row after the last token's. Where the sides have different
    sizes, these are two ids. Here both sides have the smaller one, and the token that had it on the
    larger side has that side's last id.
    """
    names = {side: _section(settings, "data").get(f"{side}_vocabulary") for side in _VOCABULARIES}
    paths = {"source": options.source_vocabulary, "target": options.target_vocabulary}
    vocabularies = {}
    for side in ("source", "target"):
        candidates = [*_VOCABULARIES[side], *_SHARED_VOCABULARIES]
        if isinstance(names[side], str):  # Only its name: a file must not lead elsewhere.
            candidates.insert(0, pathlib.PurePath(names[side]).name)
        file = paths[side] or file_beside(folders, candidates)
        if file is None and "model.shared.weight" in tensors:
            file = options.source_vocabulary
        if file is None:
            raise FileNotFoundError(
                f"{folders[0]} has no vocabulary of the {side} ({candidates[0]}): give "
                f"OpenNMT-tf's file of it by {named(f'{side}_vocabulary')}."
            )
        tokens = read_lines(file)
        rows = tensors[_TABLES[side] if _TABLES[side] in tensors else "model.shared.weight"].shape[
            0
        ]
        if rows != len(tokens) + 1:
            raise ValueError(
                f"{file} has {len(tokens)} tokens, but the model has {rows} rows for the {side}, "
                f"one more than its vocabulary: give the one that it was trained with by "
                f"{named(f'{side}_vocabulary')}."
            )
        vocabularies[side] = tokens
    source, target = vocabularies["source"], vocabularies["target"]
    missing = [token for token in _SPECIAL.values() if token not in target]
    if missing:
        raise ValueError(
            f"The vocabulary of the target has no {missing[0]}, which the model needs."
        )
    ids = {name: target.index(token) for name, token in _SPECIAL.items()}
    if source[ids["pad"] : ids["pad"] + 1] != [_SPECIAL["pad"]]:
        raise ValueError(
            f"The vocabularies of source and target have {_SPECIAL['pad']} at different lines, "
            "which kformer does not read."
        )
    ids["unknown"] = unknown = min(len(source), len(target))
    orders = {}
    for side, tokens in vocabularies.items():
        size = len(tokens)
        tokens.append("<unk>" if "<unk>" not in tokens else f"<no piece {size}>")
        if size != unknown:
            order = np.arange(size + 1)
            order[[unknown, size]] = size, unknown
            vocabularies[side], orders[side] = [tokens[i] for i in order], order
    return [vocabularies["source"], vocabularies["target"]], ids, orders


def _controls(settings, source, ids):
    """Whether the settings put the start and the end token around a source, dict of bool."""
    data = _section(settings, "data")
    both = [data.get("sequence_controls"), data.get("source_sequence_controls")]
    chosen = {k: v for each in both if isinstance(each, dict) for k, v in each.items()}
    controls = {name: chosen.get(name) is True for name in ("start", "end")}
    for name, is_added in controls.items():
        if is_added and source[ids[name] : ids[name] + 1] != [_SPECIAL[name]]:
            raise ValueError(
                f"The settings put {_SPECIAL[name]} at the {name} of a source, but its vocabulary "
                "has it at another line than the target's, which kformer does not read."
            )
    return controls


def _splitting(settings):
    """The settings of OpenNMT's tokenizer by side, or `None` where SentencePiece did all."""
    data, sides = _section(settings, "data"), {}
    for side in ("source", "target"):
        tokenization = _section(data, f"{side}_tokenization") or _section(data, "tokenization")
        sides[side] = {"mode": "space"}
        if tokenization.get("type") == "OpenNMTTokenizer":
            sides[side] = {"mode": "conservative", **_section(tokenization, "params")}
    names = ("mode", "bpe_model_path")
    plain = [tuple(params.get(name) for name in names) for params in sides.values()]
    return sides if {*plain} - {("space", None), ("none", None)} else None


def _search(settings, folder):
    """The search in the model's settings, else OpenNMT-tf's default for a Transformer."""
    params = _section(settings, "params")
    search = {
        "beam_size": params.get("beam_width", 4),
        "length_penalty": params.get("length_penalty", 0.6),
        "max_length": params.get("maximum_decoding_length", _MOST_TOKENS),
    }
    for name, value in search.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10**4:
            raise ValueError(f"The settings beside {folder} have {shown(value)} for {name}.")
    return {**search, "length_ratio": float(search["max_length"]), "length_offset": 0}


# ---- model_description.py ----


def _description(path, options):
    """What the description says: dict of "heads", "activation", "positions" and "remarks".

    "positions" is "sinusoidal", `None` for none, or "default" for what the weights say.
    """
    call = name = None
    if path.is_file():
        call, name = _model_call(path)
    keywords = {} if call is None else _keywords(call)
    heads = keywords.get("num_heads")
    remarks, positions = [], "default"
    if name is not None:
        if _CATALOG.get(name) is None:
            raise ValueError(f"{path} describes the model {shown(name)}, which is no Transformer.")
        heads = _CATALOG[name][0] if heads is None else heads
    elif call is not None and heads is None:
        heads = _DEFAULT_HEADS
    if options.num_heads is not None:
        heads = options.num_heads
    if type(heads) is not int:
        what = "cannot be understood without running it" if path.is_file() else "is missing"
        raise ValueError(
            f"{path} {what}, and no other file has the number of attention heads: give it by "
            f"{named('num_heads')}."
        )
    if call is None and name is None:
        remarks.append(
            f"{path.name} does not say which activation the model has: relu is taken, OpenNMT-tf's "
            "default."
        )
    if keywords.get("attention_span") is not None:
        raise ValueError(f"{path} has attention_span, a local attention that is not imported.")
    activation = keywords.get("ffn_activation", "relu")
    check_choice(f"ffn_activation in {path}", activation, _ACTIVATIONS)
    if "position_encoder_class" in keywords:
        encoder = keywords["position_encoder_class"]
        positions = None if encoder is None else str(encoder).rpartition(".")[2]
        if positions not in (None, "SinusoidalPositionEncoder"):
            raise ValueError(
                f"{path} has the positions {shown(encoder)}; kformer imports OpenNMT-tf's "
                "sinusoidal and relative ones."
            )
    return {
        "heads": check_whole(f"num_heads of {path}", heads),
        "activation": _ACTIVATIONS[activation],
        "positions": positions,
        "remarks": remarks,
    }


def _model_call(path):
    """The call that makes the model, `ast.Call`, and the name of a model of the catalog; each
    `None` if the code does not show it.
    """
    code = read_bytes(path, _MOST_CODE_BYTES, remedy="it describes no model")
    try:
        tree = ast.parse(code)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, None
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    described = [call for call in calls if any(k.arg == "num_heads" for k in call.keywords)]
    if described:
        # Of an encoder and a decoder, perhaps.
        values = [[_keywords(call).get(name) for name in _MEANINGS] for call in described]
        is_one = all(each == values[0] for each in values)
        return (described[0] if is_one else None), None
    for call in calls:
        name = _dotted(call.func).rpartition(".")[2]
        values = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        if name == "get_model_from_catalog" and len(values) == 1:
            return None, str(values[0])
    # `model = catalog.TransformerBase`, a lambda that calls it, or a function that returns it.
    for node in nodes:
        if isinstance(node, ast.Assign) and any(_dotted(t) == "model" for t in node.targets):
            value = node.value.body if isinstance(node.value, ast.Lambda) else node.value
            func = value.func if isinstance(value, ast.Call) else value
            name = _dotted(func).rpartition(".")[2]
            if isinstance(value, ast.Call) and name == "Transformer":
                is_open = any(isinstance(each, ast.Starred) for each in value.args)
                return (None if is_open else value), None
            if name in _CATALOG:
                return None, name
    return None, None


def _keywords(call):
    """The arguments of a call by name: literal values, and the dotted names of others."""
    keywords = {}
    pairs = [*zip(_ARGUMENTS, call.args, strict=False)]
    for name, node in pairs + [(each.arg, each.value) for each in call.keywords]:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            value = _dotted(node)
        keywords[name] = value
    return keywords


def _dotted(node):
    """A dotted name, such as "tf.nn.relu"; empty for any other expression."""
    names = []
    while isinstance(node, ast.Attribute) and len(names) < 10:
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


# ---- weights ----

_TABLES = {
    "source": "model.encoder.embed_tokens.weight",
    "target": "model.decoder.embed_tokens.weight",
}


class _Tensor:
    """A tensor of ours, made of one that is stored.

    Args:
        stored: `kformer.interop.toolkits.tf_checkpoint.StoredTensor`.
        shape: tuple of int. The tensor's shape.
        convert: function of an array.
    """

    def __init__(self, stored, shape, convert):
        self._stored, self.shape, self._convert = stored, tuple(shape), convert

    def read(self):
        return self._convert(self._stored.read())


class _RecordingDict(dict):
    """A dict that records which of its names were read, in the set `names`."""

    def __init__(self, values):
        super().__init__(values)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


def _whole(stored):
    return _Tensor(stored, stored.shape, lambda array: array)


def _kernel(stored, index=0, count=1):
    """A matrix `[outputs, inputs]`, of the kernel `[inputs, count * outputs]`, which version 1
    stores with an axis of size 1 in front.
    """
    *leading, inputs, outputs = stored.shape if len(stored.shape) > 1 else (0, 0, 0)
    if any(size != 1 for size in leading) or outputs % count:
        raise ValueError(f"it has a matrix of the shape {list(stored.shape)}")
    size = outputs // count

    def convert(array):
        matrix = array.reshape(inputs, outputs)
        return matrix[:, index * size : (index + 1) * size].T

    return _Tensor(stored, (size, inputs), convert)


def _vector(stored, index=0, count=1):
    if len(stored.shape) != 1 or stored.shape[0] % count:
        raise ValueError(f"it has a vector of the shape {list(stored.shape)}")
    size = stored.shape[0] // count
    return _Tensor(stored, (size,), lambda array: array[index * size : (index + 1) * size])


def _tensors(stored, where):
    """Our tensors, dict of name to `_Tensor`, and whether they are of version 1."""
    names = {
        name.removesuffix(_SUFFIX).removeprefix("model/"): tensor
        for name, tensor in stored.items()
        if name.startswith("model/") and name.endswith(_SUFFIX) and "OPTIMIZER" not in name
    }
    scopes = [name.removesuffix("/encoder/layer_0/ffn/conv1d/kernel") for name in stored]
    scopes = [scope for scope, name in zip(scopes, stored, strict=True) if scope != name]
    try:
        if names:
            return _of_version_2(names), False
        if len(scopes) == 1:
            scope = f"{scopes[0]}/"
            old = {n.removeprefix(scope): t for n, t in stored.items() if n.startswith(scope)}
            return _of_version_1(old), True
    except KeyError as error:
        raise ValueError(f"{where} lacks the tensor {error}, so it is no Transformer.") from None
    except ValueError as error:
        raise ValueError(f"{where} is no Transformer of OpenNMT-tf: {error}.") from None
    raise ValueError(
        f"{where} has no Transformer of OpenNMT-tf: neither encoder/layers/0 nor encoder/layer_0 "
        "is among its tensors."
    )


def _linear(table, ours, tensors, theirs, index=0, count=1):
    kernel = tensors[f"{theirs}/kernel"]
    table[f"{ours}.weight"] = tensor = _kernel(kernel, index, count)
    if f"{theirs}/bias" in tensors:
        table[f"{ours}.bias"] = _vector(tensors[f"{theirs}/bias"], index, count)
    else:  # Attention may have none where feed-forward networks have them (`mha_bias`).
        shape = tensor.shape[:1]
        table[f"{ours}.bias"] = _Tensor(kernel, shape, lambda _: np.zeros(shape, "float32"))


def _norm(table, ours, tensors, theirs):
    for ending, name in (("weight", "gamma"), ("bias", "beta")):
        table[f"{ours}.{ending}"] = _vector(tensors[f"{theirs}/{name}"])


def _of_version_2(tensors):
    tensors, table = _RecordingDict(tensors), {}
    inputters = "examples_inputter/{}_inputter/embedding"
    tables = [inputters.format(name) for name in ("features", "labels")]
    tied = [f"decoder/output_layer/{name}" for name in ("kernel", "weight")]
    source, target = (tensors.get(name) for name in tables)
    output = next((tensors[name] for name in tied if name in tensors), None)
    if output is not None and target is None and source is None:
        source = target = output
    source, target = (source or target), (target or source)
    if source is None:
        raise KeyError(tables[0])
    _tables(table, source, target)
    # A table that is the output, too, is stored once.
    if output is not None and output not in (source, target):
        table["lm_head.weight"] = _kernel(output)
    if "decoder/output_layer/bias" in tensors:
        table["final_logits_bias"] = _bias(tensors["decoder/output_layer/bias"])
    for side in ("encoder", "decoder"):
        if f"{side}/layer_norm/gamma" in tensors:
            _norm(table, f"model.{side}.layer_norm", tensors, f"{side}/layer_norm")
        for index in range(_count(tensors, rf"{side}/layers/(\d+)/")):
            ours, theirs = f"model.{side}.layers.{index}", f"{side}/layers/{index}"
            sublayers = [("self_attention", "self_attn")]
            sublayers += [("attention/0", "encoder_attn")] if side == "decoder" else []
            for name, short in sublayers:
                for projection, our_projection in _PROJECTIONS.items():
                    layer = f"{theirs}/{name}/layer/linear_{projection}"
                    _linear(table, f"{ours}.{short}.{our_projection}", tensors, layer)
                _wrapped_norm(table, f"{ours}.{short}_layer_norm", tensors, f"{theirs}/{name}")
            for kind in ("keys", "values"):
                name = f"{theirs}/self_attention/layer/relative_position_{kind}"
                if name in tensors:
                    table[f"{ours}.self_attn.relative_{kind}.weight"] = _whole(tensors[name])
            _linear(table, f"{ours}.fc1", tensors, f"{theirs}/ffn/layer/inner")
            _linear(table, f"{ours}.fc2", tensors, f"{theirs}/ffn/layer/outer")
            _wrapped_norm(table, f"{ours}.final_layer_norm", tensors, f"{theirs}/ffn")
    if unused := sorted(tensors.keys() - tensors.names):
        raise ValueError(f"it has the further tensor {shown(unused[0])}")
    return table


def _wrapped_norm(table, ours, tensors, theirs):
    is_before = f"{theirs}/input_layer_norm/gamma" in tensors
    _norm(table, ours, tensors, f"{theirs}/{'input' if is_before else 'output'}_layer_norm")


def _of_version_1(tensors):
    table = {}
    tables = [tensors.get(f"{name}/w_embs") for name in ("encoder", "decoder", "shared_embeddings")]
    source, target = tables[0] or tables[2] or tables[1], tables[1] or tables[2] or tables[0]
    if source is None:
        raise KeyError("encoder/w_embs")
    _tables(table, source, target)
    if "decoder/dense/kernel" in tensors:
        table["lm_head.weight"] = _kernel(tensors["decoder/dense/kernel"])
    if "decoder/dense/bias" in tensors:
        table["final_logits_bias"] = _bias(tensors["decoder/dense/bias"])
    for side in ("encoder", "decoder"):
        _norm(table, f"model.{side}.layer_norm", tensors, f"{side}/LayerNorm")
        for index in range(_count(tensors, rf"{side}/layer_(\d+)/")):
            ours, theirs = f"model.{side}.layers.{index}", f"{side}/layer_{index}"
            own = "masked_multi_head" if side == "decoder" else "multi_head"
            for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
                _linear(
                    table, f"{ours}.self_attn.{name}", tensors, f"{theirs}/{own}/conv1d", number, 3
                )
            _linear(table, f"{ours}.self_attn.out_proj", tensors, f"{theirs}/{own}/conv1d_1")
            _norm(table, f"{ours}.self_attn_layer_norm", tensors, f"{theirs}/{own}/LayerNorm")
            if side == "decoder":
                cross, name = f"{ours}.encoder_attn", f"{theirs}/multi_head"
                _linear(table, f"{cross}.q_proj", tensors, f"{name}/conv1d")
                _linear(table, f"{cross}.k_proj", tensors, f"{name}/conv1d_1", 0, 2)
                _linear(table, f"{cross}.v_proj", tensors, f"{name}/conv1d_1", 1, 2)
                _linear(table, f"{cross}.out_proj", tensors, f"{name}/conv1d_2")
                _norm(table, f"{cross}_layer_norm", tensors, f"{name}/LayerNorm")
            _linear(table, f"{ours}.fc1", tensors, f"{theirs}/ffn/conv1d")
            _linear(table, f"{ours}.fc2", tensors, f"{theirs}/ffn/conv1d_1")
            _norm(table, f"{ours}.final_layer_norm", tensors, f"{theirs}/ffn/LayerNorm")
    return table


def _tables(table, source, target):
    if source is target:
        table["model.shared.weight"] = _whole(source)
    else:
        table |= {_TABLES["source"]: _whole(source), _TABLES["target"]: _whole(target)}


def _bias(stored):
    tensor = _vector(stored)
    return _Tensor(stored, (1, *tensor.shape), lambda array: array[None])


def _count(tensors, pattern):
    """The number of layers whose names match."""
    numbers = {int(match[1]) for name in tensors if (match := re.match(pattern, name))}
    if numbers != set(range(len(numbers))) or not 0 < len(numbers) <= MOST_LAYERS:
        raise ValueError(f"it has the layers {shown(sorted(numbers)[:10])} of {pattern[:7]}")
    return len(numbers)


def _reorder(tensors, side, order):
    """Changes the order of the rows of a side's table, and of what writes them."""
    names = [_TABLES[side]] + (["lm_head.weight", "final_logits_bias"] if side == "target" else [])
    for name in names:
        if name in tensors:
            tensors[name] = _reordered(tensors[name], order, int(name == "final_logits_bias"))


def _reordered(tensor, order, axis):
    if tensor.shape[axis] != len(order):
        raise ValueError(
            f"The output of the model is for {tensor.shape[axis]} tokens, but its table has "
            f"{len(order)}: copy the checkpoint again."
        )
    return _Tensor(tensor, tensor.shape, lambda array: np.take(array, order, axis=axis))


def _arguments(tensors, description, prefix):
    """The arguments of `Transformer`, but for the special ids."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    shared = "model.shared.weight" in shapes
    source = shapes["model.shared.weight" if shared else _TABLES["source"]]
    target = source if shared else shapes[_TABLES["target"]]
    if len(source) != 2 or len(target) != 2:
        raise ValueError(f"{prefix} has tables of the shapes {source} and {target}.")
    relative = "model.encoder.layers.0.self_attn.relative_keys.weight"
    positions = {"position_encoding": "sinusoidal_fairseq", "position_offset": 1}
    if relative in shapes:
        if description["positions"] not in (None, "default"):
            raise ValueError(
                f"{prefix} has relative positions beside sinusoidal ones, and kformer has one kind "
                "in a model."
            )
        rows = shapes[relative][0]
        positions = {"position_encoding": "shaw", "relative_max_distance": (rows - 1) // 2}
    elif description["positions"] is None:
        positions = {"position_encoding": None}
    sides = {
        side: len(
            {name.split(".")[3] for name in shapes if name.startswith(f"model.{side}.layers.")}
        )
        for side in ("encoder", "decoder")
    }
    return {
        "vocabulary_size": source[0],
        "target_vocabulary_size": target[0],
        "share_embeddings": shared,
        "share_output": "lm_head.weight" not in shapes,
        "output_bias": "final_logits_bias" in shapes,
        "num_encoder_layers": sides["encoder"],
        "num_decoder_layers": sides["decoder"],
        "hidden_dim": source[1],
        "intermediate_dim": shapes["model.encoder.layers.0.fc1.weight"][0],
        "num_heads": description["heads"],
        "activation": description["activation"],
        "normalize_first": "model.encoder.layer_norm.weight" in shapes,
        "layer_norm_epsilon": _EPSILON,
        **positions,
    }
