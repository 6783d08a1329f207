"""The description of several corpora: where they lie, how often a training sees them, what is
cleaned."""

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Sequence

from kformer.data.corpora import readers, rules
from kformer.data.corpora.rules import LEVELS, RULES
from kformer.utils.checks import check_choice, check_number, shown
from kformer.utils.compressed import check_compression
from kformer.utils.files import read_bytes
from kformer_options.field import Path, documented, option, options_of
from kformer_options.installed import check_extra
from kformer_options.names import command_line_names
from kformer_options.text_files import check_readable

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"\w[\w.-]{0,99}")
_LANGUAGES = re.compile(r"([a-zA-Z][\w@]{1,15})-([a-zA-Z][\w@]{1,15})")


def _path(name, value):
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be a path, but {shown(value)} was given.")
    return pathlib.Path(value)


def _paths(name, value):
    paths = [value] if isinstance(value, str | os.PathLike) else value
    is_list = isinstance(paths, list | tuple) and len(paths) > 0
    if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ValueError(f"{name} must be a path or a list of paths, but {shown(value)} was given.")
    return tuple(map(pathlib.Path, paths))


def _direction(name, value):
    if isinstance(value, tuple):
        value = "-".join(map(str, value))
    match = _LANGUAGES.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{name} must be two codes with a hyphen between them and none within, such as en-de "
            f"or en-pt_BR, but {shown(value)} was given."
        )
    if match[1] == match[2]:
        raise ValueError(f"{name} must be two languages, but both are {match[1]}.")
    return match[1], match[2]


def _columns(name, value):
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and value[0] != value[1]
    if is_pair and all(type(column) is int and column > 0 for column in value):
        return tuple(value)
    if is_pair and all(isinstance(column, str) and column for column in value):
        return tuple(value)
    raise ValueError(
        f"{name} must be two different numbers from 1, or names, such as [1, 2], but "
        f"{shown(value)} was given."
    )


def _pairs(name, value):
    if not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list of two texts each, but {shown(value)} was given.")
    return value


def _rules(name, value):
    if isinstance(value, str):
        return LEVELS[check_choice(name, value, LEVELS)]
    if not isinstance(value, list | tuple):
        levels = ", ".join(LEVELS)
        raise ValueError(f"{name} must be {levels} or a list of rules, not {shown(value)}.")
    chosen = {check_choice(f"A rule of {name}", rule, RULES) for rule in value}
    return tuple(rule for rule in RULES if rule in chosen)


@documented
@dataclasses.dataclass(frozen=True)
class Corpus:
    """One corpus of a description: `files`, `source` and `target`, or `pairs`.

    Args:
        {options}
    """

    files: Path | Sequence[Path] | None = option(
        "Files with both sides: .tsv, .csv, .tmx, .xlf, .zip (of OPUS: a file for each language), "
        ".jsonl, .parquet, .po, or a folder that the library datasets saved.",
        check=_paths,
    )
    source: Path | Sequence[Path] | None = option(
        "Files with the source side, one sentence per line.", check=_paths
    )
    target: Path | Sequence[Path] | None = option(
        "As many files with the target side: line n is the translation of line n.", check=_paths
    )
    pairs: Iterable[tuple[str, str]] | None = option(
        "Pairs (source, target) of texts, in Python alone. They are read once.", check=_pairs
    )
    languages: str | tuple[str, str] | None = option(
        "Codes of source and target language, such as en-de.", check=_direction
    )
    both_directions: bool = option("Whether each pair is read the other way round, too.", False)
    columns: Sequence[int | str] | None = option(
        "The columns of source and target: numbers from 1 or, where the file has them, names; of "
        "JSON lines the way to a text, such as translation.en.",
        check=_columns,
        settled="the first two; of JSON lines the language codes",
    )
    weight: float = option(
        "How often an epoch has each pair: 1 once, 3 three times, 0.1 another tenth in each epoch.",
        1.0,
        above=0,
        at_most=10_000,
    )
    clean: str | Sequence[str] | None = option(
        "none, usual, strict, or a list of rules.",
        check=_rules,
        settled="that of the description",
    )


_OPTIONS = options_of(Corpus)


