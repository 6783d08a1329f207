"""The lines that a training reads: two files as they are, or lines that are made in its run."""

import dataclasses
import functools

from kformer.data import Corpora, clean
from kformer.data.corpora.job import DESCRIPTION
from kformer.data.corpora.languages import language_of
from kformer.utils.progress import Progress
from kformer_options.names import named
from kformer_options.text_files import check_rereadable, count_lines, is_path, is_plain
from kformer_options.wording import counted

# The folder of the cleaned lines within a run directory.
_CLEANED = ("data", "corpora")


@dataclasses.dataclass(frozen=True)
class Lines:
    """The text of a training.

    Attributes:
        sources, targets: lists of paths, of files of lines.
        weights: list of float. How often an epoch has each pair of two files.
        num_pairs: int. The lines of all sources, which are counted once.
    """

    sources: list
    targets: list
    weights: list

    @functools.cached_property
    def num_pairs(self):
        return sum(map(count_lines, self.sources))


def is_as_it_is(options, path=None):
    """Returns whether a training reads two files as they are, so that nothing is written first.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory, if it may have the text
            already.

    Raises:
        ValueError: it does not, and several trainings need it to.
    """
    is_plain_text = options.corpora is None and all(
        is_plain(text) for text in (options.train_source, options.train_target)
    )
    is_kept = options.clean in (None, "none")
    if is_plain_text and is_kept and not _is_made(path):
        return True
    if (options.effort or 1) > 1:
        raise ValueError(
            f"{named('effort')} {options.effort} reads two files as they are, several times: write "
            "the text to such files first (kformer clean), and give them."
        )
    return False


def _is_made(path):
    """Whether a run directory has the lines of a training already."""
    return path is not None and path.joinpath(*_CLEANED, DESCRIPTION).exists()


def _corpora(options):
    """The `Corpora` of a training that does not read two files as they are."""
    if options.corpora is not None:
        return Corpora.load(options.corpora)
    sides = {"source": options.train_source, "target": options.train_target}
    level, languages = options.clean or "none", ("source", "target")
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


def described(options, path=None):
    """Returns the options of a training with the validation set of its description of corpora.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory, if it may have the
            text already.

    Raises:
        FileNotFoundError: as `Corpora.load`.
        ValueError: as `Corpora.load`, the corpora have several directions, or all validation
            sets are of other directions.
    """
    if options.corpora is None or _is_made(path):
        return options
    corpora = Corpora.load(options.corpora)
    if len(corpora.directions) > 1:
        names = ", ".join(map("-".join, corpora.directions))
        raise ValueError(
            f"{options.corpora} has several directions ({names}), and a model is trained for one: "
            "leave the others out, and both_directions."
        )
    if options.valid_source is not None or not corpora.validation:
        return options
    [direction] = corpora.directions
    if direction not in corpora.validation:
        names = ", ".join(map("-".join, corpora.validation))
        raise ValueError(
            f"{options.corpora} has a validation set for {names}, but corpora for "
            f"{'-'.join(direction)}: give one for that direction."
        )
    source, target = map(str, corpora.validation[direction])
    return dataclasses.replace(options, valid_source=source, valid_target=target)


def lines_of(path, options, reports):
    """Returns the `Lines` of a training. What is not two files already becomes lines in its run
    directory, cleaned if that is wanted.

    Args:
        path: `pathlib.Path` of the run directory; `None` for a training that reads two files.
        options: `TrainOptions`.
        reports: `Reports`.
    """
    if is_as_it_is(options, path):
        return Lines([options.train_source], [options.train_target], [1])
    folder = path.joinpath(*_CLEANED)
    if not _is_made(path):
        corpora = _corpora(options)
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
    corpora = Corpora.load(folder / DESCRIPTION).corpora.values()
    sides = [
        [str(path) for corpus in corpora for path in corpus.source],
        [str(path) for corpus in corpora for path in corpus.target],
    ]
    return Lines(*sides, [corpus.weight for corpus in corpora])
