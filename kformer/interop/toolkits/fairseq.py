"""Reads the translation models of fairseq: a `.pt` file with the weights and the options of the
training, and the dictionaries beside it. It is read as data, and without PyTorch.

fairseq's positions are tensor2tensor's and count from 2 (learned ones too: the first two rows of a
table are no positions), its norms have an epsilon of 1e-5, and its decoder begins with the end
token.
"""

import pathlib
import re

from kformer.interop.architectures import UNUSED_POSITIONS
from kformer.interop.limits import MOST_LAYERS, MOST_PIECES
from kformer.interop.toolkits.files import file_beside, make_tokenizer, models_beside, read_lines
from kformer.interop.toolkits.model import TensorTable, ToolkitModel
from kformer.interop.toolkits.torch_files import StoredTensor, read_torch
from kformer.text.languages import some_languages
from kformer.utils.checks import check_choice, check_number, check_whole, shown
from kformer_options.names import named

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_IDS = {"pad": 1, "unknown": 3, "start": 2, "end": 2}
_OVERWRITE = " #fairseq:overwrite"
_CHECKPOINTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
_MODELS = {
    "source": ("source.model", "source.spm", "src.model", "sentencepiece.bpe.model", "spm.model"),
    "target": ("target.model", "target.spm", "tgt.model", "sentencepiece.bpe.model", "spm.model"),
}
_ACTIVATIONS = {
    **{"relu": "relu", "gelu": "gelu", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh"},
    "swish": "silu",
}
# Architectures whose tensors have the names of a translation model's, but which compute otherwise.
_OTHER_ARCHITECTURES = re.compile(
    r"(^|_)(lm|unidirectional|monotonic|nonautoregressive|levenshtein|insertion|nacrf|iterative|"
    r"cmlm|waitk)(_|$)"
)
_OTHER_TASKS = (
    *("translation_from_pretrained_bart", "multilingual_translation", "translation_lev"),
    *("denoising", "multilingual_denoising", "translation_moe"),
)
# Options that change what a model computes, but not its tensors, with the values that kformer has.
_REQUIRED = {
    "no_cross_attention": False,
    "cross_self_attention": False,
    "adaptive_softmax_cutoff": None,
    "adaptive_input": False,
    "lang_tok_replacing_bos_eos": False,
    "enable_lang_ids": False,
    "encoder_embed_linear": False,
    "char_inputs": False,
}
_RATES = ("dropout", "attention_dropout", "activation_dropout")
_SHARED = "model.shared.weight"
_TABLES = {side: f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
_POSITIONS = "model.{}.embed_positions.weight"
_OUTPUTS = ("decoder.output_projection.weight", "decoder.embed_out")
# Old names of the norms, by side and number.
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# `fairseq-generate`: five beams, the mean log-probability, at least one token.
_SEARCH = {
    **{"mode": "huggingface", "beam_size": 5, "length_penalty": 1.0, "early_stopping": True},
    **{"min_length": 1, "max_length": 200, "length_ratio": 200.0, "forbidden_ids": (_IDS["pad"],)},
}


def is_mine(path):
    """Whether a path is a checkpoint of fairseq's, or a folder with one."""
    try:
        return any(_is_checkpoint(file) for file in _candidates(path))
    except (OSError, ValueError):
        return False


def read(path, options):
    """Reads a model of fairseq's.

    Args:
        path: `pathlib.Path` of a `.pt` file, or of a folder with one.
        options: `ToolkitOptions`.

    Returns:
        `ToolkitModel`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or kformer has no such model.
    """
    file = _file(path)
    content = read_torch(file)
    if not _has_parts(content):
        raise ValueError(f"{file} has no model and no options of fairseq's.")
    settings = _settings(content, file)
    tensors = _tensors(content["model"], file)
    arguments = _arguments(tensors, settings, options, file)
    tokenizer = _tokenizer(file, settings, arguments, options)
    arguments |= {"pad_id": _IDS["pad"], "start_id": _IDS["start"], "end_id": _IDS["end"]}
    table = TensorTable(tensors, file.stat().st_size)
    search = {**_SEARCH, "max_length": min(_SEARCH["max_length"], arguments["max_length"] - 2)}
    return ToolkitModel("fairseq", arguments, table, tokenizer, search)


# ---- the file ----


def _candidates(path):
    if not path.is_dir():
        return [path] if path.suffix == ".pt" else []
    if best := file_beside([path], _CHECKPOINTS):
        return [best]
    return sorted(file for file in path.glob("*.pt") if file_beside([path], [file.name]))


def _file(path):
    files = [file for file in _candidates(path) if not path.is_dir() or _is_checkpoint(file)]
    if len(files) > 1:
        raise ValueError(
            f"{path} has {len(files)} checkpoints, {files[0].name} and {files[1].name} among them: "
            "give the file of one."
        )
    if not files:
        raise FileNotFoundError(f"{path} has no checkpoint of fairseq's (.pt).")
    return files[0]


def _is_checkpoint(path):
    return _has_parts(read_torch(path))


def _has_parts(content):
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        return False
    configuration = content.get("cfg")
    models = [content.get("args")]
    models += [configuration.get("model")] if isinstance(configuration, dict) else []
    return any(isinstance(each, dict) and ("arch" in each or "_name" in each) for each in models)


def _settings(content, file):
    """The options of model and task, dict, checked."""
    settings = content.get("args")
    if not isinstance(settings, dict):
        task = content["cfg"].get("task")
        settings = {**(task if isinstance(task, dict) else {}), **content["cfg"]["model"]}
        if isinstance(task, dict):
            settings["task"] = task.get("_name") or task.get("task")
    arch, task = (str(settings.get(name) or "") for name in ("arch", "task"))
    for name, value, is_other in (
        ("arch", arch, _OTHER_ARCHITECTURES.search(arch)),
        ("task", task, task in _OTHER_TASKS),
    ):
        if is_other:
            raise ValueError(
                f"{file} has the {name} {shown(value)}, which kformer does not read from fairseq's "
                "files; it reads those of translation."
            )
    for name, value in _REQUIRED.items():
        if (settings.get(name) or None) != (value or None):
            raise ValueError(
                f"{file} has {name}={shown(settings[name])}, which kformer's models do not have."
            )
    return settings


# ---- weights ----


def _tensors(model, file):
    """Our tensors, dict of name to pair of shape and function that reads it."""
    tensors = {}

    def add(name, tensor, rows=slice(None)):
        shape = tensor.shape
        if rows != slice(None):
            shape = (rows.stop - rows.start, *shape[1:])
        tensors[name] = shape, lambda: tensor.read()[rows]

    for name, tensor in model.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise ValueError(
                f"{file} has the value {shown(name)} among its weights: copy it again."
            )
        if name.endswith((".version", "._float_tensor")):
            continue
        if name.startswith("models."):
            raise ValueError(
                f"{file} has a model of its own for each pair of languages, which kformer does not "
                "read."
            )
        side, _, end = name.partition(".")
        # Names that fairseq had until 2018 and 2019.
        if match := re.fullmatch(r"(layers\.[0-9]+)\.layer_norms\.([0-2])\.(\w+)", end):
            norms = _NORMS.get(side, ())
            if int(match[2]) < len(norms):
                name = f"{side}.{match[1]}.{norms[int(match[2])]}.{match[3]}"
        if match := re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name):
            size = (*tensor.shape, 0)[0] // 3
            for index, projection in enumerate(("q_proj", "k_proj", "v_proj")):
                rows = slice(index * size, (index + 1) * size)
                add(f"model.{match[1]}.{projection}.{match[2]}", tensor, rows)
        elif name in _OUTPUTS:
            add("lm_head.weight", tensor)
        else:
            add(f"model.{name}", tensor)
    return tensors


def _arguments(tensors, settings, options, file):
    """The arguments of `Transformer`, but for the special ids. A table that is shared or cut is
    changed among `tensors`.
    """
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    inner = {side: f"model.{side}.layers.0.fc1.weight" for side in _TABLES}
    for name in (*_TABLES.values(), *inner.values()):
        if len(shapes.get(name, ())) != 2:
            raise ValueError(
                f"{file} lacks the table {name}, so it is no Transformer of fairseq's."
            )
    hidden, other = (shapes[name][1] for name in _TABLES.values())
    if hidden != other:
        raise ValueError(
            f"{file} has an encoder of the width {hidden} and a decoder of {other}; kformer's two "
            "sides have one width."
        )
    flags = {
        name: [bool(settings.get(f"{side}_{name}")) for side in _TABLES]
        for name in ("normalize_before", "learned_pos")
    }
    of_encoder, of_decoder = flags["learned_pos"]
    if of_encoder != of_decoder:
        raise ValueError(
            f"{file} has encoder_learned_pos={of_encoder} and decoder_learned_pos={of_decoder}; "
            "kformer's two sides have one kind of positions."
        )
    is_first = flags["normalize_before"]
    has_final = [f"model.{side}.layer_norm.weight" in shapes for side in _TABLES]
    if has_final != is_first and has_final[0] != has_final[1]:
        raise ValueError(f"{file} has a norm after the layers of one side, and kformer of both.")
    is_shared = bool(settings.get("share_all_embeddings"))
    is_tied = is_shared or bool(settings.get("share_decoder_input_output_embed"))
    normalizes = bool(settings.get("layernorm_embedding"))
    # Our shared table has one table of positions, and fairseq's has one on each side.
    is_shared = is_shared and (normalizes or not flags["learned_pos"][0])
    if is_shared:
        tensors[_SHARED] = tensors[_TABLES["encoder"]]
    activation = settings.get("activation_fn") or "relu"
    check_choice(f"activation_fn of {file}", activation, _ACTIVATIONS)
    heads = [
        check_whole(f"{side}_attention_heads of {file}", settings.get(f"{side}_attention_heads"))
        if options.num_heads is None
        else options.num_heads
        for side in _TABLES
    ]
    return {
        "vocabulary_size": shapes[_TABLES["encoder"]][0],
        "target_vocabulary_size": shapes[_TABLES["decoder"]][0],
        **{f"num_{side}_layers": _count(shapes, side, file) for side in _TABLES},
        "hidden_dim": hidden,
        "intermediate_dim": shapes[inner["encoder"]][0],
        "decoder_intermediate_dim": shapes[inner["decoder"]][0],
        "num_heads": heads[0],
        "decoder_num_heads": heads[1],
        "activation": _ACTIVATIONS[activation],
        "normalize_first": is_first[0],
        "decoder_normalize_first": is_first[1],
        "final_norm": None if has_final == is_first else has_final[0],
        "normalize_embeddings": normalizes,
        "scale_embeddings": not settings.get("no_scale_embedding"),
        "share_embeddings": is_shared,
        "share_output": is_tied,
        **_positions(tensors, settings, flags["learned_pos"][0], file),
        **{
            name: float(check_number(f"{name} of {file}", settings.get(name) or 0.0, at_least=0))
            for name in _RATES
        },
    }


def _positions(tensors, settings, is_learned, file):
    """The arguments of positions. Tables of two lengths are cut to the shorter one."""
    lengths = [
        check_whole(f"max_{side}_positions of {file}", settings.get(f"max_{side}_positions", 1024))
        for side in ("source", "target")
    ]
    if settings.get("no_token_positional_embeddings"):
        return {"position_encoding": None, "max_length": min(lengths)}
    if not is_learned:
        offset = {"position_offset": UNUSED_POSITIONS, "max_length": min(lengths)}
        return {"position_encoding": "sinusoidal_fairseq", **offset}
    names = [_POSITIONS.format(side) for side in _TABLES]
    if missing := [name for name in names if len(tensors.get(name, [()])[0]) != 2]:
        raise ValueError(f"{file} lacks the table {missing[0]!r} of its learned positions.")
    rows = min(tensors[name][0][0] for name in names)
    for name in names:
        shape, read = tensors[name]
        tensors[name] = (rows, *shape[1:]), lambda read=read: read()[:rows]
    return {"position_encoding": "learned", "max_length": rows - UNUSED_POSITIONS}


def _count(shapes, side, file):
    prefix = f"model.{side}.layers."
    numbers = {name[len(prefix) :].partition(".")[0] for name in shapes if name.startswith(prefix)}
    if len(numbers) > MOST_LAYERS or numbers != set(map(str, range(len(numbers)))):
        raise ValueError(f"{file} has {len(numbers)} layers in its {side}, or lacks some of them.")
    return len(numbers)


# ---- tokens ----


def _tokenizer(file, settings, arguments, options):
    folders = [file.parent]
    languages = _languages(settings, folders, file)
    added = [_language_token(settings, code) for code in languages]
    if added and settings.get("lang_tok_style") == "mbart":
        added.append("<mask>")
    vocabularies, names = [], ("vocabulary_size", "target_vocabulary_size")
    for side, name in zip(("source", "target"), names, strict=True):
        path = _dictionary_path(side, settings, languages, folders, options)
        tokens = [*_SPECIAL, *_dictionary(path)]
        tokens += [token for token in added if token not in tokens]
        if len(tokens) != arguments[name]:
            raise ValueError(
                f"{path} gives {len(tokens)} tokens with fairseq's four and {len(languages)} "
                f"languages, but {file} has {arguments[name]} rows for them: give the dictionary "
                f"of this model by {named(f'{side}_vocabulary')}."
            )
        vocabularies.append(tokens)
    ids = {code: vocabularies[0].index(_language_token(settings, code)) for code in languages}
    controls = (*_IDS.values(), 0, *ids.values())
    tokenizer = make_tokenizer(
        models_beside(options, folders, _MODELS),
        vocabularies,
        _IDS,
        [[i for i in controls if i != _IDS["unknown"]]] * 2,
        prefixes={"source": (), "target": ()},
        suffixes={"source": (_IDS["end"],), "target": (_IDS["end"],)},
        languages=ids or None,
        language_places=_language_places(settings, file) if ids else None,
    )
    return _for_languages(tokenizer, options, settings, file)


def _dictionary_path(side, settings, languages, folders, options):
    path = getattr(options, f"{side}_vocabulary") or options.source_vocabulary
    codes = [settings.get(f"{side}_lang"), *languages]
    names = [f"dict.{code}.txt" for code in codes if isinstance(code, str) and code]
    for name in ("fixed_dictionary", f"{side}_dict"):
        if isinstance(settings.get(name), str):  # Only its name: a file must not lead elsewhere.
            names.insert(0, pathlib.PurePath(settings[name]).name)
    path = path or file_beside(folders, [*names, "dict.txt"])
    if path is None:
        raise FileNotFoundError(
            f"{folders[0]} has no dictionary of the {side} ({[*names, 'dict.txt'][0]}): give "
            f"fairseq's file by {named(f'{side}_vocabulary')}."
        )
    return path


def _dictionary(path):
    """The tokens of a dictionary, whose lines are a token and its count. A token with the mark
    `#fairseq:overwrite` replaces an earlier one, whose row is then no token's.
    """
    tokens, seen = [], dict.fromkeys(_SPECIAL)
    for number, line in enumerate(read_lines(path), 1):
        token, _, count = line.removesuffix(_OVERWRITE).rpartition(" ")
        if not token or not re.fullmatch(r"-?[0-9]{1,18}", count):
            raise ValueError(
                f"Line {number} of {path} is {shown(line)}, where a token and its count should be: "
                "give fairseq's dictionary."
            )
        if token in seen:
            if not line.endswith(_OVERWRITE) or seen[token] is None:
                raise ValueError(f"{path} has the token {shown(token)} twice (line {number}).")
            tokens[seen[token]] = f"<no piece {seen[token] + len(_SPECIAL)}>"
        seen[token] = len(tokens)
        tokens.append(token)
    return tokens


def _languages(settings, folders, file):
    """The codes of the languages whose tokens are in no dictionary, in the order of their ids."""
    if settings.get("task") != "translation_multi_simple_epoch":
        return []
    languages, pairs = settings.get("langs"), settings.get("lang_pairs")
    if languages is None and isinstance(settings.get("lang_dict"), str):
        path = file_beside(folders, [pathlib.PurePath(settings["lang_dict"]).name])
        languages = None if path is None else read_lines(path)
    if languages is None and pairs is not None:
        pairs = pairs.split(",") if isinstance(pairs, str) else pairs
        languages = sorted({code for pair in pairs for code in str(pair).split("-")})
    languages = languages.split(",") if isinstance(languages, str) else languages
    is_list = isinstance(languages, list) and 0 < len(languages) <= MOST_PIECES
    if not is_list or not all(isinstance(code, str) and code for code in languages):
        raise ValueError(f"{file} has no list of its languages (langs).")
    return [code.strip() for code in languages]


def _language_token(settings, code):
    return f"[{code}]" if settings.get("lang_tok_style") == "mbart" else f"__{code}__"


def _language_places(settings, file):
    """Where the languages of source and target go, dict as `Tokenizer` takes it."""
    table = settings.get("langtoks")
    specification = table.get("main") if isinstance(table, dict) else None
    if specification is None:
        target = "tgt" if settings.get("decoder_langtok") else None
        specification = settings.get("encoder_langtok") or None, target
    sides = {"src": "source", "tgt": "target"}
    places = {"source": [], "target": []}
    if not isinstance(specification, list | tuple) or len(specification) != 2:
        raise ValueError(f"{file} has langtoks={shown(table)}, which kformer does not follow.")
    for place, role in zip(("source_prefix", "target_prefix"), specification, strict=True):
        if role is not None:
            places[sides[check_choice(f"A langtok of {file}", role, sides)]].append(place)
    return places


def _for_languages(tokenizer, options, settings, file):
    """The tokenizer for the chosen languages; a model of several needs a choice."""
    codes = {"source": options.source_language, "target": options.target_language}
    if not tokenizer.languages:
        for side, code in codes.items():
            if code not in (None, settings.get(f"{side}_lang")):
                raise ValueError(
                    f"{file} has no choice of languages: leave out {named(f'{side}_language')}."
                )
        return tokenizer
    places = _language_places(settings, file)
    for side, code in codes.items():
        code = code or settings.get(f"{side}_lang")
        if places[side] and code is None:
            raise ValueError(
                f"{file} needs a {side} language: give {named(f'{side}_language')}, one of "
                f"{some_languages(tokenizer.languages)}."
            )
        if places[side]:
            tokenizer = tokenizer.for_languages(**{side: code})
        elif code is not None and code not in tokenizer.languages:
            raise ValueError(
                f"{file} has no {side} language {shown(code)}; it has "
                f"{some_languages(tokenizer.languages)}."
            )
    return tokenizer
