"""`kformer train --effort 2` or 3: teachers, a student on what they translate, and last trainings.

RUN/parts/ has what the efforts make on their way to RUN:

    plan.json        the options that the training began with
    done.json        the seconds of each part that is finished, and what was measured before
    tokenizer/       that of all models
    forward-N/       the run of a teacher
    backward-N/      the run of a teacher of the other direction
    text/            what they translate
    student/         the run of the student
    last-N/          the run of a last training, on the given pairs
"""

import csv
import functools
import pathlib
import shutil
import time
from typing import NamedTuple

from kformer.data import ParallelDataset
from kformer.data.preparation import prepare_cached
from kformer.evaluation.scores import corpus_bleu, suitable_tokenizer
from kformer.saving.run_directory import copy_run, read_config, save_run
from kformer.text import Tokenizer
from kformer.trainer.data import count_pairs, validation_lines
from kformer.trainer.resume import (
    PLAN_FILE,
    read_plan,
    resume_options,
    stored_config,
    write_plan,
)
from kformer.trainer.taught_text import BEAM_SIZE, TaughtText
from kformer.trainer.tokenizer import provide_tokenizer
from kformer.training.averages import average_runs
from kformer.training.defaults import choose_dropout, choose_ema, choose_epochs
from kformer.training.options import TrainOptions
from kformer.translating.given import without_calibration
from kformer.translator import Translator
from kformer.utils import files
from kformer.utils.backend import devices_in_use
from kformer_cli.combinations import OF_THE_MODEL
from kformer_cli.declarations import TRAINING, default_of
from kformer_cli.model_folders import training_exists
from kformer_cli.text_files import count_lines
from kformer_cli.wording import counted

PARTS = "parts"
_OF_THE_PARTS = ("effort", "monolingual_source", "monolingual_target", "back_translation")
# Steps of the training that measures the speed before the first part, and those that count.
_PROBE_STEPS, _COUNTED_STEPS = 24, 12
# How the sentences begin that tell what became of a training.
_OUTCOMES = ("data:", "resume:", "stopped", "best:", "search:", "Ctrl-C", "SIGTERM")
# A student sees more texts than its teachers did, so it needs less dropout.
_LESS_DROPOUT, _LEAST_DROPOUT = 0.2, 0.1
# The last training, as shares of the epochs of effort 1 and of the student's learning rate.
_LAST_EPOCHS, _LAST_RATE, _LAST_COOLDOWN = 8 / 28, 0.6, 0.5
# The epochs of text in one language alone, as a share of those of effort 1.
_ALONE_EPOCHS = 1 / 3


class Effort(NamedTuple):
    """What an effort is made of.

    Attributes:
        forward, backward: int. The teachers of each direction.
        teaching: float. The epochs of a teacher, as a share of those of effort 1.
        learning: float. The pairs that the student sees, as a share of those that effort 1 sees.
        last: int. The last trainings, whose weights are averaged.
    """

    forward: int
    backward: int
    teaching: float
    learning: float
    last: int


EFFORTS = {2: Effort(1, 1, 0.5, 1.0, 1), 3: Effort(3, 2, 1.0, 1.3, 3)}


def has_parts(path, given):
    """Whether a training is made of parts, or the one that is there already.

    Args:
        path: `pathlib.Path` of the run directory.
        given: dict of the given options.

    Returns:
        bool.
    """
    return (given.get("effort") or 1) != 1 or (path / PARTS / PLAN_FILE).exists()


def train_parts(path, given, resume, report, show_progress, train):
    """Trains by an effort of 2 or 3, or goes on with such a training.

    Args:
        path: `pathlib.Path` of the run directory.
        given: dict of the given options.
        resume: bool. Whether a training there may be resumed.
        report: function that takes a sentence.
        show_progress: bool. As for `train_run`.
        train: `train_run`.

    Returns:
        `TrainResult` of the last training, with the path of the run directory.

    Raises:
        ValueError: as `train_run`.
    """
    parts = path / PARTS
    is_new = not (parts / PLAN_FILE).exists()
    if is_new:
        if (config := stored_config(path, resume)) is not None:
            resume_options(config["training"], given, path)  # An effort of 1 stays one.
        options = TrainOptions(**given)
    elif not resume:
        raise training_exists(path)
    else:
        options = _resumed(read_plan(parts), given, path)
    options.check_whole()
    training = _Parts(path, options, count_pairs(options), report, show_progress, train)
    if is_new:
        try:
            write_plan(parts, options)
            training.prepare()
        except Exception:
            # So that the same command works once the error is corrected.
            shutil.rmtree(parts, ignore_errors=True)
            raise
    return training.run()


