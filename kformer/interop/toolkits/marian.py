"""Reads Marian's models: `.npz` and `.bin` with their vocabularies, the folders and zips of
OPUS-MT, and the folders of Firefox's models.

Marian's positions are tensor2tensor's (`sinusoidal_fairseq`), and its norms have an epsilon of
1e-6. Its decoder begins with a vector of zeros. Here that is the row of the padding and start
token, which Marian's vocabularies do not have.
"""

import contextlib
import pathlib
import re

import numpy as np

from kformer.interop.limits import MOST_LAYERS, MOST_PIECES
from kformer.interop.toolkits import files
from kformer.interop.toolkits.archives import decompressed
from kformer.interop.toolkits.marian_files import is_marian_file, open_tensors
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.text.vocabulary import load_sentencepiece, model_pieces
from kformer.utils.checks import check_whole, shown
from kformer.utils.files import read_bytes
from kformer_options.names import named

_ENDINGS = (".npz", ".bin", ".bin.gz")
_YAML_ENDINGS = (".yml", ".yaml", ".json")
_MOST_YAML_BYTES = 64 << 20
_MOST_FILES = 1000
# Marian's own defaults, where no decoder.yml has others.
_BEAM_SIZE, _NORMALIZE, _LENGTH_FACTOR = 12, 0.0, 3.0
# A decoder of Marian's reads and writes up to 1000 tokens.
_MAX_LENGTH = 1000
# The bias of tokens that are in no vocabulary. It makes their probability 0, and fits in float16.
_NEVER = -1e4
# Less than what a source of 1000 tokens makes visible.
RATIO_STEP = 1e-6
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
# The last version whose gelu is approximated by swish, and the first one whose norms before
# sub-layers reach keys and values.
_APPROXIMATE_GELU, _PRE_NORM = (1, 12, 0), (1, 12, 0)
# Settings with the values that are read; the first is Marian's default.
_SETTINGS = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-alibi-shift": (False,),
    "transformer-alibi-trainable": (False,),
    "transformer-postprocess-emb": ("d", "", "n", "dn", "nd"),
    "transformer-postprocess-top": ("", "d", "n", "dn", "nd"),
    "lemma-dim-emb": (0,),
    "factors-dim-emb": (0,),
    "ulr": (False,),
    "right-left": (False,),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
}
# The piece of a line break, which Marian does not write either.
_NEW_LINE = "<0x0A>"
_TAG = re.compile(r"(?s)>>.*<<")
_TAG_PLACES = {"source": [], "target": ["source_prefix"]}


def is_mine(path):
    """Whether a path is that of a model of Marian's: a file, or a folder that has one."""
    if path.is_dir():
        return (path / "decoder.yml").is_file() or bool(_models(path))
    return path.name.endswith(_ENDINGS) and is_marian_file(path)


def read(path, options):
    """Reads a model of Marian's.

    Args:
        path: `pathlib.Path` of a model's file; or of a folder with one, its vocabularies, and
            perhaps `decoder.yml`.
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or kformer has no such model.
    """
    folder = path if path.is_dir() else path.parent
    decoder = _decoder_settings(folder)
    remarks = []
    if path.is_dir():
        path = _model_of(folder, decoder, remarks)
    content, tensors, is_packed = open_tensors(path)
    settings = _Settings(files.parse_yaml(content, path, typed=False), path)
    arguments = _arguments(settings, remarks)
    weights = _Weights(tensors, path)
    sizes = _vocabulary_sizes(weights, settings)
    arguments |= weights.tables(arguments["hidden_dim"], max(sizes) + 1)
    weights.layers(arguments)
    tokenizer = _tokenizer(folder, decoder, sizes, options)
    table = TensorTable(weights.finished(), weights.num_bytes)
    if is_packed:
        remarks.append(f"{path.name} has 8-bit matrices, which were made float32.")
    if shortlists := sorted(each.name for each in folder.glob("lex*.bin*")):
        remarks.append(f"The shortlist {shortlists[0]} is not read: all tokens are computed.")
    special = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "start", "end")}
    # Never written are the rows behind Marian's vocabulary, and the unknown token.
    search = _search(decoder, remarks)
    forbidden = {*range(sizes[1], max(sizes) + 1)}
    if decoder.get("allow-unk") is not True:
        forbidden.add(tokenizer.unknown_id)
    pieces = tokenizer.vocabulary("target").pieces
    if decoder.get("allow-special") is not True and _NEW_LINE in pieces:
        forbidden.add(pieces.index(_NEW_LINE))
    search["forbidden_ids"] = tuple(sorted(forbidden))
    arguments |= special
    return ToolkitModel("Marian", arguments, table, tokenizer, search, tuple(remarks))


