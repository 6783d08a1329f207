"""Checks, counts and prepares the text of a training, and makes batches of it."""

import itertools
import pathlib

import numpy as np

from kformer.data import MixedCorpus, ParallelDataset, SoftTargets, TokenAlignments, align_words
from kformer.data.corpus import SIDES, PreparedCorpus
from kformer.data.preparation import prepare_cached, prepared_name
from kformer.data.word_alignment import pharaoh, read_pharaoh
from kformer.distillation.soft_targets import soft_targets
from kformer.saving.run_directory import load_run
from kformer.trainer.lines import Text, is_as_it_is, lines_of, validation_sets
from kformer.utils.backend import devices_in_use
from kformer.utils.files import replacing
from kformer.utils.lines import read_lines
from kformer.utils.progress import Progress
from kformer_options.names import named
from kformer_options.text_files import (
    check_readable,
    check_rereadable,
    check_same_length,
    count_lines,
)
from kformer_options.training import TEXTS, default_of
from kformer_options.wording import counted

# The folder of the teachers' predictions for the training text, within a run directory.
_SOFT_TARGETS = pathlib.Path("data", "soft-targets")
# A validation set is small, so few shapes of batches are enough.
_VALIDATION_SHAPES = 4


def count_pairs(options, path=None):
    """Checks all text files before the long work, and counts the lines of the training text.

    Args:
        options: `TrainOptions`.
        path: `pathlib.Path` or `None`, default `None`. The run directory of a training that may
            have its text already.

    Returns:
        int. The number of pairs, `None` where the text must be made lines of two files first.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, the two sides differ in length, or text in one language is not
            UTF-8.
    """
    texts = [[getattr(options, name) for name in names] for names in TEXTS[:2]]  # General text.
    texts = [paths for paths in texts if None not in paths]
    texts += [[text.source, text.target] for text in validation_sets(options, path)]
    is_counted = is_as_it_is(options, path)
    texts += [[options.train_source, options.train_target]] if is_counted else []
    for paths in texts:
        for text, side in zip(paths, SIDES, strict=True):
            check_readable(text, side)
            check_rereadable(text, side)
        counts = list(map(count_lines, paths))
        if 0 in counts:
            text = paths[counts.index(0)]
            raise ValueError(f"The file '{text}' is empty; there is nothing to train on.")
        count = check_same_length(f"'{paths[0]}'", counts[0], f"'{paths[1]}'", counts[1])
    for text in (options.monolingual_source, options.monolingual_target):
        if text is not None:
            check_rereadable(text, "monolingual text")
            read_lines(text, "monolingual")  # Now, and not after the teachers' trainings.
    return count if is_counted else None


def validation_lines(text):
    """Returns the source lines and the target lines of a validation set.

    Args:
        text: `Text`.

    Returns:
        List of two lists of str.
    """
    return [read_lines(path, "validation") for path in (text.source, text.target)]


def load_teachers(path, options, hosts):
    """Loads the teachers, if their predictions must still be computed.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        hosts: `Hosts`.

    Returns:
        List of tuples (model, tokenizer, config), empty if there are no teachers or the run
        directory already has their predictions.

    Raises:
        ValueError: there are several hosts.
    """
    if (path / _SOFT_TARGETS).exists():
        return []
    if options.teachers and hosts.count > 1:
        raise ValueError(
            "Teachers are asked on one host alone: begin the training on one, interrupt it once it "
            f"has its first checkpoint, and go on with {named('resume')} on all hosts."
        )
    return [load_run(run) for run in options.teachers or ()]


def check_teachers(options, teachers, tokenizer):
    """Checks that the teachers have the model's tokenizer.

    Args:
        options: `TrainOptions`.
        teachers: list of tuples, from `load_teachers`.
        tokenizer: `Tokenizer` of the model.

    Raises:
        ValueError: a teacher has another tokenizer.
    """
    for run, (_, other, _) in zip(options.teachers or (), teachers, strict=False):
        if not tokenizer.writes_like(other):
            raise ValueError(
                f"The teacher {run} has another tokenizer than the model: a teacher and its "
                "student need one (kformer train --tokenizer)."
            )


def data_of(train, valid, general):
    """What a checkpoint keeps of the data, so that a training goes on with the same.

    The name of the folder of a prepared text is a digest of its content.

    Args:
        train: `ParallelDataset` of the training.
        valid: list of those of the validation.
        general: that of the general validation, or `None`.

    Returns:
        dict.
    """
    return {
        "batch_tokens": train.batch_tokens,
        "seed": train.seed,
        "corpus": train.corpus.folder.name,
        "validation": " ".join(dataset.corpus.folder.name for dataset in valid) or None,
        "general_validation": general and general.corpus.folder.name,
    }


