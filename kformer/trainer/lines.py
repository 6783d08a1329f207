"""The lines that a training reads: two files as they are, or lines that are made in its run."""

import collections
import dataclasses
import functools
import pathlib
from typing import NamedTuple

from kformer.data import Corpora, clean
from kformer.data.corpora.job import DESCRIPTION
from kformer.data.corpora.languages import language_of
from kformer.utils.files import replacing
from kformer.utils.progress import Progress
from kformer_options.names import named
from kformer_options.text_files import check_rereadable, count_lines, is_path, is_plain
from kformer_options.wording import counted

# The languages of a text whose languages nobody named, in a description of its lines.
_UNNAMED = ("source", "target")
# What does not go with several directions, and why.
_OF_ONE_DIRECTION = {
    "general_source": "and general text is a corpus of its own there",
    "general_valid_source": "and a general validation set has one direction",
    "separate_vocabularies": "which share one vocabulary",
    "monolingual_source": "and nobody knows into which language its lines should go",
    "monolingual_target": "and nobody knows from which language its lines should come",
}
# The folder of the cleaned lines within a run directory.
_CLEANED = ("data", "corpora")


class Text(NamedTuple):
    """Two files of lines.

    Attributes:
        source, target: str or path.
        direction: tuple of the two codes of their languages, or `None` if nobody named them.
        weight: float. How often an epoch has each pair.
    """

    source: str
    target: str
    direction: tuple[str, str] | None = None
    weight: float = 1

    def swapped(self):
        """Returns the text of the other direction."""
        direction = self.direction and self.direction[::-1]
        return Text(self.target, self.source, direction, self.weight)

    @property
    def target_language(self):
        return self.direction and self.direction[1]

    def of(self, model):
        """Returns a `Tokenizer` or `Translator` for the languages of this text."""
        return model if self.direction is None else model.for_direction(*self.direction)


@dataclasses.dataclass(frozen=True)
class Lines:
    """The text of a training.

    Attributes:
        texts: list of `Text`.
    """

    texts: list

    @functools.cached_property
    def num_pairs(self):
        """The lines of all sources, which are counted once."""
        return sum(count_lines(text.source) for text in self.texts)

    @functools.cached_property
    def pairs_of_epoch(self):
        """The pairs of an epoch, float."""
        return sum(text.weight * count_lines(text.source) for text in self.texts)

    @property
    def directions(self):
        """The directions of all texts, list of tuples; empty if nobody named them."""
        return list(dict.fromkeys(filter(None, (text.direction for text in self.texts))))


def is_as_it_is(options, path=None):
    """Returns whether a training reads two files as they are, so that nothing is written first.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory, if it may have the text
            already.
    """
    is_plain_text = options.corpora is None and all(
        is_plain(text) for text in (options.train_source, options.train_target)
    )
    return is_plain_text and options.clean in (None, "none") and not _is_made(path)


def has_lines(path, options):
    """Returns whether nothing must be written before the lines of a training can be read.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
    """
    return is_as_it_is(options) or _is_made(path)


def _is_made(path):
    """Whether a run directory has the lines of a training already."""
    return path is not None and path.joinpath(*_CLEANED, DESCRIPTION).exists()


def _corpora(options):
    """The `Corpora` of a training that does not read two files as they are."""
    if options.corpora is not None:
        return Corpora.load(options.corpora)
    sides = {"source": options.train_source, "target": options.train_target}
    level, languages = options.clean or "none", _UNNAMED
    if level != "none":
        for side, texts in sides.items():
            for text in [texts] if is_path(texts) else texts:
                check_rereadable(text, side)
        texts = [text if is_path(text) else text[0] for text in sides.values()]
        languages = tuple(language_of(text) for text in texts)
        if languages[0] == languages[1]:
            raise ValueError(
                f"{named('clean')} {level} must know two languages, but both sides look like "
                f"{languages[0]}: describe the text and its languages by {named('corpora')}."
            )
    return Corpora({"train": {**sides, "languages": languages, "clean": level}})