# ---- which file ----


def _models(folder):
    """The model files in a folder, sorted; links out of it are left out."""
    paths = []
    with contextlib.suppress(OSError):
        for count, path in enumerate(folder.iterdir()):
            if count == _MOST_FILES:
                break
            is_candidate = path.name.endswith(_ENDINGS) and not path.name.startswith("lex")
            if is_candidate and path.is_file() and files.file_beside([folder], [path.name]):
                paths.append(path)
    return sorted(path for path in paths if is_marian_file(path))


def _model_of(folder, decoder, remarks):
    names = decoder.get("models")
    if isinstance(names, list) and names:
        if len(names) > 1:
            raise ValueError(
                f"{folder / 'decoder.yml'} names {len(names)} models that translate together: give "
                "the file of one, or import each and translate with --ensemble."
            )
        name = pathlib.PureWindowsPath(str(names[0])).name
        if path := files.file_beside([folder], [name, f"{name}.gz"]):
            return path
        raise FileNotFoundError(f"{folder} lacks {shown(name)}, the model of its decoder.yml.")
    models = _models(folder)
    if not models:
        raise FileNotFoundError(f"{folder} has no model of Marian's: neither .npz nor .bin.")
    # An .npz has all bits of the weights.
    best = [path for path in models if path.suffix == ".npz"] or models
    if len(best) > 1:
        raise ValueError(
            f"{folder} has {len(best)} models, {best[0].name} and {best[1].name} among them: give "
            "the file of one."
        )
    if len(models) > 1:
        others = " and ".join(path.name for path in models if path != best[0])
        remarks.append(f"In {folder.name} {best[0].name} was read, and not {others}.")
    return best[0]


def _decoder_settings(folder):
    names = [path.name for path in sorted(folder.glob("config.*.yml"))]
    path = files.file_beside([folder], ["decoder.yml", *names])
    return {} if path is None else files.read_yaml(path)


# ---- settings ----


class _Settings:
    """The options that a model was made with, by Marian's names, read with checks.

    Args:
        values: dict of str to str, list or dict.
        path: path of the file, for messages.
    """

    def __init__(self, values, path):
        self.values, self.where = values, str(path)

    def text(self, name, default=""):
        value = self.values.get(name, default)
        return value if isinstance(value, str) else default

    def flag(self, name):
        return self.text(name).lower() == "true"

    def number(self, name, default=None, **limits):
        value = self.text(name, "" if default is None else str(default))
        whole = int(value) if re.fullmatch(r"[0-9]{1,9}", value) else value
        return check_whole(f"{name} of {self.where}", whole, **limits)

    def version(self):
        """The version of Marian that wrote the file, a tuple of int; zeros if it is not stated."""
        match = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", self.text("version"))
        return tuple(map(int, match.groups())) if match else (0, 0, 0)

    def check(self):
        """Refuses what kformer has no layer for."""
        for name, allowed in _SETTINGS.items():
            if name not in self.values:
                continue
            value = self.values[name]
            names = [str(each).lower() if type(each) in (bool, int) else each for each in allowed]
            if value not in names:
                raise ValueError(
                    f"{self.where} has {name}: {shown(value)}, which kformer does not have: "
                    "translate a text with Marian, and train a new model on it."
                )