class Corpora:
    """Corpora with their languages, weights and cleaning, checked whole before anything is read.

    Args:
        corpora: dict of name to dict with the arguments of `Corpus`. A name is made of letters,
            digits, `_`, `-` and `.`: files are named by it.
        validation: dict or `None`, default `None`. By direction, such as `"en-de"`, a dict with the
            files `source` and `target`.
        clean: str or list of str, default `"usual"`. How the corpora without `clean` of their own
            are cleaned: `"none"`, `"usual"`, `"strict"`, or a list of rules
            (`kformer.data.corpora.rules`).
        temperature: float of at least 1, default 1. Above 1 small directions are seen more often:
            the share of a direction with n pairs is that of `n ** (1 / temperature)`. Not together
            with weights.
        folder: path, default the working directory. Where relative paths begin.

    Attributes:
        corpora: dict of name to `Corpus`, with its rules as a tuple in `clean`.
        validation: dict of (source, target) languages to two `pathlib.Path`.
        temperature: float.
        directions: list of (source, target) languages, in the order of the corpora.

    Raises:
        FileNotFoundError: a file does not exist.
        ImportError: a package that a file or a rule needs is not installed.
        ValueError: a key is unknown, or a value is wrong; the message has the corpus and the key.

    Example:
    ```python
    entry = {"source": "train.en", "target": "train.de", "languages": "en-de", "weight": 2}
    corpora = kformer.data.Corpora({"shop": entry})
    ```
    """

    def __init__(self, corpora, *, validation=None, clean="usual", temperature=1, folder="."):
        if not _dict("corpora", corpora):
            raise ValueError("corpora must have at least one corpus, by name.")
        clean = _rules("clean", clean)
        folder = pathlib.Path(folder)
        self.corpora = {
            name: _corpus(name, entry, clean, folder) for name, entry in corpora.items()
        }
        self.validation = _validation(validation, folder)
        self.temperature = check_number("temperature", temperature, at_least=1)
        weighted = [name for name, corpus in self.corpora.items() if corpus.weight != 1]
        if self.temperature > 1 and weighted:
            raise ValueError(
                f"The corpus {weighted[0]!r} has a weight, which a temperature of "
                f"{self.temperature:g} would change: leave one of the two out."
            )

    @classmethod
    def load(cls, path):
        """Reads a description.

        Args:
            path: path of a YAML file with the keys `corpora`, `validation`, `clean` and
                `temperature`. Relative paths in it begin in its folder.

        Returns:
            `Corpora`.

        Raises:
            FileNotFoundError: there is no such file, or a file that it names does not exist.
            ImportError: pyyaml, or a package that a file or a rule needs, is not installed.
            ValueError: the file is not YAML, or as for the class.
        """
        with _read(path) as value:
            return cls(**{"corpora": None, **value}, folder=pathlib.Path(path).parent)

    @property
    def directions(self):
        directions = {}
        for corpus in self.corpora.values():
            directions[corpus.languages] = None
            if corpus.both_directions:
                directions[corpus.languages[::-1]] = None
        return list(directions)

    @property
    def files(self):
        """List of `pathlib.Path`. What the corpora and the validation sets are read from."""
        sides = [
            paths
            for corpus in self.corpora.values()
            for paths in (corpus.files, corpus.source, corpus.target)
        ]
        return [path for paths in (*sides, *self.validation.values()) for path in paths or ()]

    def of_lines(self, paths):
        """Returns a description of cleaned text, as the content of a YAML file beside it.

        Args:
            paths: dict of name to paths of the two files of a corpus's lines.
        """
        import yaml

        corpora = {}
        for name, files in paths.items():
            corpus = self.corpora[name]
            source, target = (path.name for path in files)
            corpora[name] = {"source": source, "target": target}
            corpora[name]["languages"] = "-".join(corpus.languages)
            corpora[name] |= {"both_directions": True} if corpus.both_directions else {}
            corpora[name] |= {"weight": corpus.weight} if corpus.weight != 1 else {}
        value = {"corpora": corpora, "clean": "none"}
        if self.validation:
            value["validation"] = {
                "-".join(direction): {
                    "source": os.path.abspath(source),
                    "target": os.path.abspath(target),
                }
                for direction, (source, target) in self.validation.items()
            }
        if self.temperature != 1:
            value["temperature"] = self.temperature
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def load_validation(path):
    """Reads the validation sets of a description, which may have nothing else.

    Args:
        path: path of a YAML file, as of `Corpora.load`.

    Returns:
        Dict of (source, target) languages to two `pathlib.Path`.

    Raises:
        FileNotFoundError, ImportError, ValueError: as `Corpora.load`; or there is no set.
    """
    with _read(path) as value:
        sets = _validation(value.get("validation"), pathlib.Path(path).parent)
        if not sets:
            raise ValueError("it has no validation sets: name the files of each direction there.")
        return sets


