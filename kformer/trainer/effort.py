"""`kformer train --effort 2` or 3: teachers, a student on what they translate, and last trainings.

RUN/parts/ has what is made on the way to RUN:

    plan.json        the options that the training began with
    done.json        the measured speed, and the seconds of each part that was made; null for a part
                     that several processes made
    tokenizer/       that of all models
    forward-N/       the run of a teacher
    backward-N/      the run of a teacher of the other direction
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
from kformer.trainer.effort_parts import LAST_EPOCHS, PartMaker
from kformer.trainer.jobs import Jobs, timed
from kformer.trainer.resume import PLAN_FILE, read_plan, resume_options, stored_config, write_plan
from kformer.trainer.taught_text import BEAM_SIZE
from kformer.trainer.training import locked_run
from kformer.training.defaults import count_steps
from kformer.training.options import TrainOptions, check_options
from kformer.utils import files
from kformer.utils.checksums import file_checksum
from kformer.utils.lines import read_lines
from kformer_options.model_folders import PARTS, training_exists
from kformer_options.text_files import check_rereadable, count_lines
from kformer_options.wording import counted

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
        parts = Parts(path, options, count_pairs(options), reports, jobs)
        try:
            if is_new:
                write_plan(folder, options)
            parts.prepare()
        except Exception:
            if is_new:  # So that the same command works once the error is corrected.
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return parts.run()


def _settled(path, options, resume, is_new):
    """The checked `TrainOptions` of the whole training."""
    if is_new:
        if (config := stored_config(path, resume)) is not None:
            resume_options(config["training"], options, path)  # It refuses another effort.
        settled = TrainOptions(**options)
    elif not resume:
        raise training_exists(path)
    else:
        plan = read_plan(path / PARTS)
        for name in ("epochs", "steps"):
            if options.get(name, plan.get(name)) != plan.get(name):
                raise ValueError(
                    f"The parts of the training in {path} are as long as it began with: leave "
                    f"{name} out, or begin a new training in another folder."
                )
        settled = resume_options(plan, options, path)
    check_options(settled)
    for text in (settled.monolingual_source, settled.monolingual_target):
        if text is not None:
            check_rereadable(text, "monolingual text")
            read_lines(text, "monolingual")  # Now, and not after the teachers' trainings.
    if settled.guided_alignment is not None:
        check_alignments(settled)
    return settled


class Parts:
    """The parts of a training, each of which is made once.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        num_pairs: int. The lines of the training text.
        reports, jobs: as for `train_effort`.
    """

    def __init__(self, path, options, num_pairs, reports, jobs=1):
        self._folder, self._options, self._num_pairs = path / PARTS, options, num_pairs
        self._jobs, self._report = Jobs(jobs), reports.outcome
        self._maker = PartMaker(path, options, num_pairs, reports, self._jobs)
        self._done_file = self._folder / "done.json"
        self._done = files.read_json(self._done_file) if self._done_file.exists() else {}

    def prepare(self):
        """Trains the tokenizer and measures the speed, unless that was done before."""
        names = ("train_source", "train_target", "monolingual_source", "monolingual_target")
        paths = {name: getattr(self._options, name) for name in names}
        texts = {name: file_checksum(path) for name, path in paths.items() if path is not None}
        self._maker.provide_tokenizer()
        if "speed" not in self._done:
            self._report("effort: measuring the speed of a training ...")
            self._note("speed", {**self._maker.measure_speed(), "checksums": texts})
        elif self._done["speed"]["checksums"] != texts:
            raise ValueError(
                f"The text is not that which the training in {self._folder.parent} began with: put "
                "it back, or begin a new training in another folder."
            )
        self._maker.measured = self._done["speed"]
        self._maker.publish_taken()  # Now that nothing is wrong with the text and the options.

    def run(self):
        """After `prepare`: makes each part that is not made yet. Returns the `TrainResult`."""
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
        options, measured = self._options, self._maker.measured
        epochs = options.epochs if options.steps else measured["epochs"]
        steps = count_steps(options.steps, epochs, measured["steps_per_epoch"])
        speed = measured["tokens_per_second"]
        whole = _duration(self._seconds(self._parts))
        one = _duration(steps * self._maker.step_tokens / speed)
        return (
            f"effort: {len(self._parts)} parts, {whole} on this machine, where effort 1 takes "
            f"{one} ({speed:,.0f} target tokens per second)"
        )

    @functools.cached_property
    def _parts(self):
        make, options = self._maker, self._options
        effort = EFFORTS[options.effort]
        texts = [options.monolingual_source, options.monolingual_target]
        alone = sum(count_lines(path) for path in texts if path is not None) / self._num_pairs
        learning = effort.learning + _ALONE_EPOCHS * alone
        epoch = make.measured["epoch_tokens"]
        whole = make.measured["epochs"] * epoch
        most = (options.steps or math.inf) * make.step_tokens  # Of each training.
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
        if options.valid_source is not None and options.choose_search is not False:
            epochs = sum(part.cost for part in parts) / epoch
            add("search", "choice of the search", "search", 0, make.search, epochs)
        return parts

    def _seconds(self, parts):
        """The seconds that parts take: by the measured speed, corrected by the trainings before."""
        done, speed = self._done, self._maker.measured["tokens_per_second"]
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
        files.write_json(self._done_file, self._done)


def _duration(seconds):
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"about {counted(minutes, 'minute')}"
    hours, minutes = divmod(round(minutes, -1), 60)
    return f"about {hours} h {minutes} min" if minutes else f"about {hours} h"