def _arguments(settings, remarks):
    """The arguments of `Transformer` without those of tables and tokens."""
    settings.check()
    before, after = (settings.text(f"transformer-{name}process") for name in ("pre", "post"))
    before, after = (each.replace("d", "") for each in (before, after))
    if (before, after) not in (("", "an"), ("n", "a")):
        raise ValueError(
            f"{settings.where} has transformer-preprocess {shown(before)} and -postprocess "
            f"{shown(after)}, but kformer's norms stand before or after all sub-layers, beside "
            "residual sums."
        )
    is_first = before == "n"
    if is_first:
        _check_version(settings, remarks)
    top = "n" in settings.text("transformer-postprocess-top")
    activation = settings.text("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{settings.where} has transformer-ffn-activation: {shown(activation)}; kformer has "
            f"{', '.join(ACTIVATIONS)}."
        )
    activation = ACTIVATIONS[activation]
    if activation == "gelu" and settings.version() <= _APPROXIMATE_GELU:
        activation = "gelu_sigmoid"
    inner = settings.number("transformer-dim-ffn", 2048)
    layers = {"least": 1, "most": MOST_LAYERS}
    return {
        "num_encoder_layers": settings.number("enc-depth", 1, **layers),
        "num_decoder_layers": settings.number("dec-depth", 1, **layers),
        "hidden_dim": settings.number("dim-emb", 512),
        "intermediate_dim": inner,
        "decoder_intermediate_dim": settings.number("transformer-decoder-dim-ffn", 0, least=0)
        or inner,
        "num_heads": settings.number("transformer-heads", 8),
        "activation": activation,
        "normalize_first": is_first,
        "final_norm": None if top == is_first else top,
        "normalize_embeddings": "n" in settings.text("transformer-postprocess-emb"),
        "layer_norm_epsilon": 1e-6,
        "position_encoding": "sinusoidal_fairseq",
        "max_length": _MAX_LENGTH,
        "output_bias": True,
        "zero_start": True,
        "dropout": 0.1,
        **_recurrence(settings),
    }


def _recurrence(settings):
    """The argument for a decoder whose layers have a recurrent cell, if they do."""
    kind = settings.text("transformer-decoder-autoreg", "self-attention")
    if kind == "self-attention":
        return {}
    cell = settings.text("dec-cell", "gru")
    if kind != "rnn" or cell != "ssru":
        raise ValueError(
            f"{settings.where} has transformer-decoder-autoreg: {shown(kind)} and dec-cell: "
            f"{shown(cell)}; kformer has self-attention, and rnn with ssru."
        )
    return {"decoder_autoregression": "ssru"}


def _check_version(settings, remarks):
    """Checks that norms before self-attention reach its keys and values: this depends on the
    version.
    """
    version = settings.text("version")
    if settings.version() < _PRE_NORM:
        raise ValueError(
            f"{settings.where} has norms before its sub-layers and the version "
            f"{shown(version or 'none')}: before Marian 1.12 such norms did not reach the keys and "
            "values of self-attention, and in kformer they do."
        )
    if settings.text("transformer-decoder-autoreg") == "rnn":
        return
    remarks.append(
        "Marian's decoder leaves out the norm of keys and values after the first token in models "
        "with norms before sub-layers, unlike its training: kformer computes what was trained, so "
        "translations differ from Marian's."
    )


def _search(decoder, remarks):
    """The fields of `SearchOptions`."""

    def number(name, default):
        value = decoder.get(name, default)
        if value is None or not isinstance(value, bool | int | float) or not 0 <= value < 1e6:
            raise ValueError(f"decoder.yml has {name}: {shown(value)}, where a number should be.")
        return float(value)

    if decoder.get("word-penalty"):
        remarks.append("word-penalty of decoder.yml is ignored: outputs may differ from Marian's.")
    return {
        "mode": "huggingface",
        "beam_size": max(1, int(number("beam-size", _BEAM_SIZE))),
        "length_penalty": number("normalize", _NORMALIZE),
        "early_stopping": "shrink",
        # The end token counts among Marian's factor times the source, rounded up; here the limit
        # is rounded down, and a token comes after it.
        "length_ratio": max(0.0, number("max-length-factor", _LENGTH_FACTOR) - RATIO_STEP),
        "length_offset": 0,
        "forced_end": False,
    }


# ---- weights ----


