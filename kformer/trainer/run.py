"""`train_run`: a whole training, from two text files to a run directory."""

import contextlib
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import NamedTuple

import keras

from kformer.data import ParallelDataset
from kformer.data.order import default_max_shapes
from kformer.evaluation.callback import TranslationQuality
from kformer.models.lora import describe_lora
from kformer.saving.checkpoints import (
    TrainingState,
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
)
from kformer.saving.model_files import zip_fault
from kformer.saving.run_directory import finish_saving, load_run, read_config
from kformer.text import Tokenizer
from kformer.trainer.data import (
    TextOfTraining,
    check_same_batches,
    check_teachers,
    count_pairs,
    load_teachers,
    validation_lines,
)
from kformer.trainer.interruption import Interruption
from kformer.trainer.made_for import check_made_for
from kformer.trainer.resume import (
    inherited,
    past_validations,
    resume_options,
    stored_config,
    write_config,
)
from kformer.trainer.search import REASON, settle_search
from kformer.trainer.tokenizer import provide_tokenizer
from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.checkpoint import Checkpoint
from kformer.training.callbacks.general_validation import GeneralValidation
from kformer.training.callbacks.history import StepHistory
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.callbacks.tensorboard import TensorBoardLog
from kformer.training.defaults import (
    CourseFacts,
    TextFacts,
    count_steps,
    settle_course,
    settle_text,
    warn_of_few_pairs,
)
from kformer.training.devices import check_updates, distribution
from kformer.training.fitting import fit_from
from kformer.training.new_model import compile_model, describe_model, make_model
from kformer.training.options import TrainOptions
from kformer.translating.word_alignment import ALIGNMENT, guided_source
from kformer.utils import files
from kformer.utils.types import Path
from kformer_cli.declarations import TRAINING, default_of


class TrainResult(NamedTuple):
    """The result of `train_run`.

    Attributes:
        path: `pathlib.Path`. The run directory.
        steps: int. The steps of the training so far.
        history: dict of str to list. The metrics at the end of each epoch trained in this call.
        best: dict or `None`. The `epoch` of the saved model, and the `nll`, `mixed_nll` or `bleu`
            by which it was chosen; `None` without a validation set.
    """

    path: pathlib.Path
    steps: int
    history: dict[str, list[float]]
    best: dict[str, float] | None


def train_run(
    output: Path,
    *,
    resume: bool = False,
    devices: int | str | None = None,
    model_parallel: int | None = None,
    report: Callable[[str], object] | None = None,
    show_progress: bool = True,
    **options,
) -> TrainResult:
    """Trains a translation model from text files into a run directory, or resumes a training.

    It trains a tokenizer, prepares the text (in `output/data/`) and trains the model with
    `model.fit`. At the end of each epoch it replaces `model.keras`: with a validation set by the
    best model so far (by `select`), else by the latest. So `Translator.load(output)` can load the
    run while it is still in training.

    A training that was killed can be resumed from its latest checkpoint, with exactly the same
    losses. Ctrl-C and SIGTERM end it after the current step, with a checkpoint.

    Args:
        output: path. The run directory.
        resume: bool, default False. Whether to resume the training in `output`. If there is none
            yet, a new one begins.
        devices: int, "all" or `None`, default `None`. The devices that share each batch, as of
            `kformer.training.distribution`; `None` for one. A resumed training may have others.
        model_parallel: int or `None`, default `None`. The devices that share a model, as there;
            `None` for one.
        report: function or `None`, default `None`. Takes each sentence about the set-up; `None`
            prints them on standard error.
        show_progress: bool, default True. Whether to show steps, rate and time left on standard
            error.
        **options: attributes of `TrainOptions`.

    Returns:
        `TrainResult`.

    Raises:
        FileNotFoundError: a file is missing.
        TypeError: there is no such option.
        ValueError: an option, a file or the run directory cannot be used. The message has the
            reason and a remedy.
        TrainingInterrupted: Ctrl-C or SIGTERM ended the training. It is a `KeyboardInterrupt`.

    Example:
        ```python
        result = kformer.trainer.train_run(
            "runs/small",
            train_source="train.en",
            train_target="train.de",
            valid_source="val.en",
            valid_target="val.de",
            model_options={"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32},
            steps=2,
        )
        print(result.steps)  # 2
        ```
    """
    path = pathlib.Path(output)
    report = report or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := set(given) - set(TRAINING):
        raise TypeError(
            f"Unknown training option {', '.join(sorted(unknown))}; kformer.trainer.TrainOptions "
            "lists them."
        )
    scope = contextlib.nullcontext()
    if devices not in (None, 1) or model_parallel not in (None, 1):
        scope = distribution(devices or "all", model_parallel or 1).scope()
    with files.locked(path), scope:
        finish_saving(path)
        for folder in (path, path / "data"):
            files.remove_remains(folder)
        return _train(path, given, resume, report, show_progress)


