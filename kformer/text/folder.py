"""The folder of a tokenizer: `tokenizer.json`, SentencePiece models and lists of pieces.

    {
      "format_version": 1,
      "kind": "sentencepiece",
      "normalization": "nmt_nfkc",
      "special_ids": {"pad": 0, "unknown": 1, "start": 2, "end": 3},
      "source": {"model": "sentencepiece-1f0c93d2.model", "vocabulary": null,
                 "prefix": [], "suffix": [3], "control_ids": [0, 2, 3]},
      "target": {...}
    }

Only tokenizers of multilingual models have these keys (see `kformer.text.languages`):

      "languages": {"eng_Latn": 256047, "fra_Latn": 256057},
      "language_places": {"source": ["source_prefix"], "target": ["target_prefix"]},
      "language_tags": true

and only those with added words (see `kformer.text.added_words`) have

      "added_words": {"raw": ["covid"], "normalized": [], "lstrip": [], "rstrip": [],
                      "keeps_spaces": true},

A side whose texts OpenNMT's tokenizer splits has (see `kformer.text.word_splitter`)

      "splitter": {"settings": {"mode": "aggressive"}, "codes": "codes-5d41402a.bpe"}

`vocabulary` is the file of a JSON list of every piece by its id, if ids are not SentencePiece's
own. Both sides may have the same files. File names contain a part of the content's SHA-256. So a
folder is replaced by writing the new files beside the old ones and renaming `tokenizer.json` last:
it never describes files of another tokenizer."""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import re

from kformer.text.protobuf import message_fields
from kformer.utils import files
from kformer.utils.checks import shown
from kformer.utils.checksums import check_unedited, with_checksum

FORMAT_VERSION = 1
CONFIG_NAME = "tokenizer.json"
SIDES = ("source", "target")
SPECIAL_NAMES = ("pad", "unknown", "start", "end")
# Those of 256,000 pieces have some 5 MB.
MOST_MODEL_BYTES = 16 << 20
_MOST_PIECES = 500_000
# The ids before or after a text: a language and the end token, at most.
_MOST_SPECIAL = 100
_REMEDY = "save or copy the tokenizer again"
_CONTENT_NAME = re.compile(r"(?:sentencepiece|vocabulary|codes)-([0-9a-f]{8})\.(?:model|json|bpe)")
# What a value in `tokenizer.json` must be. bool is an int to Python, not to us.
_KINDS = {
    "true or false": lambda value: type(value) is bool,
    "true, false or 'known'": lambda value: type(value) is bool or value == "known",
    "a whole number": lambda value: type(value) is int,
    "a string": lambda value: type(value) is str,
    "a list": lambda value: type(value) is list,
    "an object": lambda value: type(value) is dict,
    "a list of whole numbers": lambda value: type(value) is list and {*map(type, value)} <= {int},
    "a list of strings": lambda value: type(value) is list and {*map(type, value)} <= {str},
}
_CONFIG = {"kind": "a string", "normalization": "a string", "special_ids": "an object"}
_CONFIG |= dict.fromkeys(SIDES, "an object")
_SIDE = {"model": "a string"}
_SIDE |= dict.fromkeys(("prefix", "suffix", "control_ids"), "a list of whole numbers")


def write_folder(folder, config, contents):
    """Writes a tokenizer's folder; a reader finds the old one or the new one, never a mixture.

    Args:
        folder: path; created if need be. What else is in it stays.
        config: dict for `tokenizer.json`.
        contents: dict of file name to bytes.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"No tokenizer at '{folder}': a file is there; choose another folder.")
    config = with_checksum({"format_version": FORMAT_VERSION, **config})
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    contents = {**contents, CONFIG_NAME: text.encode("utf-8")}
    if folder.exists():
        _replace_contents(folder, contents)
        return
    with files.new_folder(folder) as aside:
        for name, content in contents.items():
            (aside / name).write_bytes(content)


def _replace_contents(folder, contents):
    """Replaces the files of a tokenizer's folder; the last of the contents is `tokenizer.json`."""
    # Those of the former tokenizer, and what a power cut left.
    former = {name for name in os.listdir(folder) if _CONTENT_NAME.fullmatch(name)}
    for name, content in contents.items():
        with files.replacing(folder / name) as aside:
            aside.write_bytes(content)
    for name in former - set(contents):
        (folder / name).unlink(missing_ok=True)


def move_folder(source, target):
    """Moves a tokenizer's folder; a reader of `target` finds the old one or the new one.

    Args:
        source: path of the folder, which is removed last.
        target: path. A tokenizer's folder there is replaced.
    """
    source, target = pathlib.Path(source), pathlib.Path(target)
    if not target.exists():
        os.rename(source, target)
        return
    paths = sorted(source.iterdir(), key=lambda path: path.name == CONFIG_NAME)
    _replace_contents(target, {path.name: path.read_bytes() for path in paths if path.is_file()})
    files.remove_tree(source)