def check_same_data(data, state, path):
    """Checks that the data is the same as at the beginning of the training.

    Args:
        data: dict, as of `data_of`, or some of its entries.
        state: `TrainingState` of the checkpoint.
        path: `pathlib.Path` of the run directory.

    Raises:
        ValueError: the checkpoint has another text, seed or batch size than the config of the run
            leads to, or was validated on another set.
    """
    for name, now in data.items():
        if (former := state.data.get(name)) == now:
            continue
        if name in ("batch_tokens", "seed"):
            raise ValueError(
                f"The training in {path} began with {name}={former}, but its config.json now leads "
                f"to {now}: restore config.json."
            )
        what = "text" if name == "corpus" else f"{name.replace('_', ' ')} set"
        raise ValueError(
            f"The {what} in the files of {path} is not the {what} that its training began with: "
            "put it back, or begin anew."
        )


def check_alignments(options):
    """Checks the file of a training's alignments, if there is one, before the long work.

    Args:
        options: `TrainOptions`, of a training on two files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the alignments do not fit the training text.
    """
    if options.guided_alignment not in (None, "auto"):
        read_pharaoh(options.guided_alignment, *_sides(lines_of(None, options, None).texts))


def _sides(texts):
    """The lines of both sides of all texts."""
    return [
        [line for text in texts for line in read_lines(getattr(text, side), side)] for side in SIDES
    ]


def lengths_of(corpora):
    """Returns the tokens of all pairs of corpora, as the arguments of `length_limits`."""
    source, target = (np.concatenate([each.lengths(side) for each in corpora]) for side in SIDES)
    return source, target.astype("int64") - 1


