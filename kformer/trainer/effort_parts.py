"""How the parts of `kformer train --effort 2` and 3 are made."""

import pathlib
import shutil
import statistics

from kformer.data import ParallelDataset
from kformer.data.corpus import SIDES
from kformer.evaluation.scores import corpus_bleu, suitable_tokenizer
from kformer.saving.run_directory import copy_run, read_config, save_run
from kformer.text import Tokenizer
from kformer.trainer.data import TextOfTraining, validation_lines
from kformer.trainer.lines import Lines, Text, validation_sets, write_description
from kformer.trainer.resume import last_step, read_plan, write_paths
from kformer.trainer.search import REASON, settle_search
from kformer.trainer.taught_text import TaughtText
from kformer.trainer.training import SILENT, Reports, TrainResult
from kformer.training.averages import average_runs
from kformer.training.defaults import choose_dropout, choose_ema
from kformer.training.hosts import Hosts
from kformer.translating.translator import SEARCH_BY_LANGUAGE, Translator
from kformer.translating.word_alignment import without_calibration
from kformer_options.combinations import OF_THE_MODEL
from kformer_options.model_folders import PARTS
from kformer_options.text_files import count_lines
from kformer_options.training import TRAINING
from kformer_options.wording import counted

# The last training: its share of the epochs of effort 1, its share of the student's learning rate,
# and its cooldown.
LAST_EPOCHS, _LAST_RATE, _LAST_COOLDOWN = 8 / 28, 0.6, 0.5
# A student sees more texts than its teachers did, so it needs less dropout.
_LESS_DROPOUT, _LEAST_DROPOUT = 0.2, 0.1
_SPLITS = ("train", "valid")
# The descriptions of the lines of a training, where it does not read two files as they are.
_DESCRIPTION, _SWAPPED = "corpora.yaml", "swapped-corpora.yaml"
_SEARCHES = ("search", SEARCH_BY_LANGUAGE)
_VOCABULARY = ("tokenizer_type", "vocabulary_size", "separate_vocabularies")


def shared_options(folder, options):
    """Returns the options of every part: those of the training but for its effort and tokenizer,
    and but for those of a student with a preset of its own.

    Args:
        folder: `pathlib.Path` of the parts, with the tokenizer of all models.
        options: `TrainOptions` of the training.

    Returns:
        dict of str to value. `None` means unset.
    """
    description = folder / _DESCRIPTION
    text = dict.fromkeys(("train_source", "train_target", "clean")) | {"corpora": description}
    of_effort = [name for name, option in TRAINING.items() if option.group == "Effort"]
    unset = dict.fromkeys((*of_effort, *_VOCABULARY, "guided_alignment"))
    if options.student is not None:
        unset["model_options"] = None
    text = text if description.exists() else {}
    return {**vars(options), **unset, **text, "tokenizer": folder / "tokenizer"}


def write_descriptions(folder, texts, validation):
    """Writes descriptions of the lines of a training that does not read two files as they are: for
    the trainings of its parts, and for those of the other direction.

    Args:
        folder: `pathlib.Path` of the parts.
        texts, validation: lists of `Text`.
    """
    write_description(folder / _DESCRIPTION, texts, validation)
    other = [[text.swapped() for text in each] for each in (texts, validation)]
    write_description(folder / _SWAPPED, *other)