def read_folder(folder):
    """Reads and checks a tokenizer's folder.

    Returns:
        dict: the configuration; in each side `model` is bytes and `vocabulary` is None or a list of
            str.

    Raises:
        FileNotFoundError: if the folder or a file in it is missing.
        ValueError: if the format is newer than this release, or the content is not what it should
            be.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no tokenizer folder {str(folder)!r}; check the path.")
    path = _path_of(folder, CONFIG_NAME)
    config = files.read_json(path, remedy=_REMEDY)
    files.check_format_version(config, FORMAT_VERSION, path, "tokenizer")
    check_unedited(config, path, _REMEDY)
    _check(config, _CONFIG, path)
    if (kind := config["kind"]) != "sentencepiece":
        raise ValueError(f"{path} has the kind {kind!r}; only 'sentencepiece' is read.")
    _check(config["special_ids"], dict.fromkeys(SPECIAL_NAMES, "a whole number"), path)
    for side in SIDES:
        settings = config[side]
        _check(settings, _SIDE, path)
        if (count := max(len(settings["prefix"]), len(settings["suffix"]))) > _MOST_SPECIAL:
            raise ValueError(f"{path}: {side!r} has {count:,} ids around a text, not a few.")
        settings["model"] = model = _read_file(folder, settings["model"])
        num_fields = 0
        # What is not a SentencePiece model is refused as such later.
        with contextlib.suppress(IndexError, KeyError):
            fields = message_fields(model, 0, len(model))  # Most of them are pieces.
            num_fields = sum(1 for _ in itertools.islice(fields, 1 << 20))
        if num_fields > _MOST_PIECES:
            raise ValueError(f"{path}: the model of {side!r} has over {_MOST_PIECES:,} pieces.")
        if settings.setdefault("vocabulary") is not None:
            _check(settings, {"vocabulary": "a string"}, path)
            name = settings["vocabulary"]
            content = _read_file(folder, name, files.MOST_JSON_BYTES)
            settings["vocabulary"] = files.parse_json(content, folder / name, list, remedy=_REMEDY)
            _check(settings, {"vocabulary": "a list of strings"}, folder / name)
        if settings.get("splitter") is not None:
            _check(settings, {"splitter": "an object"}, path)
            splitter = settings["splitter"]
            _check(splitter, {"settings": "an object"}, path)
            if (name := splitter.get("codes")) is not None:
                _check(splitter, {"codes": "a string"}, path)
                name = _read_file(folder, name)
            settings["splitter"] = splitter["settings"], name
    # The keys of multilingual tokenizers; null means that a key is missing.
    config = {key: value for key, value in config.items() if value is not None}
    if "languages" in config:
        _check(config, {"languages": "an object", "language_places": "an object"}, path)
        _check(config["languages"], dict.fromkeys(config["languages"], "a whole number"), path)
        _check(config["language_places"], dict.fromkeys(config["language_places"], "a list"), path)
    if "added_words" in config:
        _check(config, {"added_words": "an object"}, path)
        lists = dict.fromkeys(("raw", "normalized", "lstrip", "rstrip"), "a list of strings")
        _check(config["added_words"], {**lists, "keeps_spaces": "true or false"}, path)
    if "language_tags" in config:
        _check(config, {"language_tags": "true, false or 'known'"}, path)
    return config


def _path_of(folder, name):
    """Returns the path of a file that `tokenizer.json` names, or of that file itself."""
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError(
            f"{folder / CONFIG_NAME} names the file {name!r}; only plain names of files in the "
            "folder may stand there."
        )
    path = files.inside(folder, name)
    if not path.is_file():
        raise FileNotFoundError(f"The tokenizer folder {folder} has no file {name!r}; {_REMEDY}.")
    return path


def _read_file(folder, name, most=MOST_MODEL_BYTES):
    """Returns the content of a file. If its name has a digest, it must be that of the content."""
    path = _path_of(folder, name)
    content, digest = files.read_bytes(path, most, remedy=_REMEDY), _CONTENT_NAME.fullmatch(name)
    if digest and not hashlib.sha256(content).hexdigest().startswith(digest[1]):
        raise ValueError(f"{path} does not match the digest in its name: {_REMEDY}.")
    return content


def _check(config, kinds, where):
    """Checks the values of some keys of an object."""
    for key, kind in kinds.items():
        if not _KINDS[kind](config.get(key)):
            value = shown(config.get(key))
            raise ValueError(f"{where}: {key!r} must be {kind}, not {value}; {_REMEDY}.")