def _train(path, given, resume, report, show_progress):
    config = stored_config(path, resume)
    if config is not None:
        options = resume_options(config["training"], given, path)
        options.check_whole()
        check_updates(options)
        setup = _Setup(path, options, inherited(config), count_pairs(options), True, report)
        return _fit(path, setup.prepare(), report, show_progress)
    options = TrainOptions(**given)
    options.check_whole()
    check_updates(options)
    if resume:
        report(f"resume: {path} holds no training, so a new one begins")
    num_pairs = count_pairs(options)
    if not options.start_from and (warning := warn_of_few_pairs(num_pairs)):
        report(warning)
    kept = inherited(read_config(options.start_from) if options.start_from else {})
    kept.pop(REASON, None)  # It is about the other training.
    path.mkdir(parents=True, exist_ok=True)
    try:
        # Before all else, so that the training can be resumed even if it is killed early.
        write_config(path, options, kept)
        ready = _Setup(path, options, kept, num_pairs, False, report).prepare()
    except Exception:
        # So that the same command works once the error is corrected.
        shutil.rmtree(path, ignore_errors=True)
        raise
    return _fit(path, ready, report, show_progress)


class _Ready(NamedTuple):
    """A prepared training."""

    options: TrainOptions
    model: keras.Model
    train: ParallelDataset
    valid: ParallelDataset | None
    general: ParallelDataset | None
    state: TrainingState | None
    total_steps: int


class _Setup:
    """Makes or loads what a training needs.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        kept: dict, from `inherited`. Further entries of `config.json`.
        num_pairs: int. The lines of the training text.
        resumes: bool. Whether the training in the run directory is resumed.
        report: function that takes a sentence.
    """

    def __init__(self, path, options, kept, num_pairs, resumes, report):
        self._path, self._options, self._kept = path, options, kept
        self._num_pairs, self._resumes, self._report = num_pairs, resumes, report

    def prepare(self):
        """Prepares the training, and writes its settings to `config.json`. Returns `_Ready`."""
        path, options = self._path, self._options
        model = state = start = shared = None
        if self._resumes and (checkpoint := latest_checkpoint(path)):
            model, state = load_checkpoint(checkpoint)
            keep = options.keep or default_of("keep")
            remove_old_checkpoints(path, state.step, keep)  # In case the last save was killed.
        elif self._resumes and any((path / "checkpoints").glob("step-*")):
            raise ValueError(
                f"No checkpoint in {path / 'checkpoints'} is whole: restore one, or remove that "
                "folder to train from the beginning."
            )
        elif options.start_from:
            start, shared, _ = load_run(options.start_from)
        teachers = load_teachers(path, options)
        if teachers and shared is None:
            shared = teachers[0][1]
        tokenizer = provide_tokenizer(
            path, options, shared, self._resumes, self._num_pairs, self._report
        )
        check_teachers(options, teachers, tokenizer)
        teachers = [teacher for teacher, *_ in teachers]
        datasets = self._read_text(tokenizer, model or start, teachers, state)
        train = datasets[0]
        del teachers
        if model is None:
            model = make_model(self._options, tokenizer, start)
            self._report(describe_model(model, self._options))
            if model.lora is not None:
                self._report(describe_lora(model))
            check_made_for(self._options.made_for, model, tokenizer)
        if options.guided_alignment:
            self._kept[ALIGNMENT] = guided_source(model)
        facts = CourseFacts(train.steps_per_epoch, model.hidden_dim, **self._facts(state))
        options = self._settle(settle_course(self._options, facts))
        total_steps = count_steps(options.steps, options.epochs, train.steps_per_epoch)
        if state is None:
            compile_model(model, options, total_steps)
            if self._resumes:
                self._report("resume: there is no checkpoint yet, so the training begins at step 0")
        else:
            where = f"at step {state.step:,} of {total_steps:,}, in epoch {state.epoch + 1}"
            self._report(f"resume: {where}")
        write_config(path, options, self._kept)
        return _Ready(options, model, *datasets, state, total_steps)

    def _read_text(self, tokenizer, trained, teachers, state):
        """Settles the options for the text, and makes the datasets."""
        options = self._options
        max_length = options.max_length or default_of("max_length")
        if trained is not None:
            max_length = trained.max_length
        text = TextOfTraining(self._path, options, tokenizer, max_length, self._report)
        if state is not None:
            text.check_same(state)
        num_tokens = text.corpus.longer_side
        facts = TextFacts(
            self._num_pairs,
            num_tokens,
            max_shapes=default_max_shapes(),
            is_joint=tokenizer.joint,
            **self._facts(state),
        )
        datasets = text.datasets(self._settle(settle_text(options, facts)), teachers)
        if state is not None:
            check_same_batches(datasets[0], state, self._path)
        return datasets

    def _facts(self, state):
        options = self._options
        return {
            "is_new": options.start_from is None,
            "is_validated": options.valid_source is not None,
            "resumed": state is not None,
        }

    def _settle(self, settled):
        for reason in settled.reasons.values():
            self._report(reason)
        self._options = settled.options
        return settled.options


