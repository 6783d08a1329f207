"""Reads CTranslate2's folders of translation models, also inside an Argos package.

CTranslate2 stores queries, keys and values as one matrix. It stores positions as a table; where a
formula made the table, it is computed here. `config.json` has what norms add to the variance;
without it this is 1e-5.
"""

import contextlib
import functools
import re

import numpy as np
from keras import ops

from kformer.interop.architectures import UNUSED_POSITIONS
from kformer.interop.limits import MOST_LAYERS, MOST_PIECES, read_settings
from kformer.interop.toolkits import files
from kformer.interop.toolkits.ctranslate2_files import Variables, read_header
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.layers import sinusoidal_positions
from kformer.text import Tokenizer
from kformer.text.languages import some_languages
from kformer.translating.translator import DIRECTIONS, SEARCH_BY_LANGUAGE
from kformer.utils.checks import check_choice, check_whole, shown
from kformer_options.names import named
from kformer_options.search import read_options

_WEIGHTS, _OWN, _ARGOS = "model.bin", "kformer.json", "metadata.json"
_SPECIFICATIONS = {"TransformerSpec": None, "TransformerBase": 8, "TransformerBig": 16}
_MODELS = {
    side: (f"{side}.spm", f"{side}.model", "sentencepiece.model", "sentencepiece.bpe.model")
    for side in ("source", "target")
}
_ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid")
_LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal_halves": "halves",
    "sinusoidal_fairseq": "fairseq",
}
_RELATIVE_KEYS = "self_attention/relative_position_keys"
_PADDING = ("<blank>", "<pad>")
_EPSILON = 1e-5
# The positions that the engine reads of a source by default.
_MAX_LENGTH = 1024
# The bias of a token that is in no vocabulary. It makes its probability 0, and fits in float16.
_NEVER = -1e4
# Settings that change nothing, or that are read from shapes.
_IGNORED = re.compile(
    r"(.*/)?(alignment_(layer|heads)|embeddings_merge|multi_query_attention|head_dim|"
    r"with_(source|target)_(bos|eos)|user_decoder_start_tokens|start_from_zero_embedding)"
)
# Other settings, with the values that kformer has.
_REQUIRED = dict.fromkeys(
    ("alibi", "alibi_use_positive_positions", "scale_alibi", "scale_outputs", "sliding_window"),
    (0,),
)
_LANGUAGE = re.compile(r"__(.+)__|([a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2})")
_TAG = re.compile(r"(?s)>>(.+)<<")
_BOTH = {"source": ["source_prefix"], "target": ["target_prefix"]}
_TAGS = {"source": [], "target": ["source_prefix"]}
# The defaults of the engine's `translate_batch`.
_SEARCH = {
    **{"mode": "huggingface", "beam_size": 2, "length_penalty": 1.0, "early_stopping": True},
    **{"forced_end": False, "min_length": 1, "max_length": 255, "length_ratio": 255.0},
}
_ARGOS_SEARCH = {"beam_size": 4, "length_penalty": 0.2}


def is_mine(path):
    """Whether a path is a folder of CTranslate2's, its `model.bin`, or an unpacked package of
    Argos."""
    with contextlib.suppress(OSError, ValueError):
        folder = _folder(path)
        return folder is not None and read_header(folder / _WEIGHTS) is not None
    return False


