"""`kformer train --effort 2` or 3: teachers, a student on what they translate, and last trainings.

RUN/parts/ has what is made on the way to RUN:

    plan.json        the options that the training began with
    done.json        the measured speed, and the seconds of each part that was made; null for a part
                     that several processes made
    tokenizer/       that of all models
    forward-N/       the run of a teacher
    backward-N/      the run of a teacher of the other direction
    data/            the lines of a text that is not two files already
    text/            what the teachers translated
    student/         the run of the student
    last-N/          the run of a last training, on the given pairs

References:
    Nguyen et al. 2020, "Data diversification: a simple strategy for neural machine translation".
    Kim and Rush 2016, "Sequence-level knowledge distillation". Wortsman et al. 2022, "Model soups".
"""

import functools
import itertools
import math
import shutil
from collections.abc import Callable
from typing import NamedTuple

from kformer.trainer.data import check_alignments, count_pairs
from kformer.trainer.effort_parts import (
    LAST_EPOCHS,
    PartMaker,
    shared_options,
    write_descriptions,
)
from kformer.trainer.jobs import Jobs, timed
from kformer.trainer.lines import is_as_it_is as lines_are_as_they_are
from kformer.trainer.lines import lines_of, validation_sets
from kformer.trainer.resume import PLAN_FILE, read_plan, resume_options, stored_config, write_plan
from kformer.trainer.speed import measure_speed
from kformer.trainer.taken_teachers import take_teachers
from kformer.trainer.taught_text import BEAM_SIZE
from kformer.trainer.tokenizer import provide_tokenizer
from kformer.trainer.training import locked_run
from kformer.training.defaults import count_steps
from kformer.training.options import check_options
from kformer.utils import files
from kformer.utils.checksums import file_checksum
from kformer_options.model_folders import PARTS, training_exists
from kformer_options.names import named
from kformer_options.text_files import count_lines
from kformer_options.wording import counted

# What was made: the measured speed, and the seconds of each part.
_DONE = "done.json"
# The stages whose parts are trainings.
_TRAININGS = ("teachers", "student", "last")
# The epochs of text in one language alone, as a share of those of effort 1.
_ALONE_EPOCHS = 1 / 3


class Effort(NamedTuple):
    """What an effort is made of.

    Attributes:
        forward, backward: int. The teachers of each direction.
        forward_share, backward_share: float. The epochs of a teacher of each direction, as a share
            of those of effort 1.
        learning: float. The pairs that the student sees, as a share of those that effort 1 sees.
        last: int. The last trainings, whose weights are averaged.
    """

    forward: int
    backward: int
    forward_share: float
    backward_share: float
    learning: float
    last: int


# A student is as good as what it reads: with teachers of half the epochs it gained nothing on 5,000
# pairs. Half the epochs do for those of the other direction. With 0.8 a student still improved when
# it ended; 1.2 gained two BLEU on Tatoeba. The text of five teachers is twice as long as that of
# two: with 2.0 a student no longer improved at its end (docs/decisions.md).
EFFORTS = {2: Effort(1, 1, 1.0, 0.5, 1.2, 1), 3: Effort(3, 2, 1.0, 1.0, 2.0, 3)}


class Part(NamedTuple):
    """A part of a training.

    Attributes:
        name: str. That of its folder.
        what: str. What it is, in words.
        stage: str. Parts of one stage do not need each other.
        cost: float. The target tokens that a training sees in the time that the part takes.
        make: function without arguments, which makes it.
    """

    name: str
    what: str
    stage: str
    cost: float
    make: Callable[[], object]


def train_effort(path, options, resume, reports, jobs=1):
    """Trains by an effort of 2 or 3, or resumes such a training.

    From the first teacher on, the run directory can be used: it has that teacher, then the student,
    and in the end the part that translates the validation set best.

    Args:
        path: `pathlib.Path` of the run directory.
        options: dict of the options that are set.
        resume: bool. Whether a training there may be resumed.
        reports: `Reports`.
        jobs: int, default 1. The trainings at once.

    Returns:
        `TrainResult` of the last training, with the path of the run directory.

    Raises:
        ValueError: as `train_run`.
    """
    with locked_run(path):
        folder = path / PARTS
        is_new = not (folder / PLAN_FILE).exists()
        options = _settled(path, options, resume, is_new)
        count_pairs(options, folder)
        jobs, is_as_it_is = Jobs(jobs), lines_are_as_they_are(options, folder)
        if is_as_it_is:
            check_alignments(options)
        elif options.teachers_from is not None:
            raise ValueError(
                f"The teachers of {options.teachers_from} read two files as they are: write the "
                f"text to such files (kformer clean), or leave {named('teachers_from')} out."
            )
        try:
            if is_new:
                write_plan(folder, options)
            lines = lines_of(folder, options, reports)
            _provide_tokenizer(folder, options, lines, reports.setting)
            if not is_as_it_is:
                validation = validation_sets(options, folder)
                write_descriptions(folder, lines.texts, validation)
            measured = _measured_speed(folder, options, jobs, reports.outcome)
            if not is_new:  # A resumption may change some, and the next one goes on with them.
                write_plan(folder, options)
        except Exception:
            if is_new:  # So that the same command works once the error is corrected.
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return Parts(path, options, lines, measured, reports, jobs).run()