def _vocabulary_sizes(weights, settings):
    """The numbers of tokens of both sides."""
    names = [name for name in ("encoder_Wemb", "Wemb") if name in weights.tensors]
    target = [name for name in ("decoder_Wemb", "Wemb") if name in weights.tensors]
    if not names or not target:
        raise ValueError(f"{weights.where} has no table Wemb, so it is no Transformer of Marian's.")
    sizes = [(weights.tensors[name][0][:1] or (0,))[0] for name in (names[0], target[0])]
    stated = settings.values.get("dim-vocabs")
    if isinstance(stated, list) and len(stated) == 2 and stated != list(map(str, sizes)):
        raise ValueError(
            f"{weights.where} has tables of {sizes[0]} and {sizes[1]} tokens, but its settings say "
            f"{shown(stated)}: it is damaged."
        )
    if not 1 < min(sizes) <= max(sizes) <= MOST_PIECES:
        raise ValueError(f"{weights.where} has tables of {sizes[0]} and {sizes[1]} tokens.")
    return sizes


class _Weights:
    """Marian's tensors by the names that `kformer.interop.slots` has.

    Args:
        tensors: dict, as `open_tensors` returns it.
        path: `pathlib.Path` of the file.

    Attributes:
        num_bytes: int. What the tensors take in 16 bits, at least the size of the file.
    """

    def __init__(self, tensors, path):
        self.tensors, self.where = tensors, str(path)
        numbers = sum(int(np.prod(shape, dtype=object)) for shape, _ in tensors.values())
        self.num_bytes = max(path.stat().st_size, 2 * numbers)
        self._table, self._used = {}, set()

    def _take(self, name, rank=2):
        if name not in self.tensors:
            raise ValueError(
                f"{self.where} lacks the tensor {name!r}: its weights and its settings are not of "
                "one model."
            )
        self._used.add(name)
        shape, read = self.tensors[name]
        if len(shape) != rank:
            raise ValueError(f"{self.where}: the tensor {name!r} has the shape {list(shape)}.")
        return shape, read

    def _matrix(self, ours, theirs):
        shape, read = self._take(theirs)
        self._table[ours] = shape[::-1], lambda: read().T

    def _vector(self, ours, theirs):
        shape, read = self._take(theirs)
        self._table[ours] = shape[1:], lambda: read().reshape(-1)
        if shape[0] != 1:
            raise ValueError(f"{self.where}: the tensor {theirs!r} has the shape {list(shape)}.")

    def _rows(self, ours, theirs, rows, filling=0.0, transposed=False):
        """A table, with rows behind it for the tokens that Marian does not have."""
        shape, read = self._take(theirs)
        shape = shape[::-1] if transposed else shape
        if shape[0] > rows:
            raise ValueError(f"{self.where}: the tensor {theirs!r} has the shape {list(shape)}.")

        def whole():
            array = read().T if transposed else read()
            more = np.full((rows - shape[0], *array.shape[1:]), filling, array.dtype)
            return np.concatenate([array, more])

        self._table[ours] = (rows, *shape[1:]), whole

    def tables(self, hidden_dim, rows):
        """Reads tables and output layer; returns the arguments that they give."""
        is_shared = "Wemb" in self.tensors
        sides = {"encoder": "encoder_Wemb", "decoder": "decoder_Wemb"}
        if is_shared:
            self._rows("model.shared.weight", "Wemb", rows)
        else:
            for side, name in sides.items():
                self._rows(f"model.{side}.embed_tokens.weight", name, rows)
        output = "decoder_ff_logit_out"
        is_tied = f"{output}_W" not in self.tensors and f"{output}_Wt" not in self.tensors
        if not is_tied:
            transposed = f"{output}_W" in self.tensors
            name = f"{output}_W" if transposed else f"{output}_Wt"
            self._rows("lm_head.weight", name, rows, transposed=transposed)
        size = self.tensors["Wemb" if is_shared else "decoder_Wemb"][0][0]
        read = lambda: np.zeros((1, size), "float32")  # noqa: E731
        if f"{output}_b" in self.tensors:
            shape, read = self._take(f"{output}_b")
            if shape != (1, size):
                raise ValueError(f"{self.where}: {output}_b has the shape {list(shape)}.")
        # The other rows of a source's table are no tokens of the target.
        filling = np.full((1, rows - size), _NEVER, "float32")
        self._table["final_logits_bias"] = (
            (1, rows),
            lambda: np.concatenate([read().astype("float32"), filling], axis=1),
        )
        return {
            "vocabulary_size": rows,
            "share_embeddings": is_shared,
            "share_output": is_tied,
        }

    def layers(self, arguments):
        """Reads the layers and the norms around them."""
        for ours, theirs, is_matrix in layer_tensors(arguments):
            if f"{theirs}_pre" in self.tensors:
                theirs = f"{theirs}_pre"
            (self._matrix if is_matrix else self._vector)(ours, theirs)

    def finished(self):
        """The dict of `TensorTable`; ValueError if a tensor of Marian's is in no layer."""
        unused = sorted(
            name
            for name in self.tensors.keys() - self._used
            if not name.startswith("special:") and not name.endswith("_QuantMultA")
        )
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise ValueError(
                f"{self.where} has the tensor {shown(unused[0])}{more}, for which a model of its "
                "settings has no layer."
            )
        return self._table


