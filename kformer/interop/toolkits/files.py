"""Reads the files beside a toolkit's model (lists of tokens, SentencePiece models, YAML), and makes
its tokenizer of them."""

import os
import pathlib
import re

from kformer.interop.limits import MOST_PIECES, read_sentencepiece
from kformer.interop.sentencepiece_proto import (
    CONTROL,
    UNKNOWN,
    sentencepiece_model,
)
from kformer.text import Tokenizer
from kformer.text.normalization import SPACE_SIGN
from kformer.text.unigram_scores import IMPORT_STEPS, quantize_scores
from kformer.text.vocabulary import load_sentencepiece
from kformer.utils.checks import shown
from kformer.utils.files import read_bytes
from kformer_options.installed import check_extra, is_installed
from kformer_options.names import named

_MOST_LIST_BYTES = 64 << 20
_MOST_YAML_BYTES = 1 << 20
_WORD_MODEL = 3
# How a file of subword-nmt's codes begins, and what pyonmttok is told to follow them.
_CODES_MARK = b"#version"
_OF_CODES = {"mode": "space", "joiner": "@@", "joiner_annotate": True, "bpe_model_path": ""}
# Of BPE's merges, as subword-nmt and OpenNMT's tokenizer write them.
_CODES = re.compile(r".*codes.*|code|bpe\.[a-z]+|.*\.bpe")


def file_beside(folders, names):
    """The first of several files that exists, `pathlib.Path`, or `None`. Links that lead out of
    their folder are left out.

    Args:
        folders: sequence of `pathlib.Path`.
        names: sequence of str. Names of files, without folders.
    """
    for folder in folders:
        for name in names:
            path = folder / name
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                return path
    return None


def read_lines(path):
    """The lines of a list of tokens, list of str.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no list of tokens.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no list of tokens {path}: check the path.")
    content = read_bytes(path, _MOST_LIST_BYTES, remedy="give the toolkit's list of tokens")
    if content.count(b"\n") > MOST_PIECES:
        raise ValueError(
            f"{path} has more lines than any published vocabulary has tokens: kformer reads up to "
            f"{MOST_PIECES}."
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: give the toolkit's list of tokens.") from None
    lines = text.split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


def read_model(path):
    """The bytes of a SentencePiece model, whose scores are rounded so that their sums are exact.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no SentencePiece model.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no SentencePiece model {path}: check the path.")
    content = read_sentencepiece(path)
    try:
        load_sentencepiece(content)
    except ValueError:
        raise ValueError(
            f"{path} is not a SentencePiece model: give the file itself, not a pointer to it."
        ) from None
    return quantize_scores(content, IMPORT_STEPS)


def read_yaml(path):
    """The mapping in a YAML file of settings, dict; arguments and errors as of `parse_yaml`."""
    content = read_bytes(path, _MOST_YAML_BYTES, remedy="give the toolkit's own settings")
    return parse_yaml(content, path)


def parse_yaml(content, path, *, typed=True):
    """The mapping in YAML, dict. Nothing in it can run code. Aliases are refused, since a small
    file with them may become a huge object.

    Args:
        content: bytes or str.
        path: path of its file, for messages.
        typed: bool, default `True`. Whether words become numbers and truth values; else all values
            are strings, lists and mappings.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: it is no such mapping.
    """
    check_extra(f"Reading {path}", "interop", ("yaml",))
    import yaml

    name = "SafeLoader" if typed else "BaseLoader"
    loader = getattr(yaml, f"C{name}", getattr(yaml, name))
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, Loader=loader)):
            raise ValueError("it has aliases")
        values = yaml.load(content, Loader=loader)  # noqa: S506, both loaders run nothing
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        reason = shown(" ".join(str(error).split()))
        raise ValueError(f"{path} cannot be read as YAML ({reason}): copy it again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no settings or tokens by name: give the toolkit's file.")
    return values