def read(path, options):
    """Reads a model of CTranslate2.

    Args:
        path: `pathlib.Path` of a folder with `model.bin`, of this file, or of an unpacked package
            of Argos.
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or kformer has no such model.
    """
    folder = _folder(path)
    if folder is None:
        raise FileNotFoundError(f"{path} has no {_WEIGHTS} of CTranslate2.")
    variables = Variables(folder / _WEIGHTS)
    if variables.specification not in _SPECIFICATIONS:
        raise ValueError(
            f"{folder} is a CTranslate2 model of the kind {shown(variables.specification)}; "
            "kformer reads Transformers for translation (TransformerSpec)."
        )
    config = _read_json(folder, "config.json") or {}
    metadata = None if any(_choices(options)) else _read_json(folder, _OWN)
    argos = None if path == folder else _read_json(path, _ARGOS)
    tokens = _Tokens(folder, config, variables, metadata is not None)
    weights = _Weights(variables, tokens, folder)
    arguments = weights.arguments(config, options)
    remarks = list(tokens.remarks)
    saved_config = None
    if metadata is not None:
        saved_tokenizer, search, saved_config = _read_metadata(folder, metadata, arguments)
        codes = options.source_language, options.target_language
        tokenizer = saved_tokenizer.for_languages(*codes)
        if tokenizer.target_language != saved_tokenizer.target_language:
            search |= saved_config.get(SEARCH_BY_LANGUAGE, {}).get(tokenizer.target_language, {})
    else:
        tokenizer = _tokenizer(tokens, [folder, path] if path.is_dir() else [folder], options)
        forbidden = tuple({tokens.ids["pad"], tokens.ids["start"]} - {tokens.ids["end"]})
        search = {**_SEARCH, "forbidden_ids": tuple(sorted(forbidden))}
    if argos is not None:
        search |= {**_ARGOS_SEARCH, **_argos_prefix(argos, tokenizer)}
    if variables.is_quantized():
        remarks.append(f"{_WEIGHTS} has matrices of 8 or 16 bits, which were made float32.")
    if (folder / "vmap.txt").is_file():
        remarks.append("The shortlist vmap.txt is not read: all tokens are computed.")
    arguments |= {
        f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "start", "end")
    }
    if metadata is not None and tokenizer.start_id == saved_tokenizer.start_id:
        # Another token than the tokenizer's may start.
        arguments["start_id"] = tokens.find(config.get("decoder_start_token"), 1)
    search["max_length"] = max(1, min(search["max_length"], arguments["max_length"] - 1))
    table = TensorTable(weights.table, variables.num_bytes)
    return ToolkitModel(
        "CTranslate2", arguments, table, tokenizer, search, tuple(remarks), saved_config
    )


def _folder(path):
    """The folder with the weights, or `None`."""
    if not path.is_dir():
        return path.parent if path.name == _WEIGHTS and path.is_file() else None
    folders = [path, *([path / "model"] if (path / _ARGOS).is_file() else [])]
    return next((each for each in folders if files.file_beside([each], [_WEIGHTS])), None)


def _read_json(folder, name, kind=dict):
    path = files.file_beside([folder], [name])
    return None if path is None else read_settings(path, "copy the folder again", kind)


def _choices(options):
    return (
        *(options.source_model, options.target_model, options.pretokenized),
        *(options.source_vocabulary, options.target_vocabulary),
    )


# ---- tokens ----