def layer_tensors(arguments):
    """The names of the tensors of a model's layers and of the norms around them.

    Args:
        arguments: dict. Arguments of `Transformer`.

    Yields:
        The name that `kformer.interop.slots` has, Marian's (of a norm without the ending `_pre` of
        norms before a sub-layer), and whether it is a matrix, which Marian stores transposed.
    """

    def linear(ours, theirs, end):
        yield f"{ours}.weight", f"{theirs}_W{end}", True
        yield f"{ours}.bias", f"{theirs}_b{end}", False

    def norm(ours, theirs):
        yield f"{ours}.weight", f"{theirs}_ln_scale", False
        yield f"{ours}.bias", f"{theirs}_ln_bias", False

    def attention(ours, theirs):
        for name in "qkvo":
            yield from linear(f"{ours}.{'out' if name == 'o' else name}_proj", theirs, name)
        yield from norm(f"{ours}_layer_norm", f"{theirs}_Wo")

    final = arguments.get("final_norm")
    for side in ("encoder", "decoder"):
        if arguments["normalize_embeddings"]:
            yield from norm(f"model.{side}.layernorm_embedding", f"{side}_emb")
        for index in range(arguments[f"num_{side}_layers"]):
            ours, theirs = f"model.{side}.layers.{index}", f"{side}_l{index + 1}"
            if side == "decoder" and arguments.get("decoder_autoregression") == "ssru":
                yield f"{ours}.ssru.cell.weight", f"{theirs}_rnn_W", True
                yield from linear(f"{ours}.ssru.forget", f"{theirs}_rnn", "f")
                end = "" if arguments["normalize_first"] else "_ffn"
                yield from norm(f"{ours}.ssru_layer_norm", f"{theirs}_rnn{end}")
            else:
                yield from attention(f"{ours}.self_attn", f"{theirs}_self")
            if side == "decoder":
                yield from attention(f"{ours}.encoder_attn", f"{theirs}_context")
            for number in (1, 2):
                yield from linear(f"{ours}.fc{number}", f"{theirs}_ffn", number)
            yield from norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn")
        if arguments["normalize_first"] if final is None else final:
            yield from norm(f"model.{side}.layer_norm", f"{side}_top")


# ---- tokens ----