@contextlib.contextmanager
def _read(path):
    """Reads a description and checks its keys; names the file in errors about its values."""
    check_extra("A description of corpora", "corpora", ("yaml",))
    import yaml

    path = pathlib.Path(path)
    content = read_bytes(path, _MOST_BYTES, remedy="describe the corpora in a short YAML file")
    try:
        value = yaml.load(content, Loader=_loader())  # noqa: S506, a safe one
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    try:
        value = _dict("a description", value)
        _check_keys(value, ("corpora", "validation", "clean", "temperature"), "the description")
        with command_line_names(False):  # They are keys of the file.
            yield value
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"{path}: {error}") from None


def _loader():
    """Returns PyYAML's safe loader, which refuses a key that stands twice in one mapping: the first
    of two corpora of one name would be lost.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor):
            node = super().compose_mapping_node(anchor)
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    problem = f"the key {key.value!r} stands there twice"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else None)
            return node

    return Loader


def _validation(entries, folder):
    """The files of validation sets by direction, from a description."""
    sets = {}
    for direction, entry in _dict("validation", {} if entries is None else entries).items():
        where = f"the validation set {direction!r}"
        languages = _direction("a direction of validation", direction)
        _check_keys(_dict(where, entry), ("source", "target"), where)
        if len(entry) < 2:
            raise ValueError(f"{where} needs source and target.")
        paths = [_path(f"{side} of {where}", entry[side]) for side in ("source", "target")]
        sets[languages] = _existing(folder, paths, where)
        for side, path in zip(("source", "target"), sets[languages], strict=True):
            check_readable(path, side)
    return sets


def _corpus(name, entry, clean, folder):
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"The corpus {shown(name)} needs a name of letters, digits, '_', '-' and '.', in "
            "quotes where YAML reads another value: files are named by it."
        )
    where = f"the corpus {name!r}"
    _check_keys(_dict(where, entry), _OPTIONS, where)
    values = {key: _OPTIONS[key].check(value, f"{key} of {where}") for key, value in entry.items()}
    if values.get("clean") is None:
        values["clean"] = clean
    kinds = [key for key in ("files", "source", "pairs") if values.get(key) is not None]
    if len(kinds) != 1 or (values.get("target") is None) == (kinds == ["source"]):
        raise ValueError(f"{where} needs either files, or source and target.")
    if values.get("languages") is None:
        raise ValueError(f"{where} needs languages, such as en-de.")
    for key in ("files", "source", "target"):
        if values.get(key) is not None:
            values[key] = _existing(folder, values[key], where)
    if kinds == ["source"] and len(values["source"]) != len(values["target"]):
        raise ValueError(f"{where} needs as many files of the target side as of the source side.")
    columns = values.get("columns")
    if columns is not None and kinds != ["files"]:
        raise ValueError(f"{where} has columns, which belong to files: leave them out.")
    for path in values.get("files") or ():
        readers.check_format(path, where, columns)
    for side in ("source", "target"):
        for path in values.get(side) or ():
            check_readable(path, side, may_be_compressed=True)
            check_compression(path)
    rules.check_packages(values["clean"], where)
    return Corpus(**values)


def _dict(where, value):
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be names with values, but {shown(value)} was given.")
    return value


def _check_keys(entry, known, where):
    for key in entry:
        if key not in known:
            raise ValueError(f"{where} has the unknown key {shown(key)}: {', '.join(known)} exist.")


def _existing(folder, paths, where):
    paths = tuple(folder / path for path in paths)
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{where} names {path}, which does not exist.")
    return paths