class PartMaker:
    """Makes the parts of a training in `RUN/parts/`, one by one.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        lines: `Lines` of the training.
        measured: dict, from `kformer.trainer.speed.measure_speed`.
        reports: `Reports`.
        jobs: `Jobs`, which trains.

    Attributes:
        validation: list of `Text`. The validation sets.
    """

    def __init__(self, path, options, lines, measured, reports, jobs):
        self._path, self._folder = path, path / PARTS
        self._options, self._lines, self._measured = options, lines, measured
        self.validation = validation_sets(options, self._folder)
        self._reports, self._report, self._jobs = reports, reports.outcome, jobs
        self._result = None

    def publish_taken(self):
        """Makes the run directory usable where its teachers were taken."""
        if self._options.teachers_from is not None and not (self._path / "config.json").exists():
            self._publish(self._folder / "forward-1")

    def teacher(self, share, direction, number):
        """Trains a teacher.

        Args:
            share: float. Its epochs, as a share of those of effort 1.
            direction: str. "forward" or "backward".
            number: int from 1. The teachers differ in their seeds.
        """
        options = self._shared()
        options |= {"seed": self._seed(number - 1), "epochs": self._epochs(share)}
        swapped = self._folder / "swapped-tokenizer"
        if direction == "backward":
            for split in _SPLITS:
                source, target = f"{split}_source", f"{split}_target"
                options |= {source: options[target], target: options[source]}
            if options["corpora"] is not None:
                options["corpora"] = self._folder / _SWAPPED
            options["tokenizer"] = swapped if swapped.exists() else options["tokenizer"]
        run = self._train_part(f"{direction}-{number}", options)
        if (direction, number) == ("forward", 1):
            self._publish(run)

    def text(self, forward, backward):
        """Writes the student's text, which the teachers translate.

        Args:
            forward, backward: int. The number of teachers of each direction.
        """
        runs = [
            [self._folder / f"{direction}-{number}" for number in range(1, count + 1)]
            for direction, count in (("forward", forward), ("backward", backward))
        ]
        taught = TaughtText(self._folder / "text", *runs, self._options, self._report)
        texts = self._student_texts()
        is_one = len(self._lines.texts) == 1
        pairs = zip(self._lines.texts, texts, strict=False)
        count = sum(taught.write(*pair, with_alone=is_one) for pair in pairs)
        if len(texts) > len(self._lines.texts):
            count += taught.write_alone(self._lines.texts, texts[-1])
        if self._student_options().get("corpora"):
            texts = [text for text in texts if count_lines(text.source)]
            write_description(self._folder / "text" / _DESCRIPTION, texts, self.validation)
        self._report(f"effort: {counted(count, 'pair')} for the student")

    def _student_texts(self):
        """A `Text` of the student for each text of the training, and for text in one language
        alone where they are several.
        """
        texts, folder = [], self._folder / "text"
        for number, text in enumerate(self._lines.texts, 1):
            name = "student" if len(self._lines.texts) == 1 else f"student-{number}"
            sides = (folder / f"{name}.{side}" for side in SIDES)
            texts.append(Text(*sides, text.direction, text.weight))
        alone = self._options.monolingual_source, self._options.monolingual_target
        if len(texts) > 1 and any(alone):
            sides = (folder / f"student-alone.{side}" for side in SIDES)
            texts.append(Text(*sides, texts[0].direction))
        return texts

    def _student_options(self):
        """The options that name the text of the student."""
        if self._shared()["corpora"] is not None:
            return {"corpora": self._folder / "text" / _DESCRIPTION}
        [text] = self._student_texts()
        return {"train_source": text.source, "train_target": text.target}

    def student(self, share):
        """Trains the student, which has a preset of its own or is as its teachers.

        Args:
            share: float. The pairs that it sees, as a share of those that effort 1 sees.
        """
        options = self._shared() | self._student_options()
        if self._options.student is not None:
            model_options = self._options.model_options
            options |= {"preset": self._options.student, "model_options": model_options}
        if options["dropout"] is None:
            rate, _ = choose_dropout(options["preset"], self._lines.num_pairs)
            options["dropout"] = max(_LEAST_DROPOUT, round(rate - _LESS_DROPOUT, 2))
        seen = share * self._measured["epochs"] * self._lines.pairs_of_epoch
        options["epochs"] = max(1, round(seen / Lines(self._student_texts()).pairs_of_epoch))
        self._publish(self._train_part("student", options))

    def last(self, number):
        """Trains the student on the given pairs alone, since models wrote most of the others.

        Args:
            number: int from 1. Such trainings differ in their seeds.
        """
        options = self._shared()
        learnt = read_config(self._folder / "student")["training"]
        options |= dict.fromkeys((*OF_THE_MODEL, "precision", "dropout", "warmup_steps"))
        options |= {
            "start_from": self._folder / "student",
            "seed": self._seed(number),
            "epochs": self._epochs(LAST_EPOCHS),
            "learning_rate": _LAST_RATE * learnt["learning_rate"],
            "cooldown": _LAST_COOLDOWN,
            "guided_alignment": self._options.guided_alignment,
            "choose_search": False,  # The last part does that, with the time of all parts.
        }
        if options["ema"] is None:
            steps = options["epochs"] * self._measured["steps_per_epoch"]
            options["ema"] = choose_ema(min(steps, options["steps"] or steps))
        self._train_part(f"last-{number}", options)

    def choose(self, count):
        """Takes the part that translates the validation set best, for the run directory.

        Candidates are the last trainings and their mean, the student and, if that has no preset of
        its own, the first teacher, which is what effort 1 would be; with guided alignment the last
        trainings alone. Without a validation set the mean is taken, or the last training if there
        is one alone.

        Args:
            count: int. The number of last trainings.
        """
        runs = [self._folder / f"last-{number}" for number in range(1, count + 1)]
        if count > 1:
            model, tokenizer, config = average_runs(runs)
            config = without_calibration(config)
            average = save_run(self._folder / "average", model, tokenizer, config)
            shutil.copyfile(runs[0] / "history.csv", average / "history.csv")
            runs.insert(0, average)
        best = runs[0]
        if self.validation:
            if self._options.guided_alignment is None:  # Only last trainings learn it.
                runs.append(self._folder / "student")
                if self._options.student is None:
                    runs.append(self._folder / "forward-1")
            scores = {run: self._bleu(run) for run in runs}
            best = max(scores, key=scores.get)
            parts = ", ".join(f"{run.name} {score:.2f}" for run, score in scores.items())
            self._report(f"effort: BLEU on the validation set: {parts}; the run has {best.name}")
        self._publish(best)

    def _bleu(self, run):
        translator, scores = Translator.load(run), []
        for text in self.validation:
            sources, references = validation_lines(text)
            results = text.of(translator).translate(sources, batch_size=256)
            translations = [result.text for result in results]
            scores.append(corpus_bleu(translations, references, suitable_tokenizer(references)))
        return statistics.mean(scores)

    def search(self, epochs):
        """Chooses the search of the run on the validation set.

        Args:
            epochs: float. The epochs of effort 1 that take as long as the whole training, since the
                choice takes a share of that time.
        """
        tokenizer = Tokenizer.load(self._folder / "tokenizer")
        length = read_config(self._folder / "forward-1")["training"]["max_length"]
        sources = self._folder / "last-1", self._options, self._lines, tokenizer, length
        text = TextOfTraining(*sources, SILENT, Hosts())
        train, *valid = (
            ParallelDataset.from_prepared(corpus)
            for corpus in (text.corpus, *(text.prepared("validation", v) for v in self.validation))
        )
        steps = round(epochs * train.steps_per_epoch)
        sets = train, list(zip(self.validation, valid, strict=True)), text.lengths
        settle_search(self._path, self._options, *sets, steps, self._report)

    def result(self):
        """The `TrainResult` of the last training, with the path of the run directory."""
        if self._result is not None:
            return self._result._replace(path=self._path)
        # All parts were made before.
        return TrainResult(self._path, last_step(self._path), {}, None)

    def _shared(self):
        options = shared_options(self._folder, self._options)
        return {**options, "batch_tokens": self._measured["batch_tokens"]}

    def _seed(self, number):
        return ((self._options.seed or 0) + number) % 2**31

    def _epochs(self, share):
        return max(1, round(share * self._measured["epochs"]))

    def _train_part(self, name, options):
        options, run = dict(options), self._folder / name
        if options["log_dir"] is not None:
            options["log_dir"] = pathlib.Path(options["log_dir"]) / name
        is_taught = name.startswith(("student", "last"))
        if is_taught and options["select"] is None and self.validation:
            # The likelihood of what people wrote falls while a student learns to write as its
            # teachers do.
            options["select"] = "bleu"
        options = {key: value for key, value in options.items() if value is not None}
        resume = (run / "config.json").exists()
        if resume:
            write_paths(run, options)  # The whole folder may have been moved since.
        self._result = self._jobs.train(run, options, resume, self._reports_of(name))
        return run

    def _reports_of(self, name):
        """The `Reports` of a part. The settings of further parts are those of the first."""

        def outcome(sentence):
            self._report(f"{name}: {sentence}" if self._jobs.count > 1 else sentence)

        first = "forward-1" if self._options.teachers_from is None else "student"
        setting = outcome if name == first else lambda sentence: None
        return Reports(setting, outcome, self._reports.progress)

    def _publish(self, run):
        """Copies the run of a part to the run directory, so that it can be used from then on."""
        config = {**read_config(run), "training": read_plan(self._folder), "part": run.name}
        if REASON not in config:
            # They were chosen for the model that the run began with.
            config = {key: config[key] for key in config if key not in _SEARCHES}
        copy_run(run, self._path, config)