def validation_sets(options, path=None, report=None):
    """Returns the validation sets of a training: the one of its options, or those of its
    description of corpora.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory, if it may have the
            text already.
        report: function or `None`, default `None`. It takes a sentence about sets that are not
            measured.

    Returns:
        List of `Text`, one for each direction that has a set.

    Raises:
        FileNotFoundError: as `Corpora.load`.
        ValueError: as `Corpora.load`; all validation sets are of other directions; or an option
            does not go with several directions.
    """
    files = options.valid_source, options.valid_target
    if options.corpora is None:
        return [] if options.valid_source is None else [Text(*files)]
    is_made = _is_made(path)
    description = path.joinpath(*_CLEANED, DESCRIPTION) if is_made else options.corpora
    corpora = Corpora.load(description)
    directions = corpora.directions
    if len(directions) > 1:
        several = (
            f"{options.corpora} has several directions ({', '.join(map('-'.join, directions))})"
        )
        if options.valid_source is not None:
            raise ValueError(
                f"{named('valid_source')} is one validation set, but {several}: name a set for "
                "each there, under validation."
            )
        for name, reason in _OF_ONE_DIRECTION.items():
            if getattr(options, name):
                raise ValueError(f"{several}, {reason}: leave {named(name)} out.")
    if options.valid_source is not None:
        return [Text(*files, _named(directions[0]))]
    texts = [
        Text(*map(str, paths), _named(direction))
        for direction, paths in corpora.validation.items()
        if direction in directions
    ]
    if corpora.validation and not texts:
        sets, names = (", ".join(map("-".join, each)) for each in (corpora.validation, directions))
        raise ValueError(
            f"{options.corpora} has a validation set for {sets}, but corpora for {names}: give one "
            "for that direction."
        )
    others = ["-".join(each) for each in corpora.validation if each not in directions]
    if others and report is not None:
        report(f"validation: no corpus has {', '.join(others)}, which is not measured")
    return texts


def _named(direction):
    """Returns a direction, or `None` if nobody named its languages."""
    return None if direction == _UNNAMED else direction


def lines_of(path, options, reports):
    """Returns the `Lines` of a training. What is not two files already becomes lines in its run
    directory, cleaned if that is wanted.

    Args:
        path: `pathlib.Path` of the run directory; `None` for a training that reads two files.
        options: `TrainOptions`.
        reports: `Reports`.

    Raises:
        ValueError: as `kformer.data.clean`, or no pair of a direction is left.
    """
    if is_as_it_is(options, path):
        return Lines([Text(options.train_source, options.train_target)])
    folder, directions = path.joinpath(*_CLEANED), []
    if not _is_made(path):
        corpora = _corpora(options)
        directions = corpora.directions
        exclude = [options.valid_source, options.valid_target] if options.valid_source else []
        bar = Progress(what="pairs read", name="corpora", report=reports.outcome)
        report = clean(
            corpora, folder, exclude=exclude, progress=lambda name, pairs: bar(pairs, None)
        )
        for name, counts in report.corpora.items():
            rejected = {rule: entry["count"] for rule, entry in counts["rejected"].items()}
            reasons = ", ".join(f"{count:,} by {rule}" for rule, count in rejected.items())
            sentence = f"corpora: {name}: {counts['kept']:,} of {counted(counts['pairs'], 'pair')}"
            reports.setting(f"{sentence}{' left' if reasons else ''}{reasons and f' ({reasons})'}")
    corpora = Corpora.load(folder / DESCRIPTION)
    lost = ", ".join("-".join(each) for each in directions if each not in corpora.directions)
    if lost:
        raise ValueError(
            f"No pair of {lost} is left: check the files, languages and rules of these corpora, or "
            "leave them out."
        )
    texts = []
    for corpus in corpora.corpora.values():
        direction = None if options.corpora is None else _named(corpus.languages)
        for files in zip(map(str, corpus.source), map(str, corpus.target), strict=True):
            texts.append(Text(*files, direction, corpus.weight))
            if corpus.both_directions:
                texts.append(texts[-1].swapped())
    return Lines(_at_temperature(texts, corpora.temperature))


def write_description(path, texts, validation):
    """Writes a description of texts, as other trainings read them.

    Args:
        path: `pathlib.Path` of the file.
        texts: list of `Text`.
        validation: list of `Text`.
    """
    import yaml

    folder = path.parent.resolve()

    def path_of(file):
        file = pathlib.Path(file).resolve()  # A run may be moved with the lines in it.
        return str(file.relative_to(folder) if file.is_relative_to(folder) else file)

    def entry(text, **more):
        return {"source": path_of(text.source), "target": path_of(text.target), **more}

    def name(text):
        return "-".join(text.direction or _UNNAMED)

    corpora = {
        f"text-{number}": entry(text, languages=name(text), weight=text.weight)
        for number, text in enumerate(texts, 1)
    }
    value = {"corpora": corpora, "clean": "none"}
    if validation:
        value["validation"] = {name(text): entry(text) for text in validation}
    with replacing(path) as aside:
        aside.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), "utf-8")


def _at_temperature(texts, temperature):
    """Returns texts with the weights of a temperature, with which an epoch has each pair of the
    largest direction once.
    """
    if temperature == 1:
        return texts
    counts = collections.Counter()
    for text in texts:
        counts[text.direction] += count_lines(text.source)
    most = max(counts.values())
    return [
        text._replace(weight=(counts[text.direction] / most) ** (1 / temperature - 1))
        for text in texts
    ]