class _Tokens:
    """The vocabularies of a folder, and the ids of the model's special tokens.

    In kformer a special token has one id on both sides. So the unknown token, which is the last one
    of each side in some vocabularies, takes the id of another token. A model without a padding
    token gets one more row, from which it also starts if it starts from zeros.

    Attributes:
        lists: list of two lists of str, source and target: every token by its id.
        orders: list of two arrays: the stored row of each of our rows, -1 for none.
        ids: dict of "pad", "unknown", "start" and "end" to id.
        has_source_end: bool. Whether a source ends with the end token.
        source_start: int or `None`. The id that a source begins with.
        remarks: list of str.
    """

    def __init__(self, folder, config, variables, is_own):
        self.folder, self.remarks = folder, []
        tables = _tables(variables)
        rows = [(*variables.shape(name), 0)[0] for name in tables]
        self.lists = [_vocabulary(folder, side) for side in ("source", "target")]
        names = {name: config.get(f"{name}_token") for name in ("unk", "bos", "eos")}
        defaults = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
        names = {name: value or defaults[name] for name, value in names.items()}
        if not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / 'config.json'} has the tokens {shown(names)}.")
        for tokens, count in zip(self.lists, rows, strict=True):
            if tokens[count:] not in ([], [names["unk"]]) or not 1 < count <= MOST_PIECES:
                raise ValueError(
                    f"{folder} has {len(tokens)} tokens for a table of {count} rows: its files are "
                    "not of one model."
                )
            del tokens[count:]
            tokens += [f"<no piece {i}>" for i in range(len(tokens), count)]
        self.orders = [np.arange(count) for count in rows]
        if is_own:
            return  # kformer's tokenizer is beside it.
        self._align(names["unk"])
        start = self._start(config, names, variables)
        pads = [self._common_id(token) for token in _PADDING]
        pad = next((i for i in pads if i is not None), None)
        is_zero = bool(variables.scalar("decoder/start_from_zero_embedding", 0))
        if pad is None or is_zero:
            pad = max(rows)
            for side, tokens in enumerate(self.lists):
                missing = pad + 1 - len(tokens)
                names_of_rows = [f"<no piece {len(tokens) + i}>" for i in range(missing)]
                tokens += names_of_rows
                self.orders[side] = np.append(self.orders[side], [-1] * missing)
        self.ids = {
            **{
                "pad": pad,
                "unknown": self.find(names["unk"], 1),
                "end": self.find(names["eos"], 1),
            },
            "start": pad if is_zero else self.find(start, 1),
        }
        self.source_end = self.find(names["eos"], 0) if self.has_source_end else None
        self.source_start = self.find(names["bos"], 0) if self.has_source_start else None

    def find(self, token, side):
        if token not in self.lists[side]:
            raise ValueError(f"{self.folder} has no token {shown(token)} in its vocabularies.")
        return self.lists[side].index(token)

    def _common_id(self, token):
        ids = {tokens.index(token) if token in tokens else None for tokens in self.lists}
        return ids.pop() if len(ids) == 1 else None

    def _align(self, unknown):
        source, target = (self.find(unknown, side) for side in (0, 1))
        if source == target:
            return
        side = 1 if source < len(self.lists[1]) else 0
        here, there = (target, source) if side else (source, target)
        if there >= len(self.lists[side]):
            raise ValueError(
                f"{self.folder} gives {shown(unknown)} another id on each side, unlike kformer."
            )
        for values in (self.lists[side], self.orders[side]):
            values[here], values[there] = values[there], values[here]

    def _start(self, config, names, variables):
        """The token that the decoder begins with; it sets what is around a source."""
        if variables.version < 6 and "add_source_eos" not in config:
            flags = {
                name: bool(variables.scalar(f"with_{name}", default))
                for name, default in (("source_bos", 0), ("source_eos", 0), ("target_bos", 1))
            }
            self.has_source_start, self.has_source_end = flags["source_bos"], flags["source_eos"]
            return names["bos" if flags["target_bos"] else "eos"]
        start = config.get("decoder_start_token", names["bos"])
        if not isinstance(start, str):
            raise ValueError(
                f"{self.folder} leaves the first token of a translation to its user "
                "(decoder_start_token), and kformer cannot know it: give the folder that it was "
                "converted from."
            )
        self.has_source_start = bool(config.get("add_source_bos"))
        self.has_source_end = bool(config.get("add_source_eos"))
        is_callers = start in (names["eos"], "<pad>") and names["eos"] in self.lists[0]
        if not self.has_source_end and is_callers:
            self.has_source_end = True
            self.remarks.append(
                f"Sources end with {names['eos']}, as in the models of Hugging Face's library: "
                "config.json leaves it to the caller."
            )
        return start


def _tables(variables):
    name = "encoder/embeddings_0/weight"
    return name if name in variables else "encoder/embeddings/weight", "decoder/embeddings/weight"


def _vocabulary(folder, side):
    names = [f"{kind}_vocabulary.{end}" for kind in ("shared", side) for end in ("json", "txt")]
    path = files.file_beside([folder], names)
    if path is None:
        raise FileNotFoundError(f"{folder} has no {side}_vocabulary.json: copy the folder again.")
    if path.suffix == ".txt":
        return files.read_lines(path)
    tokens = read_settings(path, "copy the folder again", list)
    if not all(isinstance(token, str) for token in tokens) or len(tokens) > MOST_PIECES:
        raise ValueError(f"{path} is no list of tokens: copy the folder again.")
    return tokens