class TextOfTraining:
    """The prepared text of a training, from which its datasets are made.

    Args:
        path: `pathlib.Path` of the run directory. Its folder `data` keeps the prepared text.
        options: `TrainOptions`.
        lines: `Lines`.
        tokenizer: `Tokenizer`.
        max_length: int. The longest sequence in tokens.
        reports: `Reports`.
        hosts: `Hosts`. The first prepares the text, the others read it; each reads the files, too,
            to see that they are the same.

    Raises:
        ValueError: a host has another text.
    """

    def __init__(self, path, options, lines, tokenizer, max_length, reports, hosts):
        self._path, self._texts, self._tokenizer, self._hosts = path, lines.texts, tokenizer, hosts
        self._max_length, self._reports = max_length, reports
        weights = [text.weight for text in lines.texts]
        corpora = [self.prepared("training", text) for text in lines.texts]
        self._direction = lines.directions[0] if lines.directions else None
        if options.general_source is not None:
            general = Text(options.general_source, options.general_target, self._direction)
            general = self.prepared("general", general)
            share = options.general_share or default_of("general_share")
            pairs = [weight * c.num_pairs for weight, c in zip(weights, corpora, strict=True)]
            corpora.append(general)
            weights.append(sum(pairs) / general.num_pairs * share / (1 - share))
        self._corpora = corpora
        self._has_languages = bool(tokenizer.languages and lines.directions)
        if weights == [1]:
            [self.corpus] = corpora
        else:
            self.corpus = MixedCorpus(corpora, weights, options.seed or 0)
            self._report_mixture(options.general_source is not None)

    def _report_mixture(self, has_general):
        *_, general = corpora = self.corpus.corpora
        if has_general:
            sample = f"a new sample of {general.num_pairs:,} in every epoch"
            self._reports.setting(f"general: {counted(self.corpus.counts[-1], 'pair')}, {sample}")
        if len(corpora) > 1 + has_general:
            counts = [f"{count:,}" for count in self.corpus.counts[: len(corpora) - has_general]]
            self._reports.setting(f"corpora: {' + '.join(counts)} pairs in every epoch")

    def prepared(self, what, text):
        """Returns the `PreparedCorpus` of a `Text`; what it is, for messages."""
        text = text.source, text.target, text.of(self._tokenizer)
        folder = self._path / "data"
        progress = Progress(what="pairs prepared", name="data", report=self._reports.outcome)
        settings = {"report": self._reports.setting, "progress": progress}
        length, hosts = self._max_length, self._hosts
        corpus = hosts.first(lambda: prepare_cached(*text, folder, max_length=length, **settings))
        if hosts.count == 1:
            return corpus
        name = hosts.each(lambda: corpus.folder.name if corpus else prepared_name(*text, length))
        hosts.check_same({f"{what} text": name})
        return hosts.each(lambda: corpus or PreparedCorpus.load(folder / name))

    def lengths(self):
        """Returns the tokens of the training pairs by their target language, or by `None` if the
        model has one direction: tuples of two int arrays, as of `lengths_of`.
        """
        corpora = {}
        # General text comes last, and is of no language that has a name.
        for corpus, text in zip(self._corpora, self._texts, strict=False):
            language = text.target_language if self._has_languages else None
            corpora.setdefault(language, []).append(corpus)
        if not self._has_languages:
            corpora = {None: self._corpora}
        return {language: lengths_of(each) for language, each in corpora.items()}

    def datasets(self, options, validation, teachers):
        """Makes the datasets for training and validation.

        Args:
            options: `TrainOptions`, from `settle_text`.
            validation: list of `Text`.
            teachers: list of models whose predictions must still be computed.

        Returns:
            Tuple of the `ParallelDataset` for training; a list of those for validation, one for
            each text; and the one for general validation, or `None`.
        """
        settings = {"batch_tokens": options.batch_tokens, "packed": options.packed}
        settings["num_devices"] = devices_in_use()
        max_shapes = options.max_shapes or 1  # Packed batches all have one shape.
        train = ParallelDataset.from_prepared(
            self.corpus,
            max_shapes=max_shapes,
            # The batches need a seed even if the dropout of a trained model keeps its own.
            seed=options.seed or 0,
            # Text of one direction alone is prepared for its languages.
            tokenizer=self._texts[0].of(self._tokenizer),
            subword_sampling=options.subword_sampling,
            word_dropout=options.word_dropout,
            soft_targets=self._soft_targets(options, teachers) if options.teachers else None,
            alignments=self._alignments(options) if options.guided_alignment else None,
            **settings,
        )
        self._reports.outcome(f"data: {train.summary()}")
        settings |= {"max_shapes": min(max_shapes, _VALIDATION_SHAPES), "shuffle": False}

        def dataset(what, text):
            return ParallelDataset.from_prepared(self.prepared(what, text), **settings)

        valid, general = [dataset("validation", text) for text in validation], None
        if options.general_valid_source is not None:
            sides = options.general_valid_source, options.general_valid_target
            text = Text(*sides, self._direction)
            general = dataset("general validation", text)
        return train, valid, general

    def _alignments(self, options):
        """The aligned tokens of the training text. Its aligned words are kept in the run, so that
        a resumed training has the same.
        """
        sides = _sides(self._texts)
        # In Pharaoh's format. The name of the prepared text is a digest of its content.
        path = self._path / "data" / f"alignments-{self.corpus.folder.name}.txt"

        def align():
            if path.exists():
                return
            if options.guided_alignment == "auto":
                count = counted(len(sides[0]), "pair")
                self._reports.setting(f"alignment: a statistical aligner reads {count} ...")
                words = self._aligned_words()
            else:
                words = read_pharaoh(options.guided_alignment, *sides)
            with replacing(path) as aside:
                aside.write_text("".join(f"{pharaoh(each)}\n" for each in words), encoding="utf-8")

        self._hosts.first(align)
        words = read_pharaoh(path, *sides)
        alignments = TokenAlignments(self.corpus.stored, self._tokenizer, *sides, words)
        share = alignments.num_aligned / self.corpus.stored.num_target_tokens
        self._reports.setting(f"alignment: {share:.0%} of the target tokens have a source token")
        return alignments

    def _aligned_words(self):
        """Aligns the words of each direction by themselves."""
        words = {}
        for direction in {text.direction for text in self._texts}:
            texts = [text for text in self._texts if text.direction == direction]
            words[direction] = iter(align_words(*_sides(texts)))
        return [
            each
            for text in self._texts
            for each in itertools.islice(words[text.direction], count_lines(text.source))
        ]

    def _soft_targets(self, options, teachers):
        """The teachers' predictions for the training text, computed once for each training."""
        folder = self._path / _SOFT_TARGETS
        if teachers:
            count = f"{len(teachers)} teachers" if len(teachers) > 1 else "the teacher"
            tokens = counted(self.corpus.num_target_tokens, "token")
            report = self._reports.setting
            report(f"teachers: asking {count} about {tokens} ...")
            progress = Progress(what="pairs looked at", name="teachers", report=report)
            soft_targets(teachers, self.corpus.stored, folder, progress=progress)
        weight, rest = options.teacher_weight, round(1 - options.teacher_weight, 6)
        shares = f"{weight:g} of each is what the teachers expect, {rest:g} the given word"
        self._reports.setting(f"targets: {shares}")
        return SoftTargets(folder, self.corpus.stored)