def _settled(path, options, resume, is_new):
    """The checked `TrainOptions` of the whole training."""
    if is_new:
        config = stored_config(path, resume)
        stored = config and config["training"]  # It has another effort, so it is refused.
    elif not resume:
        raise training_exists(path)
    else:
        stored = read_plan(path / PARTS)
        for name in ("epochs", "steps"):
            if options.get(name, stored.get(name)) != stored.get(name):
                raise ValueError(
                    f"The parts of the training in {path} are as long as it began with: leave "
                    f"{name} out, or begin a new training in another folder."
                )
    options = resume_options(stored, options, path)
    check_options(options, has_validation=bool(validation_sets(options, path / PARTS)))
    return options


def _provide_tokenizer(folder, options, lines, report):
    """Trains the tokenizer of all models, finds it, or takes it with the teachers of a run."""
    path, run = folder / "tokenizer", options.teachers_from
    if run is not None and not (path / "tokenizer.json").exists():
        take_teachers(run, folder, options).save(path)  # Saved last: where it is, all is taken.
    tokenizer = provide_tokenizer(folder, options, lines, None, True, report)
    if not tokenizer.joint:
        tokenizer.swapped().save(folder / "swapped-tokenizer")


def _measured_speed(folder, options, jobs, report):
    """What `measure_speed` returns about effort 1; it is kept, with checksums of the text."""
    names = ("train_source", "train_target", "monolingual_source", "monolingual_target")
    paths = {name: getattr(options, name) for name in names}
    if not lines_are_as_they_are(options, folder):  # The lines are in the run.
        paths |= dict.fromkeys(names[:2])
    texts = {name: file_checksum(path) for name, path in paths.items() if path is not None}
    if not (folder / _DONE).exists():
        report("effort: measuring the speed of a training ...")
        speed = measure_speed(folder / "speed", shared_options(folder, options), jobs.train)
        files.write_json(folder / _DONE, {"speed": {**speed, "checksums": texts}})
    measured = files.read_json(folder / _DONE)["speed"]
    if measured["checksums"] != texts:
        raise ValueError(
            f"The text is not that which the training in {folder.parent} began with: put it back, "
            "or begin a new training in another folder."
        )
    return measured