def _resumed(stored, given, path):
    for name in ("epochs", "steps"):
        if given.get(name, stored.get(name)) != stored.get(name):
            raise ValueError(
                f"The parts of the training in {path} are as long as it began with: leave {name} "
                "out, or begin a new training in another folder."
            )
    return resume_options(stored, given, path)


class _Parts:
    """The parts of a training, each of which is made once.

    Args: as for `train_parts`; and `options`, the `TrainOptions`, and `num_pairs`, the lines of the
        training text.
    """

    def __init__(self, path, options, num_pairs, report, show_progress, train):
        self._path, self._folder = path, path / PARTS
        self._options, self._num_pairs = options, num_pairs
        self._effort = EFFORTS[options.effort]
        self._report, self._train = report, train
        self._show_progress = show_progress
        self._result = None

    def prepare(self):
        """Trains the tokenizer, measures the speed and tells how long the training will take."""
        done = self._done()
        tokenizer = provide_tokenizer(
            self._folder, self._options, None, True, self._num_pairs, self._report
        )
        if not tokenizer.joint:
            tokenizer.swapped().save(self._folder / "swapped-tokenizer")
        if "measured" not in done:
            self._note("measured", self._measure())

    def run(self):
        """Makes each part that is not made yet. Returns the `TrainResult`."""
        self.prepare()
        parts = self._parts()
        done = self._done()
        self._tell_time(parts, done)
        for number, part in enumerate(parts, 1):
            if part.name in done:
                continue
            left = sum(self._seconds(each) for each in parts[number - 1 :])
            self._report(
                f"effort: part {number} of {len(parts)}, {part.what}; {_duration(left)} left"
            )
            began = time.perf_counter()
            part.make()
            self._note(part.name, round(time.perf_counter() - began, 1))
        return self._finished(parts)

    def _tell_time(self, parts, done):
        whole = sum(map(self._seconds, parts))
        one = self._measured["epochs"] * self._measured["epoch_tokens"]
        one /= self._measured["tokens_per_second"]
        if len(done) == 1:
            self._report(
                f"effort: {len(parts)} parts, {_duration(whole)} on this machine, where effort 1 "
                f"takes {_duration(one)} ({self._measured['tokens_per_second']:,.0f} target tokens "
                "per second)"
            )

    # What the parts are.

    def _parts(self):
        effort, one = self._effort, self._measured["epochs"] * self._measured["epoch_tokens"]
        text = self._measured["epoch_tokens"] * BEAM_SIZE
        alone = self._lines_alone / self._num_pairs
        parts = []
        for direction, count in (("forward", effort.forward), ("backward", effort.backward)):
            what = "teacher" if direction == "forward" else "teacher of the other direction"
            for number in range(1, count + 1):
                which = f"{what} {number} of {count}" if count > 1 else f"a {what}"
                parts.append(
                    _Part(
                        f"{direction}-{number}",
                        which,
                        effort.teaching * one,
                        lambda direction=direction, number=number: self._teacher(direction, number),
                    )
                )
        texts = effort.forward + 2 * effort.backward + alone
        parts.append(_Part("text", "the teachers' translations", texts * text, self._text))
        learning = effort.learning * one + _ALONE_EPOCHS * alone * one
        parts.append(_Part("student", "the student", learning, self._student))
        for number in range(1, effort.last + 1):
            which = f"{number} of {effort.last}" if effort.last > 1 else "on the given pairs"
            parts.append(
                _Part(
                    f"last-{number}",
                    f"last training {which}",
                    _LAST_EPOCHS * one,
                    lambda number=number: self._last(number),
                )
            )
        if effort.last > 1:
            parts.append(_Part("average", "their mean", 0, self._average))
        return parts

    @functools.cached_property
    def _lines_alone(self):
        texts = (self._options.monolingual_source, self._options.monolingual_target)
        return sum(count_lines(str(path)) for path in texts if path is not None)

    # How the parts are made.

    def _teacher(self, direction, number):
        options = self._shared()
        options["seed"] = (self._options.seed or 0) + number - 1
        options["epochs"] = self._epochs(self._effort.teaching)
        options["tokenizer"] = self._folder / "tokenizer"
        if direction == "backward":
            for split in ("train", "valid"):
                names = f"{split}_source", f"{split}_target"
                options |= dict(
                    zip(names, (options[name] for name in reversed(names)), strict=True)
                )
            swapped = self._folder / "swapped-tokenizer"
            options["tokenizer"] = swapped if swapped.exists() else options["tokenizer"]
        self._train_part(f"{direction}-{number}", options)
        if (direction, number) == ("forward", 1):
            self._publish(self._folder / "forward-1")

    def _text(self):
        runs = [
            [self._folder / f"{direction}-{number}" for number in range(1, count + 1)]
            for direction, count in (
                ("forward", self._effort.forward),
                ("backward", self._effort.backward),
            )
        ]
        text = TaughtText(self._folder / "text", *runs, self._options, self._report)
        count = text.write(*self._student_text())
        self._report(f"effort: {counted(count, 'pair')} for the student")

    def _student_text(self):
        return [self._folder / "text" / f"student.{side}" for side in ("source", "target")]

    def _student(self):
        options = self._shared()
        sides = self._student_text()
        options |= dict(zip(("train_source", "train_target"), sides, strict=True))
        options["tokenizer"] = self._folder / "tokenizer"
        if options["dropout"] is None:
            preset = options["preset"] or default_of("preset")
            rate, _ = choose_dropout(preset, self._num_pairs)
            options["dropout"] = max(_LEAST_DROPOUT, round(rate - _LESS_DROPOUT, 2))
        options["epochs"] = self._student_epochs(count_pairs(TrainOptions(**options)))
        self._by_translations(options)
        self._train_part("student", options)
        self._publish(self._folder / "student")

    def _student_epochs(self, num_pairs):
        epochs, own = self._measured["epochs"], self._num_pairs
        seen = self._effort.learning * own + _ALONE_EPOCHS * self._lines_alone
        return max(1, round(epochs * seen / num_pairs))

    def _last(self, number):
        options = self._shared()
        learnt = read_config(self._folder / "student")["training"]
        options |= dict.fromkeys((*OF_THE_MODEL, "precision", "dropout", "warmup_steps"))
        options["start_from"] = self._folder / "student"
        options["seed"] = (self._options.seed or 0) + number
        options["epochs"] = self._epochs(_LAST_EPOCHS)
        steps = options["epochs"] * self._measured["steps_per_epoch"]
        options["learning_rate"] = _LAST_RATE * learnt["learning_rate"]
        options["cooldown"] = _LAST_COOLDOWN
        if options["ema"] is None:
            options["ema"] = choose_ema(min(steps, options["steps"] or steps))
        options["guided_alignment"] = self._options.guided_alignment
        self._by_translations(options)
        self._train_part(f"last-{number}", options)
        if self._effort.last == 1:
            self._publish(self._folder / "last-1")

    def _average(self):
        """Averages the last trainings, and takes what translates the validation set best."""
        runs = [self._folder / f"last-{number}" for number in range(1, self._effort.last + 1)]
        model, tokenizer, config = average_runs(runs)
        average = save_run(self._folder / "average", model, tokenizer, without_calibration(config))
        shutil.copyfile(runs[0] / "history.csv", average / "history.csv")
        best = average
        if self._options.valid_source is not None:
            sources, references = validation_lines(self._options)
            scores = {}
            for run in (average, *runs):
                found = Translator.load(run).translate(sources, batch_size=256)
                texts = [translation.text for translation in found]
                tokenize = suitable_tokenizer(references)
                scores[run] = corpus_bleu(texts, references, tokenize)
                self._report(f"effort: {run.name} has {scores[run]:.2f} BLEU on the validation set")
            best = max(scores, key=scores.get)
        self._publish(best)

    # What the parts share.

    def _shared(self):
        """The options of every part."""
        options = {name: getattr(self._options, name) for name in TRAINING}
        options |= dict.fromkeys((*_OF_THE_PARTS, "guided_alignment"))
        names = ("tokenizer_type", "vocabulary_size", "separate_vocabularies")
        options |= dict.fromkeys(names)  # The tokenizer is there already.
        options["batch_tokens"] = self._measured["batch_tokens"]
        return options

    def _by_translations(self, options):
        """Lets translations choose the best model, unless the user said otherwise.

        The likelihood of what people wrote falls while a student learns to write as its teachers.
        """
        if options["select"] is None and options["valid_source"] is not None:
            options["select"] = "bleu"

    def _epochs(self, share):
        return max(1, round(share * self._measured["epochs"]))

    def _train_part(self, name, options):
        options = dict(options)
        if options["log_dir"] is not None:
            options["log_dir"] = pathlib.Path(options["log_dir"]) / name
        run = self._folder / name
        given = {key: value for key, value in options.items() if value is not None}
        resume = (run / "config.json").exists()
        report = self._report if name == "forward-1" else self._report_outcome
        settings = {"resume": resume, "report": report, "show_progress": self._show_progress}
        self._result = self._train(run, **given, **settings)

    def _report_outcome(self, sentence):
        """Reports what is new in a further part: the settings are those of the first."""
        if sentence.startswith(_OUTCOMES):
            self._report(sentence)

    def _publish(self, run):
        """Makes the run directory that of a part, so that it can be used from then on."""
        config = read_config(run)
        config["training"] = read_plan(self._folder)
        copy_run(run, self._path, {**config, "part": run.name})

    def _finished(self, parts):
        if self._result is None:  # All parts were made before.
            self._last(self._effort.last)
        return self._result._replace(path=self._path)

    # How long they take.

    def _measure(self):
        """Trains a few steps, and returns what they say about the whole."""
        options = self._options
        run = self._folder / "speed"
        shutil.rmtree(run, ignore_errors=True)
        shared = {name: getattr(options, name) for name in TRAINING if name not in _OF_THE_PARTS}
        shared |= dict.fromkeys(
            ("valid_source", "valid_target", "select", "patience", "valid_every", "quality_every")
        )
        shared |= dict.fromkeys(("tokenizer_type", "vocabulary_size", "separate_vocabularies"))
        shared |= {"steps": _PROBE_STEPS, "epochs": None, "log_dir": None, "warmup_steps": 1}
        shared |= {"tokenizer": self._folder / "tokenizer", "guided_alignment": None}
        given = {name: value for name, value in shared.items() if value is not None}
        self._report("effort: measuring the speed of a training ...")
        self._train(run, **given, report=_silent, show_progress=False)
        with open(run / "history.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))[-_COUNTED_STEPS:]
        tokens, seconds = (
            sum(float(row[name]) for row in rows) for name in ("target_tokens", "seconds")
        )
        settled = read_config(run)["training"]
        corpus = prepare_cached(
            str(options.train_source),
            str(options.train_target),
            Tokenizer.load(self._folder / "tokenizer"),
            run / "data",
            max_length=settled["max_length"],
            report=_silent,
        )
        steps = ParallelDataset.from_prepared(
            corpus,
            batch_tokens=settled["batch_tokens"],
            packed=settled["packed"],
            max_shapes=settled["max_shapes"] or 1,
            num_devices=devices_in_use(),
        ).steps_per_epoch
        shutil.rmtree(run, ignore_errors=True)
        accumulate = options.accumulate or default_of("accumulate")
        return {
            "tokens_per_second": round(tokens / seconds, 1),
            "epoch_tokens": corpus.num_target_tokens,
            "steps_per_epoch": steps,
            "batch_tokens": settled["batch_tokens"],
            "epochs": options.epochs or choose_epochs(steps, accumulate)[0],
        }

    @property
    def _measured(self):
        return self._done()["measured"]

    def _seconds(self, part):
        """The seconds that a part takes: by the measured speed, corrected by the parts before."""
        done = self._done()
        speed = done["measured"]["tokens_per_second"]
        known = [each for each in self._parts() if each.name in done and each.cost]
        expected = sum(each.cost for each in known) / speed
        factor = sum(done[each.name] for each in known) / expected if known else 1.0
        return part.cost / speed * factor

    def _done(self):
        path = self._folder / "done.json"
        return files.read_json(path) if path.exists() else {}

    def _note(self, name, value):
        files.write_json(self._folder / "done.json", {**self._done(), name: value})


class _Part(NamedTuple):
    """A part of a training.

    Attributes:
        name: str. That of its folder.
        what: str. What it is, in words.
        cost: float. The target tokens that a training could see in its time.
        make: function without arguments, which makes it.
    """

    name: str
    what: str
    cost: float
    make: object


def _silent(sentence):
    pass


def _duration(seconds):
    """Seconds in words, to two digits or so."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"about {counted(minutes, 'minute')}"
    hours, minutes = divmod(round(minutes, -1), 60)
    return f"about {hours} h {minutes} min" if minutes else f"about {hours} h"