def make_tokenizer(models, vocabularies, special_ids, control_ids=((), ()), **arguments):
    """The tokenizer of a model whose vocabularies are lists of tokens.

    Args:
        models: what splits the texts, as `models_beside` returns it.
        vocabularies: pair of list of str, source and target: every token by its id.
        special_ids: dict. The ids of "pad", "unknown", "start" and "end".
        control_ids: pair of sequences of int. For each side the ids that never come from a text.
        **arguments: `prefixes` and `suffixes`, dicts of "source" and "target" to ids, and further
            arguments of `Tokenizer`.

    Returns:
        `Tokenizer`.

    Raises:
        ValueError: a token occurs twice, or an id is outside of a vocabulary.
    """
    normalization, controls = "model", [set(ids) for ids in control_ids]
    if models is None or isinstance(models[0], tuple):
        arguments["splitters"] = models or (None, None)
        normalization, models = "tokens", [_word_model()] * 2
    return Tokenizer(
        list(models),
        [list(tokens) for tokens in vocabularies],
        [sorted(ids) for ids in controls],
        normalization=normalization,
        special_ids=special_ids,
        **arguments,
    )


def _word_model():
    """A SentencePiece model without words: texts of tokens are split without it."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    return sentencepiece_model(
        pieces,
        model_type=_WORD_MODEL,
        charsmap=None,
        adds_space=True,
        joins_spaces=True,
        byte_fallback=False,
        unknown=SPACE_SIGN + "<unk>",
    )


def models_beside(options, folders, names, splitting=None):
    """What splits the texts of source and target: SentencePiece, or OpenNMT's tokenizer.

    Args:
        options: `ToolkitOptions`.
        folders: sequence of `pathlib.Path`, where the files may be.
        names: dict of "source" and "target" to the names that the files may have.
        splitting: dict or `None`, default `None`. The arguments of OpenNMT's tokenizer for both
            sides, if it split the texts.

    Returns:
        `None` with `options.pretokenized`; else a pair of bytes, SentencePiece models, or a pair of
        tuples, the arguments of `WordSplitter`.

    Raises:
        FileNotFoundError: there is no model and no option that names one.
        ImportError: pyonmttok is needed and not installed.
        ValueError: a file is no SentencePiece model, or other codes are there in its place.
    """
    if options.pretokenized:
        return None
    if splitting is None and options.source_model is not None:
        with open(options.source_model, "rb") as file:
            if file.read(len(_CODES_MARK)) == _CODES_MARK:
                splitting = dict.fromkeys(("source", "target"), _OF_CODES)
    if splitting is not None:
        return tuple(_splitter(options, folders, side, splitting[side]) for side in splitting)
    paths = {
        "source": options.source_model or file_beside(folders, names["source"]),
        "target": options.target_model or file_beside(folders, names["target"]),
    }
    # One model may serve both sides.
    paths = {side: path or options.source_model for side, path in paths.items()}
    if missing := [side for side, path in paths.items() if path is None]:
        near = [name for folder in folders[:2] for name in sorted(os.listdir(folder))]
        if codes := next(filter(_CODES.fullmatch, near), None):
            raise ValueError(
                f"{folders[0]} has codes of subword-nmt ({codes}), which come after another "
                f"tokenizer, such as Moses. Give them by {named('source_model')}, and texts that "
                f"this tokenizer has split; or import with {named('pretokenized')}, and give texts "
                "that are split by the codes, too, as `subword-nmt apply-bpe` does."
            )
        side = missing[0]
        raise FileNotFoundError(
            f"{folders[0]} has no SentencePiece model of the {side} ({names[side][0]}), which "
            f"splits its texts: give it by {named(f'{side}_model')}, or {named('pretokenized')} "
            "for texts that are tokens with spaces between them."
        )
    return tuple(read_model(paths[side]) for side in ("source", "target"))


def _splitter(options, folders, side, settings):
    """The arguments of the `WordSplitter` of one side."""
    if not is_installed("pyonmttok"):
        raise ImportError(
            "OpenNMT's tokenizer split the texts of this model: run `pip install "
            f'"kformer[opennmt]"`, or import with {named("pretokenized")} and give texts that it '
            "has split."
        )
    settings = dict(settings)
    settings.pop("bpe_dropout", None)  # Of the training.
    name, codes = settings.pop("bpe_model_path", None), None
    if name is not None:
        name = pathlib.PurePath(str(name)).name
        path = getattr(options, f"{side}_model") or options.source_model
        path = path or file_beside(folders, [name])
        if path is None:
            raise FileNotFoundError(
                f"{folders[0]} has no file {name}, the codes that split the texts of the {side}: "
                f"give it by {named(f'{side}_model')}."
            )
        codes = read_bytes(path, _MOST_LIST_BYTES, remedy="give the codes of a BPE model")
    return settings, codes
