"""The lines that a training reads: two files, or the cleaned lines of described corpora."""

import dataclasses
import functools

from kformer.data import Corpora, clean
from kformer.data.corpora.job import DESCRIPTION
from kformer.utils.progress import Progress
from kformer_options.text_files import count_lines
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


def described(options, path=None):
    """Returns the options of a training with the validation set of its description of corpora.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory, if it may have the
            corpora already.

    Raises:
        FileNotFoundError: as `Corpora.load`.
        ValueError: as `Corpora.load`, the corpora have several directions, or all validation
            sets are of other directions.
    """
    if options.corpora is None or path and path.joinpath(*_CLEANED, DESCRIPTION).exists():
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
    """Returns the `Lines` of a training; described corpora are cleaned into its run directory.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        reports: `Reports`.
    """
    if options.corpora is None:
        return Lines([options.train_source], [options.train_target], [1])
    folder = path.joinpath(*_CLEANED)
    if not (folder / DESCRIPTION).exists():
        corpora = Corpora.load(options.corpora)
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
