"""`train_run`: a whole training, from two text files to a run directory."""

import contextlib
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from kformer.data import ParallelDataset
from kformer.data.order import default_max_shapes
from kformer.data.own_rows import RowsOfHost
from kformer.models.lora import describe_lora
from kformer.saving.checkpoints import (
    TrainingState,
    fingerprint,
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
)
from kformer.saving.model_files import zip_fault
from kformer.saving.run_directory import PATH_OPTIONS, finish_saving, load_run, read_config
from kformer.text import Tokenizer
from kformer.trainer.callbacks import best_model, training_callbacks
from kformer.trainer.data import (
    TextOfTraining,
    check_same_data,
    check_teachers,
    count_pairs,
    load_teachers,
)
from kformer.trainer.effort import has_parts, train_parts
from kformer.trainer.interruption import Interruption
from kformer.trainer.jobs import check_jobs
from kformer.trainer.made_for import check_made_for
from kformer.trainer.result import TrainResult
from kformer.trainer.resume import (
    inherited,
    past_validations,
    resume_options,
    stored_config,
    write_config,
)
from kformer.trainer.search import REASON, settle_search
from kformer.trainer.tokenizer import provide_tokenizer
from kformer.training.averages import averaged_weights
from kformer.training.callbacks.progress import TrainingProgress
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
from kformer.training.hosts import check_devices_of_hosts, check_shared, join_hosts
from kformer.training.new_model import compile_model, describe_model, make_model
from kformer.training.options import TrainOptions, check_options
from kformer.translating.word_alignment import ALIGNMENT, guided_source
from kformer.utils import files
from kformer.utils.types import Path
from kformer_options.names import named
from kformer_options.training import TRAINING, default_of