def _fit(path, ready, report, show_progress):
    options, model, train, valid, general, state, total_steps = ready
    measure = "mixed_nll" if general else options.select or default_of("select")
    validations = past_validations(path, measure, state)
    best_model = BestModel(path, measure, options.patience or None, validations)
    if state is not None and state.step >= total_steps:
        report(
            f"The training has reached its end, step {total_steps:,}, already: give more epochs or "
            "steps to go on."
        )
    steps = options.steps
    if best_model.has_waited:
        steps = total_steps = state.step
    history = _history(path, ready)
    count_tokens = history.count_tokens
    callbacks = _callbacks(path, ready, history, best_model)
    progress = TrainingProgress(total_steps, resume_from=state, count_tokens=count_tokens)
    # The checkpoint is the last of the callbacks.
    with progress, Interruption(callbacks[-1], report) as interruption:
        callbacks += [progress, interruption] if show_progress else [interruption]
        metrics = fit_from(
            model,
            train,
            state,
            epochs=options.epochs,
            steps=steps,
            callbacks=callbacks,
            validation_data=valid,
            validation_freq=options.valid_every,
            verbose=0,
        )
    if best_model.has_waited:
        waited = f"{options.patience} validations in a row were no better"
        report(f"stopped at step {history.step:,}: {waited}")
    if not best_model.path.exists():
        best_model.save(model)
    elif fault := zip_fault(best_model.path):
        raise ValueError(
            f"{best_model.path} is damaged: {fault}. Restore it, or remove it and resume again, "
            "which writes the model of the latest checkpoint."
        )
    if best_model.best is not None:
        value = f"a validation {measure} of {best_model.value:.4f}"
        report(f"best: epoch {best_model.best['epoch']}, with {value}, is in model.keras")
    if state is None or history.step > state.step or REASON not in read_config(path):
        settle_search(path, options, train, valid, history.step, report)
    return TrainResult(path, history.step, metrics, best_model.best)


def _history(path, ready):
    def count_tokens(step):
        return ready.train.count_tokens(step - 1)

    return StepHistory(path, resume_from=ready.state, count_tokens=count_tokens)


def _callbacks(path, ready, history, best_model):
    options, train, state = ready.options, ready.train, ready.state
    checkpoint = Checkpoint(
        path,
        every=options.checkpoint_every,
        keep=options.keep,
        resume_from=state,
        history=history,
        data={
            "corpus": train.corpus.folder.name,
            "batch_tokens": train.batch_tokens,
            "seed": train.seed,
        },
    )
    callbacks = [history, best_model, checkpoint]
    if options.log_dir:
        count = history.count_tokens
        callbacks.insert(0, TensorBoardLog(options.log_dir, resume_from=state, count_tokens=count))
    if ready.general is not None:
        callbacks.insert(0, GeneralValidation(ready.general, options.general_share))
    measures = options.quality_every or (options.log_dir and options.valid_source)
    if options.select == "bleu" or measures:
        quality = TranslationQuality(
            Tokenizer.load(path / "tokenizer"),
            *validation_lines(options),
            every=options.quality_every,
            epochs=options.valid_every,
            log_dir=options.log_dir,
            resume_from=state,
        )
        callbacks.insert(0, quality)
    return callbacks