def _tokenizer(tokens, folders, options):
    if files.file_beside(folders, ["bpe.model"]) and not any(_choices(options)):
        raise ValueError(
            f"{folders[-1]} has codes of subword-nmt (bpe.model), which kformer does not apply: "
            f"import with {named('pretokenized')}, and give texts as `subword-nmt apply-bpe` "
            "splits them."
        )
    source, target = tokens.lists
    languages, places = {}, None
    for pattern, its_places in ((_LANGUAGE, _BOTH), (_TAG, _TAGS)):
        codes = {
            match[1] or match[match.lastindex]: i
            for i, token in enumerate(source)
            if (match := pattern.fullmatch(token)) and token in target
        }
        if len(codes) > 1:
            languages, places = codes, its_places
            break
    if places is _BOTH and any(target[i] != source[i] for i in languages.values()):
        raise ValueError(f"{tokens.folder} gives its languages other ids on each side.")
    signs = {*tokens.ids.values()} - {tokens.ids["unknown"]}
    around = [i for i in (tokens.source_start, tokens.source_end) if i is not None]
    tokenizer = files.make_tokenizer(
        files.models_beside(options, folders, _MODELS),
        tokens.lists,
        tokens.ids,
        [
            {
                *signs,
                *languages.values(),
                *(around if side == 0 else ()),
                *(i for i, stored in enumerate(tokens.orders[side]) if stored < 0),
            }
            for side in (0, 1)
        ],
        prefixes={"source": around[: tokens.source_start is not None], "target": ()},
        suffixes={
            "source": () if tokens.source_end is None else (tokens.source_end,),
            "target": (tokens.ids["end"],),
        },
        languages=languages or None,
        language_places=places,
        language_tags=places is _TAGS,
    )
    codes = {"source": options.source_language, "target": options.target_language}
    for side, code in codes.items():
        if code is None and places is _BOTH:
            raise ValueError(
                f"{tokens.folder} needs a {side} language: give {named(f'{side}_language')}, one "
                f"of {some_languages(languages)}."
            )
        if code is not None:
            tokenizer = tokenizer.for_languages(**{side: code})
    return tokenizer


def _read_metadata(folder, metadata, arguments):
    """Tokenizer, search, and what `config.json` had of several languages, of a folder that kformer
    wrote; it limits the arguments' length.
    """
    try:
        tokenizer = Tokenizer.load(folder / "tokenizer")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / 'tokenizer'} is damaged ({error!r}).") from None
    search, batch = metadata.get("search"), metadata.get("translate_batch")
    if not isinstance(search, dict) or not isinstance(batch, dict):
        raise ValueError(f"{folder / _OWN} has no search: copy the folder again.")
    most = check_whole(f"max_input_length of {folder / _OWN}", batch.get("max_input_length"))
    arguments["max_length"] = min(most, arguments["max_length"])
    config = metadata.get("config")
    config = config if isinstance(config, dict) else {}
    config = {key: config[key] for key in (SEARCH_BY_LANGUAGE, DIRECTIONS) if key in config}
    by_language, directions = config.get(SEARCH_BY_LANGUAGE, {}), config.get(DIRECTIONS, [])
    searches = by_language.values() if isinstance(by_language, dict) else [None]
    if not all(isinstance(changes, dict) for changes in searches):
        raise ValueError(f"{folder / _OWN} has a damaged {SEARCH_BY_LANGUAGE}: copy it again.")
    if not (isinstance(directions, list) and all(isinstance(each, str) for each in directions)):
        raise ValueError(f"{folder / _OWN} has damaged {DIRECTIONS}: copy it again.")
    for changes in ({}, *searches):
        read_options({**search, **changes}, folder / _OWN)  # Raises if one is bad.
    search = {
        name: tuple(value) if isinstance(value, list) else value for name, value in search.items()
    }
    return tokenizer, search, config


def _argos_prefix(metadata, tokenizer):
    """The field of the search for the token that a package puts before each translation."""
    token = metadata.get("target_prefix") or ""
    pieces = tokenizer.vocabulary("target").pieces
    if not token:
        return {}
    if token not in pieces:
        raise ValueError(f"{_ARGOS} has the target_prefix {shown(token)}, which is no token.")
    return {"prefix_ids": (pieces.index(token),)}