def train_run(
    output: Path,
    *,
    resume: bool = False,
    devices: int | str | None = None,
    model_parallel: int | None = None,
    hosts: Sequence[str] | str | None = None,
    host_index: int | None = None,
    jobs: int = 1,
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
            `kformer.training.distribution`; `None` for one, or for all with `model_parallel`. A
            resumed training may have others.
        model_parallel: int or `None`, default `None`. The devices that share a model, as there;
            `None` for one.
        hosts: list of str, str or `None`, default `None`. The addresses of all hosts that train
            together, each `HOST` or `HOST:PORT`, this one included; the others meet at the first.
            All call this function with the same arguments but `host_index`, in new processes, on
            JAX. "auto" reads the variables of Slurm, of `torchrun`-like launchers or
            `KFORMER_HOSTS`. `None` trains on this host alone. All devices of each host train. The
            first host writes `output`, which all must see.
        host_index: int or `None`, default `None`. The number of this host among `hosts`, from 0;
            `None` with "auto".
        jobs: int, default 1. The trainings of an effort of 2 or 3 that run at once, each in a
            process of its own with an equal share of the cores, and on the same GPU if there is
            one.
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
        ValueError: an option, a file or the run directory cannot be used, or a host has another
            than the first. The message has the reason and a remedy.
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
    check_devices_of_hosts(hosts, devices, model_parallel)
    others = {"devices": devices, "model_parallel": model_parallel, "hosts": hosts}
    check_jobs(jobs, has_parts(path, given), others)
    joined = join_hosts(hosts, host_index)
    if not joined.is_first:
        report, show_progress = (lambda sentence: None), False
    scope = contextlib.nullcontext()
    if hosts:
        devices = "all"
    if devices not in (None, 1) or model_parallel not in (None, 1):
        scope = distribution(devices or "all", model_parallel or 1).scope()
    with joined.together(), scope, contextlib.ExitStack() as stack:
        joined.first(lambda: _take(path, stack))
        check_shared(path, joined)
        if has_parts(path, given):
            joined.check_alone("An effort of 2 or 3")
            return train_parts(path, given, resume, report, show_progress, train_run, jobs)
        ready = _prepared(path, given, resume, joined, report)
        own_folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return _fit(path, ready, joined, own_folder, report, show_progress)


def _take(path, stack):
    """Locks the run directory, and removes what killed processes left there."""
    stack.enter_context(files.locked(path))
    finish_saving(path)
    for folder in (path, path / "data"):
        files.remove_remains(folder)


def _prepared(path, given, resume, hosts, report):
    """Begins a training, or finds the one to resume. Returns `_Ready`."""

    def read():
        config = stored_config(path, resume)
        options = (
            TrainOptions(**given)
            if config is None
            else resume_options(config["training"], given, path)
        )
        check_options(options)
        check_updates(options)
        return config, options, count_pairs(options)

    config, options, num_pairs = hosts.each(read)
    hosts.check_same({f"training in {path}": config is not None, **_facts(options)})
    if config is not None:
        return _Setup(path, options, inherited(config), num_pairs, True, hosts, report).prepare()
    if resume:
        report(f"resume: {path} holds no training, so a new one begins")
    if not options.start_from and (warning := warn_of_few_pairs(num_pairs)):
        report(warning)
    kept = inherited(read_config(options.start_from) if options.start_from else {})
    kept.pop(REASON, None)  # It is about the other training.

    def begin():
        # Before all else, so that the training can be resumed even if it is killed early.
        path.mkdir(parents=True, exist_ok=True)
        write_config(path, options, kept)

    try:
        hosts.first(begin)
        return _Setup(path, options, kept, num_pairs, False, hosts, report).prepare()
    except Exception:
        # So that the same command works once the error is corrected.
        if hosts.is_first:
            for entry in path.iterdir():  # Not the folder itself, which may be a link.
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != files.LOCK_FILE:
                    entry.unlink()
        raise


def _facts(options):
    """What options are the same on all hosts: all but paths, whose content is compared."""
    return {named(name): getattr(options, name) for name in TRAINING if name not in PATH_OPTIONS}


class _Ready(NamedTuple):
    """A prepared training; `kept` has the further entries of its `config.json`."""

    options: TrainOptions
    model: keras.Model
    train: ParallelDataset
    valid: ParallelDataset | None
    general: ParallelDataset | None
    state: TrainingState | None
    total_steps: int
    kept: dict


class _Setup:
    """Makes or loads what a training needs.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        kept: dict, from `inherited`. Further entries of `config.json`.
        num_pairs: int. The lines of the training text.
        resumes: bool. Whether the training in the run directory is resumed.
        hosts: `Hosts`. The first writes, the others read.
        report: function that takes a sentence.
    """

    def __init__(self, path, options, kept, num_pairs, resumes, hosts, report):
        self._path, self._options, self._kept = path, options, kept
        self._num_pairs, self._resumes = num_pairs, resumes
        self._hosts, self._report = hosts, report

    def prepare(self):
        """Returns `_Ready`."""
        path, options, hosts = self._path, self._options, self._hosts
        model = state = start = shared = None
        if checkpoint := hosts.each(self._checkpoint):
            model, state = load_checkpoint(checkpoint)
            keep = options.keep or default_of("keep")
            if hosts.is_first:  # In case the last save was killed.
                remove_old_checkpoints(path, state.step, keep)
        elif options.start_from:
            start, shared, _ = load_run(options.start_from)
        teachers = hosts.each(lambda: load_teachers(path, options, hosts))
        if teachers and shared is None:
            shared = teachers[0][1]
        tokenizer = self._tokenizer(shared)
        check_teachers(options, teachers, tokenizer)
        text = self._read_text(tokenizer, model or start, state)
        if model is None:  # Before the teachers are asked, since it may be refused.
            model = make_model(self._options, tokenizer, start)
            self._report(describe_model(model, self._options))
            if model.lora is not None:
                self._report(describe_lora(model))
            check_made_for(self._options.made_for, model, tokenizer)
        datasets = text.datasets(self._options, [teacher for teacher, *_ in teachers])
        train = datasets[0]
        del teachers
        if state is not None:
            check_same_data(datasets, state, path)
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
        if hosts.count > 1:
            step = 0 if state is None else state.step
            facts = {"step to begin at": step, "end": total_steps, "model": fingerprint(model)}
            hosts.check_same(_facts(options) | facts)
        return _Ready(options, model, *datasets, state, total_steps, self._kept)

    def _checkpoint(self):
        """The checkpoint to resume from, or `None`."""
        if not self._resumes:
            return None
        checkpoint = latest_checkpoint(self._path)
        folder = self._path / "checkpoints"
        if checkpoint is None and any(folder.glob("step-*")):
            raise ValueError(
                f"No checkpoint in {folder} is whole: restore one, or remove that folder to train "
                "from the beginning."
            )
        return checkpoint

    def _tokenizer(self, shared):
        settings = self._path, self._options, shared, self._resumes, self._num_pairs, self._report
        tokenizer = self._hosts.first(lambda: provide_tokenizer(*settings))
        return self._hosts.each(lambda: tokenizer or Tokenizer.load(self._path / "tokenizer"))

    def _read_text(self, tokenizer, trained, state):
        """Prepares the text, and settles the options for it."""
        options = self._options
        max_length = options.max_length or default_of("max_length")
        if trained is not None:
            max_length = trained.max_length
        text = TextOfTraining(self._path, options, tokenizer, max_length, self._report, self._hosts)
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
        self._settle(settle_text(options, facts))
        return text

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


def _fit(path, ready, hosts, own_folder, report, show_progress):
    options, model, train, valid, general, state, total_steps, kept = ready
    measure = "mixed_nll" if general else options.select or default_of("select")
    validations = past_validations(path, measure, state)
    best = best_model(path, hosts, measure, options.patience or None, validations)
    is_over = state is not None and state.step >= total_steps
    if is_over:
        # The learning rate of a cooldown has come to 0, so no more steps can follow.
        remedy = (
            f"train the model further in another folder, with {named('start_from')}={path}"
            if options.cooldown
            else "give more epochs or steps to go on"
        )
        report(f"The training has reached its end, step {total_steps:,}, already: {remedy}.")
    steps = options.steps
    if best.has_waited:
        steps = total_steps = state.step
    elif not is_over:
        hosts.first(lambda: write_config(path, options, kept))
    batches, validation = train, valid
    if hosts.count > 1:
        batches, validation, general = (
            dataset and RowsOfHost(dataset, hosts.index, hosts.count)
            for dataset in (train, valid, general)
        )
        validation, general = (part and part.first_epoch() for part in (validation, general))
    history, callbacks = training_callbacks(path, ready, best, hosts, own_folder, general)
    progress = TrainingProgress(total_steps, resume_from=state, count_tokens=history.count_tokens)
    # The checkpoint is the last of the callbacks.
    with progress, Interruption(callbacks[-1], report, hosts) as interruption:
        callbacks += [progress, interruption] if show_progress else [interruption]
        metrics = fit_from(
            model,
            batches,
            state,
            epochs=options.epochs,
            steps=steps,
            callbacks=callbacks,
            validation_data=validation,
            validation_freq=options.valid_every,
            verbose=0,
        )
    if best.has_waited:
        waited = f"{options.patience} validations in a row were no better"
        report(f"stopped at step {history.step:,}: {waited}")
    if hosts.first(lambda: _restored(best, model)):
        report("model.keras was missing: it is now that of the latest checkpoint")
    elif best.best is not None:
        value = f"a validation {measure} of {best.value:.4f}"
        report(f"best: epoch {best.best['epoch']}, with {value}, is in model.keras")
    hosts.part()
    is_new = state is None or history.step > state.step
    if hosts.is_first and (is_new or REASON not in read_config(path)):
        settle_search(path, options, train, valid, history.step, report)
    return TrainResult(path, history.step, metrics, best.best)


def _restored(best, model):
    """Sees to it that the run has a whole model. Returns whether it was lost."""
    if not best.path.exists():
        with averaged_weights(model):
            best.save(model)
        return True
    if fault := zip_fault(best.path):
        raise ValueError(
            f"{best.path} is damaged: {fault}. Restore it, or remove it and resume again, which "
            "writes the model of the latest checkpoint."
        )
    return False