class Parts:
    """The parts of a training, each of which is made once.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        lines: `Lines` of the training.
        measured: dict, from `measure_speed`.
        reports: `Reports`.
        jobs: `Jobs`.
    """

    def __init__(self, path, options, lines, measured, reports, jobs):
        self._folder, self._options, self._lines = path / PARTS, options, lines
        self._measured, self._jobs, self._report = measured, jobs, reports.outcome
        self._maker = PartMaker(path, options, lines, measured, reports, jobs)
        self._done = files.read_json(self._folder / _DONE)

    def run(self):
        """Makes each part that is not made yet. Returns the `TrainResult` of the last training."""
        self._maker.publish_taken()
        if len(self._done) == 1:
            self._report(self._forecast())
        for stage, group in itertools.groupby(self._parts, lambda part: part.stage):
            missing = [part for part in group if part.name not in self._done]
            begun = {part.name for part in missing if (self._folder / part.name).exists()}
            is_at_once = self._at_once(stage) > 1
            for parts in filter(None, [missing] if is_at_once else [[part] for part in missing]):
                self._announce(parts)
                for part, seconds in self._jobs.make(parts) if is_at_once else map(timed, parts):
                    # What an earlier process had begun took this one less than a whole part.
                    self._note(part.name, None if part.name in begun else round(seconds, 1))
                    if is_at_once:
                        self._report(f"effort: {part.name} is done")
        return self._maker.result()

    def _announce(self, parts):
        """Reports which parts are made now, and how much time is left."""
        count, index = len(self._parts), self._parts.index(parts[0])
        duration = _duration(self._seconds(self._parts[index:]))
        if parts[1:]:
            names = ", ".join(part.name for part in parts)
            which = f"{len(parts)} of {count} parts ({names}), {self._jobs.count} at once"
        else:
            which = f"part {index + 1} of {count}, {parts[0].what}"
        self._report(f"effort: {which}; {duration} left")

    def _forecast(self):
        """The sentence on the time of the whole training, and of a training with effort 1."""
        options, measured = self._options, self._measured
        epochs = options.epochs if options.steps else measured["epochs"]
        steps = count_steps(options.steps, epochs, measured["steps_per_epoch"])
        speed = measured["tokens_per_second"]
        whole = _duration(self._seconds(self._parts))
        one = _duration(steps * self._step_tokens / speed)
        return (
            f"effort: {len(self._parts)} parts, {whole} on this machine, where effort 1 takes "
            f"{one} ({speed:,.0f} target tokens per second)"
        )

    @property
    def _step_tokens(self):
        """The target tokens of a step of effort 1 (float)."""
        return self._measured["epoch_tokens"] / self._measured["steps_per_epoch"]

    @functools.cached_property
    def _parts(self):
        make, options = self._maker, self._options
        effort = EFFORTS[options.effort]
        texts = [options.monolingual_source, options.monolingual_target]
        alone = sum(count_lines(path) for path in texts if path is not None)
        alone /= self._lines.num_pairs
        learning = effort.learning + _ALONE_EPOCHS * alone
        epoch = self._measured["epoch_tokens"]
        whole = self._measured["epochs"] * epoch
        most = (options.steps or math.inf) * self._step_tokens  # Of each training.
        parts = []

        def add(name, what, stage, cost, function, *arguments):
            parts.append(Part(name, what, stage, cost, functools.partial(function, *arguments)))

        def add_trainings(name, what, stage, count, cost, function, *arguments):
            for number in range(1, count + 1):
                which = f"{what} {number} of {count}" if count > 1 else what
                numbered = f"{name}-{number}", which, stage, min(cost, most)
                add(*numbered, function, *arguments, number)

        if options.teachers_from is not None:
            directions = ("forward", "backward")
            counts = {name: len(list(self._folder.glob(f"{name}-*"))) for name in directions}
            effort, translated = effort._replace(**counts), 0  # They have translated the text.
        else:
            translated = effort.forward + effort.backward
            teachers = ("forward", "teacher"), ("backward", "teacher of the other direction")
            for direction, what in teachers:
                count, share = getattr(effort, direction), getattr(effort, f"{direction}_share")
                training = count, share * whole, make.teacher, share, direction
                add_trainings(direction, what, "teachers", *training)
        translated += effort.backward + alone  # The round trips, and text in one language.
        directions = effort.forward, effort.backward
        cost = translated * epoch * BEAM_SIZE
        add("text", "translations", "text", cost, make.text, *directions)
        add("student", "student", "student", min(learning * whole, most), make.student, learning)
        what, cost = "last training on the given pairs", LAST_EPOCHS * whole
        add_trainings("last", what, "last", effort.last, cost, make.last)
        add("choice", "choice of the model", "choice", 0, make.choose, effort.last)
        if make.validation and options.choose_search is not False:
            epochs = sum(part.cost for part in parts) / epoch
            add("search", "choice of the search", "search", 0, make.search, epochs)
        return parts

    def _seconds(self, parts):
        """The seconds that parts take: by the measured speed, corrected by the trainings before."""
        done, speed = self._done, self._measured["tokens_per_second"]
        trained = [part for part in self._parts if part.stage in _TRAININGS and done.get(part.name)]
        expected = sum(part.cost for part in trained) / speed
        factor = sum(done[part.name] for part in trained) / expected if trained else 1.0
        missing = [part for part in parts if part.name not in done]
        cost = 0.0
        for stage, group in itertools.groupby(missing, lambda part: part.stage):
            busy = [0.0] * self._at_once(stage)
            for part in group:  # Each begins as soon as another has ended.
                busy[busy.index(min(busy))] += part.cost
            cost += max(busy)
        return cost / speed * factor

    def _at_once(self, stage):
        """How many parts of a stage are made at once."""
        return self._jobs.count if stage in _TRAININGS else 1

    def _note(self, name, value):
        self._done[name] = value
        files.write_json(self._folder / _DONE, self._done)


def _duration(seconds):
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"about {counted(minutes, 'minute')}"
    hours, minutes = divmod(round(minutes, -1), 60)
    return f"about {hours} h {minutes} min" if minutes else f"about {hours} h"