# ---- weights ----


class _Weights:
    """CTranslate2's variables by the names that `kformer.interop.slots` has.

    Attributes:
        table: dict, as `TensorTable` takes it.
    """

    def __init__(self, variables, tokens, folder):
        self.variables, self.tokens, self.folder = variables, tokens, folder
        self.table, self._rotary_dims = {}, {}
        self._has_bias = any(
            re.search(r"/(linear_[0-9]|linear_0_noact)/bias$", name)
            for name in (*variables.names, *variables.aliases)
        )

    def arguments(self, config, options):
        """Reads all; returns the arguments of `Transformer` but for the special ids."""
        variables = self.variables
        counts = [self._count(side) for side in ("encoder", "decoder")]
        hidden = (*variables.shape(_tables(variables)[1]), 0, 0)[1]
        norms = {side: f"{side}/layer_norm/gamma" in variables for side in ("encoder", "decoder")}
        is_first = [bool(value) for value in self._of_sides("pre_norm", 1)]
        activation = self._same("activation", 0)
        check_choice(f"activation of {self.folder}", activation, range(len(_ACTIVATIONS)))
        normalizes = "encoder/layernorm_embedding/gamma" in variables
        if [*norms.values()] != is_first and norms["encoder"] != norms["decoder"]:
            raise ValueError(f"{self.folder} has a norm after the layers of one side alone.")
        arguments = {**self._tables(), **self._positions(hidden, normalizes)}
        for side, count in zip(("encoder", "decoder"), counts, strict=True):
            if normalizes:
                self._norm(f"model.{side}.layernorm_embedding", f"{side}/layernorm_embedding")
            for index in range(count):
                self._layer(f"model.{side}.layers.{index}", f"{side}/layer_{index}", side)
            if norms[side]:
                self._norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        heads = [self._heads(side, options) for side in ("encoder", "decoder")]
        inner = [
            self.table[f"model.{side}.layers.0.fc1.weight"][0][0] for side in ("encoder", "decoder")
        ]
        rows = self.table["model.encoder.layers.0.self_attn.q_proj.weight"][0][0]
        is_rms = "encoder/layer_0/ffn/layer_norm/beta" not in variables
        epsilon = config.get("layer_norm_epsilon") or (1e-6 if is_rms else _EPSILON)
        if not isinstance(epsilon, float) or not 0 < epsilon < 1:
            raise ValueError(f"{self.folder} has layer_norm_epsilon={shown(epsilon)}.")
        arguments |= {
            **{"num_encoder_layers": counts[0], "num_decoder_layers": counts[1]},
            **{"hidden_dim": hidden, "num_heads": heads[0], "decoder_num_heads": heads[1]},
            **{"intermediate_dim": inner[0], "decoder_intermediate_dim": inner[1]},
            "activation": _ACTIVATIONS[activation],
            "gated": "model.encoder.layers.0.gate.weight" in self.table,
            **{"normalize_first": is_first[0], "decoder_normalize_first": is_first[1]},
            "final_norm": None if [*norms.values()] == is_first else norms["encoder"],
            "normalize_embeddings": normalizes,
            "normalization": "rms_norm" if is_rms else "layer_norm",
            "layer_norm_epsilon": epsilon,
            "use_bias": self._has_bias,
            "scale_embeddings": self._scales(hidden),
        }
        if rows != hidden:
            arguments["head_dim"] = rows // heads[0]
        self._check_rest(rows, heads)
        return arguments

    def _scales(self, hidden):
        """Whether embeddings are multiplied by the root of their width: a flag, or the factor."""
        variables, scales = self.variables, set()
        for side in ("encoder", "decoder"):
            names = f"{side}/scale_embeddings", f"{side}/embeddings/multiply_by_sqrt_depth"
            name = next((name for name in names if name in variables), None)
            value = 1 if name is None else variables.scalar(name)
            if isinstance(value, float):  # A flag is a whole number.
                if value != 1 and abs(value - hidden**0.5) > 1e-3 * value:
                    raise ValueError(
                        f"{self.folder} multiplies embeddings by {value}, and kformer by 1 or by "
                        "the root of their width."
                    )
                value = value != 1
            scales.add(bool(value))
        if len(scales) > 1:
            raise ValueError(f"{self.folder} scales the embeddings of one side alone.")
        return scales.pop()

    def _all_names(self):
        return (*self.variables.names, *self.variables.aliases)

    def _same(self, name, default):
        """A setting that both sides have."""
        values = set(self._of_sides(name, default))
        if len(values) > 1:
            raise ValueError(f"{self.folder} has another {name} on each side, unlike kformer.")
        return values.pop()

    def _of_sides(self, name, default):
        """A setting of encoder and decoder; old files have one for both."""
        general = self.variables.scalar(name, default)
        sides = ("encoder", "decoder")
        return [int(self.variables.scalar(f"{side}/{name}", general)) for side in sides]

    def _count(self, side):
        pattern = re.compile(rf"{side}/layer_([0-9]{{1,6}})/")
        numbers = {int(match[1]) for name in self._all_names() if (match := pattern.match(name))}
        if numbers != set(range(len(numbers))) or not 0 < len(numbers) <= MOST_LAYERS:
            raise ValueError(f"{self.folder} has {len(numbers)} layers in its {side}.")
        return len(numbers)

    def _heads(self, side, options):
        variables = self.variables
        stated = variables.scalar(f"{side}/num_heads", variables.scalar("num_heads"))
        stated = options.num_heads or stated or _SPECIFICATIONS[variables.specification]
        return check_whole(f"num_heads of {self.folder}", None if stated is None else int(stated))

    def _add(self, ours, theirs, rank, rows=None):
        shape = self.variables.shape(theirs)
        if len(shape) != rank:
            raise ValueError(f"{self.folder} has the shape {list(shape)} for {shown(theirs)}.")
        read = lambda: self.variables.read(theirs)  # noqa: E731
        if rows is not None:
            shape = (rows.stop - rows.start, *shape[1:])
            read = lambda: self.variables.read(theirs)[rows]  # noqa: E731
        self.table[ours] = shape, read

    def _linear(self, theirs, *ours):
        """A linear layer, or several that are one there."""
        size = (*self.variables.shape(f"{theirs}/weight"), 0)[0] // len(ours)
        for index, name in enumerate(ours):
            rows = slice(index * size, (index + 1) * size)
            self._add(f"{name}.weight", f"{theirs}/weight", 2, rows)
            if f"{theirs}/bias" in self.variables:
                self._add(f"{name}.bias", f"{theirs}/bias", 1, rows)
            elif self._has_bias:
                self.table[f"{name}.bias"] = (size,), lambda: np.zeros(size, "float32")

    def _norm(self, ours, theirs):
        self._add(f"{ours}.weight", f"{theirs}/gamma", 1)
        if f"{theirs}/beta" in self.variables:
            self._add(f"{ours}.bias", f"{theirs}/beta", 1)

    def _layer(self, ours, theirs, side):
        attention = f"{ours}.self_attn"
        self._linear(
            f"{theirs}/self_attention/linear_0",
            *(f"{attention}.{name}_proj" for name in "qkv"),
        )
        self._linear(f"{theirs}/self_attention/linear_1", f"{attention}.out_proj")
        if f"{theirs}/{_RELATIVE_KEYS}" in self.variables:
            names = "keys", "values"
            for name in names[:1] if self._shares_relative else names:
                relative = f"{theirs}/self_attention/relative_position_{name}"
                self._add(f"{attention}.relative_{name}.weight", relative, 2)
        self._norm(f"{attention}_layer_norm", f"{theirs}/self_attention/layer_norm")
        if side == "decoder":
            cross = f"{ours}.encoder_attn"
            self._linear(f"{theirs}/attention/linear_0", f"{cross}.q_proj")
            self._linear(f"{theirs}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
            self._linear(f"{theirs}/attention/linear_2", f"{cross}.out_proj")
            self._norm(f"{cross}_layer_norm", f"{theirs}/attention/layer_norm")
        is_gated = f"{theirs}/ffn/linear_0_noact/weight" in self.variables
        if is_gated:  # The activation is that of the gate.
            self._linear(f"{theirs}/ffn/linear_0", f"{ours}.gate")
        self._linear(f"{theirs}/ffn/linear_0{'_noact' if is_gated else ''}", f"{ours}.fc1")
        self._linear(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
        self._norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")

    def _rows(self, ours, theirs, side):
        """A table, in our order of tokens, with zeros for tokens that are not there."""
        order, shape = self.tokens.orders[side], self.variables.shape(theirs)
        if len(shape) != 2 or shape[0] != (order >= 0).sum():
            raise ValueError(f"{self.folder} has the shape {list(shape)} for {shown(theirs)}.")

        def read():
            array = self.variables.read(theirs)
            if len(array) == len(order) and (order == np.arange(len(order))).all():
                return array
            return np.where((order < 0)[:, None], array.dtype.type(0), array[order.clip(0)])

        self.table[ours] = (len(order), *shape[1:]), read

    def _tables(self):
        """Reads tables and output layer; returns the arguments that they give."""
        variables, (source, target) = self.variables, _tables(self.variables)
        output = "decoder/projection/weight"
        orders = self.tokens.orders
        is_shared = self._is_same(source, target) and np.array_equal(*orders)
        is_tied = self._is_same(target, output)
        if is_shared:
            self._rows("model.shared.weight", source, 0)
        else:
            self._rows("model.encoder.embed_tokens.weight", source, 0)
            self._rows("model.decoder.embed_tokens.weight", target, 1)
        if not is_tied:
            self._rows("lm_head.weight", output, 1)
        order, bias = orders[1], "decoder/projection/bias"
        has_bias = bias in variables or bool((order < 0).any())
        if bias in variables and variables.shape(bias) != ((order >= 0).sum(),):
            raise ValueError(
                f"{self.folder} has the shape {list(variables.shape(bias))} for {bias}."
            )

        def read_bias():
            array = np.zeros(len(order), "float32")
            if bias in variables:
                array = variables.read(bias).astype("float32")[order.clip(0)]
            return np.where(order < 0, np.float32(_NEVER), array)[None]

        if has_bias:
            self.table["final_logits_bias"] = (1, len(order)), read_bias
        return {
            "vocabulary_size": len(orders[0]),
            "target_vocabulary_size": len(orders[1]),
            **{"share_embeddings": is_shared, "share_output": is_tied, "output_bias": has_bias},
        }

    def _is_same(self, one, other):
        variables = self.variables
        if variables.shape(one) != variables.shape(other):
            return False
        if variables.stored(one) == variables.stored(other):
            return True
        return np.array_equal(variables.read(one), variables.read(other))

    def _positions(self, hidden, normalizes):
        """The arguments of positions; learned tables are added to `table`."""
        variables = self.variables
        attention = "encoder/layer_0/self_attention"
        relative = f"encoder/layer_0/{_RELATIVE_KEYS}"
        if relative in variables:
            rows = (*variables.shape(relative), 0)[0]
            keys = [name for name in self._all_names() if name.endswith(_RELATIVE_KEYS)]
            pairs = [(name, name.removesuffix("keys") + "values") for name in keys]
            self._shares_relative = all(self._is_same(*pair) for pair in pairs)
            return {
                **{"position_encoding": "shaw", "relative_max_distance": (rows - 1) // 2},
                **{"relative_shared": self._shares_relative, "max_length": _MAX_LENGTH},
            }
        if f"{attention}/relative_attention_bias" in variables:
            raise ValueError(
                f"{self.folder} is a T5 or a model like it, which is not read from CTranslate2's "
                "files: give the folder that it was converted from."
            )
        if f"{attention}/rotary_dim" in variables:
            return self._rotary()
        names = {side: f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
        missing = [name not in variables for name in names.values()]
        if all(missing):  # The engine computes them.
            kind = {"position_encoding": "sinusoidal_fairseq", "position_offset": 1}
            return {**kind, "max_length": _MAX_LENGTH}
        shapes = [variables.shape(name) for name in names.values()]
        if any(len(shape) != 2 or shape[1] != hidden for shape in shapes):
            raise ValueError(f"{self.folder} has tables of positions of the shapes {shapes}.")
        rows = min(shape[0] for shape in shapes)
        known = [_known_positions(variables.read(name)[:rows]) for name in names.values()]
        if known[0] == known[1] is not None:
            return {**known[0], "max_length": rows}
        is_same = self._is_same(*names.values())
        for side, name in names.items():
            if side == "encoder" or normalizes or not is_same:
                read = functools.partial(self._read_positions, name, rows)
                shape = (rows + UNUSED_POSITIONS, hidden)
                self.table[f"model.{side}.embed_positions.weight"] = shape, read
        if not normalizes and not is_same and "model.shared.weight" in self.table:
            # Our shared table has one table of positions.
            shared = self.table.pop("model.shared.weight")
            for side in names:
                self.table[f"model.{side}.embed_tokens.weight"] = shared
            return {"position_encoding": "learned", "max_length": rows, "share_embeddings": False}
        if not normalizes and is_same and "model.shared.weight" not in self.table:
            name = "model.{}.embed_positions.weight"
            self.table[name.format("decoder")] = self.table[name.format("encoder")]
        return {"position_encoding": "learned", "max_length": rows}

    def _read_positions(self, name, rows):
        array = self.variables.read(name)[:rows].astype("float32")
        return np.concatenate([np.zeros((UNUSED_POSITIONS, array.shape[1]), "float32"), array])

    def _rotary(self):
        variables, kinds = self.variables, set()
        for name in self._all_names():
            prefix = name.removesuffix("/rotary_dim")
            if prefix == name:
                continue
            self._rotary_dims.setdefault(name.partition("/")[0], set()).add(variables.scalar(name))
            base = variables.scalar(f"{prefix}/rotary_base", 10_000.0)
            kinds.add((float(base), bool(variables.scalar(f"{prefix}/rotary_interleave", 1))))
        tables = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
        if len(kinds) != 1 or any(
            variables.read(name).any() for name in tables if name in variables
        ):
            raise ValueError(
                f"{self.folder} has rotary positions of {len(kinds)} kinds, or others beside them."
            )
        ((base, interleaves),) = kinds
        return {
            **{"position_encoding": "rope", "rotary_base": base, "rotary_interleaved": interleaves},
            "max_length": _MAX_LENGTH,
        }

    def _check_rest(self, rows, heads):
        """Refuses what is neither read nor harmless."""
        variables = self.variables
        for side, number in zip(("encoder", "decoder"), heads, strict=True):
            if not self._rotary_dims.get(side, set()) <= {0, rows // number}:
                raise ValueError(
                    f"{self.folder} rotates a part of each head in its {side}; kformer's models "
                    "rotate whole heads."
                )
        for name in variables.unused():
            if _IGNORED.fullmatch(name):
                continue
            is_number = variables.names.get(name, [None])[0] == ()
            value, end = variables.scalar(name) if is_number else None, name.rpartition("/")[2]
            allowed = heads if end == "num_heads_kv" else _REQUIRED.get(end, ())
            if value is None or value not in allowed:
                raise ValueError(
                    f"{self.folder} has {shown(name)}{f'={value}' if is_number else ''}, which "
                    "kformer's models do not have."
                )


def _known_positions(table):
    """The arguments of positions that are no weights: none, or fixed ones by their formula. `None`
    for learned ones."""
    table = table.astype("float32")
    if not table.any():
        return {"position_encoding": None}
    for name, layout in _LAYOUTS.items():
        for offset in range(UNUSED_POSITIONS + 1):

            def is_close(count, layout=layout, offset=offset):
                positions = np.arange(offset, offset + count, dtype="int32")
                vectors = sinusoidal_positions(positions, table.shape[1], layout=layout)
                # Half precision is coarse.
                return np.allclose(ops.convert_to_numpy(vectors), table[:count], atol=5e-3)

            if is_close(min(4, len(table))) and is_close(len(table)):
                return {"position_encoding": name, "position_offset": offset}
    return None
