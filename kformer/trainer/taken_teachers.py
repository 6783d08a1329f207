"""`kformer train --teachers-from RUN`: the teachers of another training, for a further student."""

import filecmp
import pathlib
import shutil

from kformer.saving.run_directory import copy_run, read_config, without_paths
from kformer.text import Tokenizer
from kformer.trainer.lines import is_as_it_is
from kformer.trainer.resume import read_plan
from kformer.training.options import TrainOptions
from kformer.utils import files
from kformer_options.model_folders import check_teachers

_DIRECTIONS = ("forward", "backward")


def take_teachers(run, folder, options):
    """Copies the teachers of another training, and what they translated.

    Args:
        run: path of the run directory of a training with an effort of 2 or 3. It had the same text,
            in this direction or in the other one.
        folder: `pathlib.Path`. The parts of the new training.
        options: `TrainOptions` of the new training.

    Returns:
        `Tokenizer` of the teachers, for the direction of the new training.

    Raises:
        ValueError: the other training has no teachers that are trained, or had other text.
        FileNotFoundError: there is no such run directory, or its text is not where it was.
    """
    parts = check_teachers(run)
    is_swapped = _is_swapped(run, parts, options)
    names = dict(zip(_DIRECTIONS, _DIRECTIONS[::-1] if is_swapped else _DIRECTIONS, strict=True))
    for direction, name in names.items():
        for teacher in parts.glob(f"{direction}-*"):
            config = without_paths(read_config(teacher))
            copy_run(teacher, folder / teacher.name.replace(direction, name), config)
    text = folder / "text"
    text.mkdir(exist_ok=True)
    for path in (parts / "text").glob("*-*-*.txt"):
        direction, _, suffix = path.name.partition("-")
        with files.replacing(text / f"{names[direction]}-{suffix}") as aside:
            shutil.copyfile(path, aside)
    tokenizer = Tokenizer.load(parts / "tokenizer")
    return tokenizer.swapped() if is_swapped else tokenizer


def _is_swapped(run, parts, options):
    """Whether the new training translates in the other direction."""
    plan = read_plan(parts)
    texts = [plan.get("train_source"), plan.get("train_target")]
    if not is_as_it_is(TrainOptions(**plan)):
        raise ValueError(
            f"The teachers of {run} did not learn from two files as they are, so they cannot be "
            "taken: train new ones."
        )
    for path in texts:
        if not pathlib.Path(path).exists():
            raise FileNotFoundError(
                f"The teachers of {run} learned from {texts[0]} and {texts[1]}, and {path} is "
                "not there: put it back, or go to the folder from which this path leads to it."
            )
    new_texts = [options.train_source, options.train_target]
    for is_swapped, order in ((False, texts), (True, texts[::-1])):
        if all(filecmp.cmp(*pair, shallow=False) for pair in zip(order, new_texts, strict=True)):
            return is_swapped
    raise ValueError(
        f"The teachers of {run} learned from {texts[0]} and {texts[1]}: give these two files, in "
        "one order or the other, and leave them as they were."
    )
