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

from kformer.text.unigram_scores import message_fields
from kformer.utils import files
from kformer.utils.checksums import is_damaged, with_checksum, without_checksum

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
_CONTENT_NAME = re.compile(r"(sentencepiece-[0-9a-f]{8}\.model|vocabulary-[0-9a-f]{8}\.json)")


def write_folder(folder, config, contents):
    """Writes a tokenizer's folder; a reader finds the old one or the new one, never a mixture.

    Args:
        folder: path; created if need be. What else is in it stays.
        config: dict for `tokenizer.json`.
        contents: dict of file name to bytes.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"Cannot save a tokenizer at {str(folder)!r}: a file is there; choose another folder."
        )
    config = with_checksum({"format_version": FORMAT_VERSION, **config})
    contents = {**contents, CONFIG_NAME: _config_text(config)}
    if folder.exists():
        _replace_contents(folder, contents)
        return
    with files.new_folder(folder) as aside:
        for name, content in contents.items():
            (aside / name).write_bytes(content)


def _replace_contents(folder, contents):
    """Replaces the files of a tokenizer's folder; the last of the contents is `tokenizer.json`."""
    # A power cut may leave files that no `tokenizer.json` names any more.
    remains = {name for name in os.listdir(folder) if _CONTENT_NAME.fullmatch(name)}
    former = _file_names(folder) | remains
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
    names = sorted(_file_names(source) | {CONFIG_NAME}, key=lambda name: name == CONFIG_NAME)
    _replace_contents(target, {name: (source / name).read_bytes() for name in names})
    files.remove_tree(source)


def _config_text(config):
    return (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def fingerprint_parts(folder):
    """The files of a saved tokenizer by which it is recognized: (name, bytes) of each.

    The bytes of `tokenizer.json` are those that version 0.1 wrote, without the checksum: what was
    prepared with the tokenizer by then is still found.
    """
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name == CONFIG_NAME:
                with contextlib.suppress(ValueError, AttributeError):  # another tokenizer's file
                    content = _config_text(without_checksum(json.loads(content)))
            yield path.relative_to(folder).as_posix(), content


def content_name(stem, content, suffix):
    """A file name that contains a digest of the content."""
    return f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"


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
    where = repr(str(folder / CONFIG_NAME))
    config = files.read_json(_path_of(folder, CONFIG_NAME), remedy=_REMEDY)
    version = _field(config, "format_version", int, where)
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{where} has format_version {version}, newer than the {FORMAT_VERSION} that this "
            "kformer reads; upgrade kformer."
        )
    if is_damaged(config):
        raise ValueError(
            f"{where} is damaged or was edited, since its checksum is wrong: {_REMEDY}, or "
            "remove its key 'checksum' to keep the edit."
        )
    kind = _field(config, "kind", str, where)
    if kind != "sentencepiece":
        raise ValueError(
            f"{where} has the kind {kind!r}; this kformer reads 'sentencepiece' alone."
        )
    _field(config, "normalization", str, where)
    _fields(config, "special_ids", int, where, SPECIAL_NAMES)
    for side in SIDES:
        settings = _field(config, side, dict, where)
        for name in ("prefix", "suffix", "control_ids"):
            ids = _field(settings, name, list, where)
            if not all(type(token_id) is int for token_id in ids):
                raise ValueError(
                    f"{where}: {name!r} of {side!r} must be a list of whole numbers, not "
                    f"{str(ids)[:200]}."
                )
            if name != "control_ids" and len(ids) > _MOST_SPECIAL:
                raise ValueError(
                    f"{where}: {name!r} of {side!r} has {len(ids):,} ids, more than the "
                    f"{_MOST_SPECIAL} that a model may read around a text."
                )
        model = _read_file(folder, _field(settings, "model", str, where))
        settings["model"], num_fields = model, 0
        # What is not a SentencePiece model is refused as such later.
        with contextlib.suppress(IndexError, KeyError):
            fields = message_fields(model, 0, len(model))  # Most of them are pieces.
            num_fields = sum(1 for _ in itertools.islice(fields, 1 << 20))
        if num_fields > _MOST_PIECES:
            raise ValueError(
                f"{where}: the model of {side!r} has more than {_MOST_PIECES:,} pieces, more "
                "than any tokenizer needs."
            )
        if settings.setdefault("vocabulary") is not None:
            name = _field(settings, "vocabulary", str, where)
            _read_file(folder, name, files.MOST_JSON_BYTES)
            pieces = files.read_json(folder / name, list, remedy=_REMEDY)
            if not all(isinstance(piece, str) for piece in pieces):
                raise ValueError(
                    f"{str(folder / name)!r} must hold a JSON list of strings; save the tokenizer "
                    "again."
                )
            settings["vocabulary"] = pieces
    # The keys of multilingual tokenizers; null means that a key is missing.
    for key in ("languages", "language_places", "language_tags"):
        if config.get(key) is None:
            config.pop(key, None)
    if "languages" in config:
        _fields(config, "languages", int, where)
        _fields(config, "language_places", list, where)
    if not isinstance(config.get("language_tags", False), bool):
        raise ValueError(
            f"{where}: 'language_tags' must be true or false, not {config['language_tags']!r}."
        )
    return config


def _file_names(folder):
    """Returns the file names of the tokenizer that is in the folder now, if it can be read."""
    names = set()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        config = files.read_json(folder / CONFIG_NAME)
        for side in SIDES:
            names |= {config[side]["model"], config[side].get("vocabulary")}
    return {name for name in names if isinstance(name, str) and _is_plain(name)}


def _is_plain(name):
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _path_of(folder, name):
    """Returns the path of a file that `tokenizer.json` names, or of that file itself."""
    if not _is_plain(name):
        raise ValueError(
            f"{str(folder / CONFIG_NAME)!r} names the file {name!r}; only plain names of files in "
            "the folder may stand there."
        )
    path, is_inside = folder / name, False
    with contextlib.suppress(OSError, RuntimeError):  # A loop of links.
        is_inside = path.resolve().is_relative_to(folder.resolve())
    if not is_inside:
        raise ValueError(
            f"{str(path)!r} is a link that leads out of the folder; put the file itself there."
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"The tokenizer folder {str(folder)!r} has no file {name!r}; save or copy it again."
        )
    return path


def _read_file(folder, name, most=MOST_MODEL_BYTES):
    """Returns the content of a file. If its name has a digest, it must be that of the content."""
    content = files.read_bytes(_path_of(folder, name), most, remedy=_REMEDY)
    digest = re.search(r"-([0-9a-f]{8})\.(?:model|json)\Z", name)
    if digest and not hashlib.sha256(content).hexdigest().startswith(digest[1]):
        raise ValueError(
            f"{str(folder / name)!r} is damaged: its content does not match the digest in its "
            f"name; {_REMEDY}."
        )
    return content


def _fields(config, key, kind, where, names=None):
    """Checks that a field is an object whose values, of some names or all, are of a kind."""
    fields = _field(config, key, dict, where)
    for name in fields if names is None else names:
        _field(fields, name, kind, where)


def _field(mapping, key, kind, where):
    value = mapping.get(key)
    # bool is an int to Python, not to us.
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = {int: "a whole number", str: "a string", list: "a list", dict: "an object"}
        raise ValueError(
            f"{where}: {key!r} must be {kinds[kind]}, not {value!r}; save the tokenizer again."
        )
    return value