def _tokenizer(folder, decoder, sizes, options):
    """The tokenizer with Marian's ids, and one more for padding and start."""
    paths = _vocabulary_paths(folder, decoder, options)
    endings = (".spm", ".model")
    are_models = [path.name.removesuffix(".gz").endswith(endings) for path in paths]
    if are_models[0] != are_models[1]:
        raise ValueError(
            f"One of {paths[0]} and {paths[1]} is a SentencePiece model and the other is not: give "
            "two files of one kind."
        )
    if are_models[0]:
        models = [_model_bytes(path) for path in paths]
        pieces = [dict(enumerate(model_pieces(load_sentencepiece(model)))) for model in models]
        if options.pretokenized:
            models = None
    else:
        tables = {path: _read_vocabulary(path) for path in set(paths)}
        pieces = [tables[path] for path in paths]
        names = {side: [f"{side}.spm", "spm.model"] for side in ("source", "target")}
        models = files.models_beside(options, [folder], names)
    rows = max(sizes) + 1
    vocabularies, gaps = [], []
    for path, tokens, size in zip(paths, pieces, sizes, strict=True):
        tokens = {i: token for i, token in tokens.items() if i < size}
        missing = [name for name in ("</s>", "<unk>") if name not in tokens.values()]
        if missing:
            raise ValueError(f"{path} has no {missing[0]!r}, which a vocabulary of Marian's has.")
        gaps.append([i for i in range(rows) if i not in tokens])
        vocabularies.append([tokens.get(i, f"<no piece {i}>") for i in range(rows)])
    ids = [[each.index(name) for name in ("</s>", "<unk>")] for each in vocabularies]
    if ids[0] != ids[1]:
        raise ValueError(f"{paths[0]} and {paths[1]} give '</s>' and '<unk>' different ids.")
    end, unknown = ids[0]
    special = {"pad": rows - 1, "unknown": unknown, "start": rows - 1, "end": end}
    tags = {token[2:-2]: i for i, token in enumerate(vocabularies[0]) if _TAG.fullmatch(token)}
    controls = [{rows - 1, end, *each, *tags.values()} for each in gaps]
    tokenizer = files.make_tokenizer(
        models,
        vocabularies,
        special,
        controls,
        prefixes={"source": [], "target": []},
        suffixes={"source": [end], "target": [end]},
        languages=tags or None,
        language_places=_TAG_PLACES if tags else None,
        language_tags=bool(tags),
    )
    if options.source_language is not None or (options.target_language and not tags):
        raise ValueError(
            f"The vocabularies in {folder.name} have no tags of languages: leave out "
            f"{named('source_language' if options.source_language else 'target_language')}."
        )
    return tokenizer.for_languages(target=options.target_language)


def _vocabulary_paths(folder, decoder, options):
    """The paths of both vocabularies: of the options, of decoder.yml, or beside the model."""
    paths, stated = [], decoder.get("vocabs")
    for index, side in enumerate(("source", "target")):
        path = getattr(options, f"{side}_vocabulary")
        if path is None and index and options.source_vocabulary is not None:
            path = options.source_vocabulary  # One serves both sides.
        if path is not None and not pathlib.Path(path).is_file():
            raise FileNotFoundError(f"There is no vocabulary {path}: check the path.")
        if path is None:
            if isinstance(stated, list) and stated:
                name = pathlib.PureWindowsPath(str(stated[-index])).name
                names = [name, f"{name}.gz"]
            else:
                names = _vocabularies_beside(folder, index)
            path = files.file_beside([folder], names)
        if path is None:
            raise FileNotFoundError(
                f"{folder} has no {side} vocabulary, or several by their names (such as vocab.yml "
                f"and vocab.spm): give it by {named(f'{side}_vocabulary')}."
            )
        paths.append(pathlib.Path(path))
    return paths


def _vocabularies_beside(folder, index):
    """The name of one side's vocabulary, in a list; an empty one if the names leave a choice."""
    prefixes = ("srcvocab", "vocab.src"), ("trgvocab", "vocab.trg")
    endings = (*_YAML_ENDINGS, ".spm")
    names = [
        path.name
        for path in sorted(folder.iterdir())
        if "vocab" in path.name and path.name.removesuffix(".gz").endswith(endings)
    ]
    of_side = [name for name in names if name.startswith(prefixes[index])]
    joint = [name for name in names if not name.startswith(prefixes[0] + prefixes[1])]
    return next((names for names in (of_side, joint) if len(names) == 1), [])


def _model_bytes(path):
    with decompressed(path) as plain:
        return files.read_model(plain)


def _read_vocabulary(path):
    """Dict of id to token, from a YAML or JSON file of token to id, or a file of lines."""
    if not path.name.endswith(_YAML_ENDINGS):
        return dict(enumerate(files.read_lines(path)))
    content = read_bytes(path, _MOST_YAML_BYTES, remedy="give Marian's file of tokens")
    if content.count(b"\n") > MOST_PIECES + 10:
        raise ValueError(f"{path} has more than {MOST_PIECES} tokens, which kformer does not read.")
    values = files.parse_yaml(content, path, typed=False)
    ids = {}
    for token, number in values.items():
        is_whole = isinstance(number, str) and re.fullmatch(r"[0-9]{1,9}", number)
        if not is_whole or ids.setdefault(int(number), token) != token:
            raise ValueError(
                f"{path} gives the token {shown(token)} the id {shown(number)}, which is no number "
                "or another token's."
            )
    return ids
