"""Prepares a training: settles its options, and makes or loads tokenizer, data and model."""

from collections.abc import Callable
from typing import NamedTuple

import keras

from kformer.data import ParallelDataset
from kformer.data.batching import default_max_shapes
from kformer.export import huggingface
from kformer.export.checks import KNOWN_VARIANTS, check_layers
from kformer.models.lora import describe_lora
from kformer.saving.checkpoints import (
    TrainingState,
    fingerprint,
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
)
from kformer.saving.run_directory import PATH_OPTIONS, load_run, read_config
from kformer.text import Tokenizer
from kformer.trainer.data import (
    TextOfTraining,
    check_same_data,
    check_teachers,
    count_pairs,
    data_of,
    load_teachers,
)
from kformer.trainer.lines import lines_of, validation_sets
from kformer.trainer.resume import (
    empty,
    inherited,
    last_step,
    resume_options,
    stored_config,
    write_config,
)
from kformer.trainer.search import REASON
from kformer.trainer.tokenizer import provide_tokenizer
from kformer.training.defaults import count_steps, settle_course, settle_text, warn_of_few_pairs
from kformer.training.devices import check_updates
from kformer.training.new_model import compile_model, describe_model, make_model
from kformer.training.options import TrainOptions, check_options
from kformer.translating.translator import DIRECTIONS
from kformer.translating.word_alignment import ALIGNMENT, guided_source
from kformer_options.names import named
from kformer_options.training import TRAINING, default_of


class Prepared(NamedTuple):
    """A prepared training.

    Attributes:
        options: `TrainOptions`, all settled.
        model: `Transformer`, compiled.
        train: `ParallelDataset` of the training.
        validation: list of `Text`. The validation sets.
        valid: list of their `ParallelDataset`.
        general: `ParallelDataset` of the general validation, or `None`.
        lengths: function that returns the tokens of the training pairs, `TextOfTraining.lengths`.
        state: `TrainingState` of the checkpoint that it goes on from, or `None`.
        total_steps: int. The step at which it ends.
        inherited: dict. Further entries of its `config.json`.
    """

    options: TrainOptions
    model: keras.Model
    train: ParallelDataset
    validation: list
    valid: list
    general: ParallelDataset | None
    lengths: Callable
    state: TrainingState | None
    total_steps: int
    inherited: dict


def prepare(path, options, resume, reports, hosts):
    """Begins a training, or finds the one to resume.

    A new training that cannot be prepared leaves nothing in the run directory, so that the same
    command works once the error is corrected.

    Args:
        path, options, resume, reports, hosts: as for `kformer.trainer.training.train_one`.

    Returns:
        `Prepared`.
    """

    def settle():
        config = stored_config(path, resume)
        settled = resume_options(config and config["training"], options, path)
        validation = validation_sets(settled, path, reports.setting)
        check_options(settled, has_validation=bool(validation))
        check_updates(settled)
        return config, settled, validation, count_pairs(settled, path)

    config, options, validation, num_pairs = hosts.each(settle)
    is_new = config is None
    hosts.check_same({f"training in {path}": not is_new, **_comparable(options)})
    if is_new:
        if resume:
            reports.outcome(f"resume: {path} holds no training, so a new one begins")
        config = read_config(options.start_from) if options.start_from else {}
        config.pop(REASON, None)  # It is about the other training.
    entries = inherited(config)
    try:
        if is_new:  # Before all else, so that the training can be resumed if it is killed early.
            hosts.first(lambda: write_config(path, options, entries))
        settled = path, options, validation, entries, num_pairs
        return _prepared(*settled, is_new, reports, hosts)
    except Exception:
        if is_new and hosts.is_first:
            empty(path)
        raise


def _comparable(options):
    """The options that are the same on all hosts: all but paths, whose content is compared."""
    return {named(name): getattr(options, name) for name in TRAINING if name not in PATH_OPTIONS}


def _prepared(path, options, validation, entries, num_pairs, is_new, reports, hosts):
    """The `Prepared` of a training that begins or is resumed, in the order of its dependences:
    checkpoint or start, teachers, tokenizer, text, model, batches, course.
    """
    lines = hosts.first(lambda: lines_of(path, options, reports))
    lines = hosts.each(lambda: lines or lines_of(path, options, reports))
    num_pairs = num_pairs or lines.num_pairs
    if is_new and not options.start_from and (warning := warn_of_few_pairs(num_pairs)):
        reports.setting(warning)
    model = state = start = tokenizer = None
    checkpoint = None if is_new else hosts.each(lambda: _checkpoint(path, options))
    if checkpoint:
        model, state = load_checkpoint(checkpoint)
        if hosts.is_first:  # In case the last save was killed.
            remove_old_checkpoints(path, state.step, options.keep or default_of("keep"))
    elif options.start_from:
        start, tokenizer, _ = load_run(options.start_from)
    teachers = hosts.each(lambda: load_teachers(path, options, hosts))
    if teachers and tokenizer is None:
        tokenizer = teachers[0][1]
    sources = path, options, lines, tokenizer, not is_new, reports.setting
    tokenizer = hosts.first(lambda: provide_tokenizer(*sources))
    tokenizer = hosts.each(lambda: tokenizer or Tokenizer.load(path / "tokenizer"))
    check_teachers(options, teachers, tokenizer)

    trained, max_length = model or start, options.max_length or default_of("max_length")
    max_length = trained.max_length if trained else max_length
    text = TextOfTraining(path, options, lines, tokenizer, max_length, reports, hosts)
    if state is not None:
        check_same_data({"corpus": text.corpus.folder.name}, state, path)
    facts = {"is_new": options.start_from is None, "resumed": state is not None}
    facts["is_validated"] = bool(validation)
    batches = {"is_joint": tokenizer.joint, "max_shapes": default_max_shapes()}
    longer_side = text.corpus.longer_side
    options, reasons = settle_text(options, num_pairs, longer_side, **batches, **facts)
    for reason in reasons.values():
        reports.setting(reason)
    if model is None:  # Before the teachers predict, since it may be refused.
        model = make_model(options, tokenizer, start)
        reports.setting(describe_model(model, options))
        if model.lora is not None:
            reports.setting(describe_lora(model))
        _check_made_for(options.made_for, model, tokenizer)
    if options.guided_alignment:
        entries = {**entries, ALIGNMENT: guided_source(model)}
    if len(lines.directions) > 1 or DIRECTIONS in entries:
        # A model that is trained further knows those that it began with, too.
        names = [*entries.get(DIRECTIONS, ()), *map("-".join, lines.directions)]
        entries = {**entries, DIRECTIONS: list(dict.fromkeys(names))}
    datasets = text.datasets(options, validation, [teacher for teacher, *_ in teachers])
    del teachers  # Their memory is needed.
    if state is not None:
        check_same_data(data_of(*datasets), state, path)

    steps_per_epoch = datasets[0].steps_per_epoch
    options, reasons = settle_course(options, steps_per_epoch, model.hidden_dim, **facts)
    for reason in reasons.values():
        reports.setting(reason)
    total_steps = count_steps(options.steps, options.epochs, steps_per_epoch)
    if state is not None:
        steps = f"step {state.step:,} of {total_steps:,}"
        reports.outcome(f"resume: at {steps}, in epoch {state.epoch + 1}")
    else:
        compile_model(model, options, total_steps)
        if not is_new:
            reports.outcome("resume: there is no checkpoint yet, so the training begins at step 0")
    if hosts.count > 1:
        step = 0 if state is None else state.step
        facts = {"step to begin at": step, "end": total_steps, "model": fingerprint(model)}
        hosts.check_same(_comparable(options) | facts)
    train, valid, general = datasets
    sets = train, validation, valid, general, text.lengths
    return Prepared(options, model, *sets, state, total_steps, entries)


def _checkpoint(path, options):
    """The checkpoint to resume from, or `None` if the training has come to none yet."""
    checkpoint, folder = latest_checkpoint(path), path / "checkpoints"
    first = options.checkpoint_every or default_of("checkpoint_every")
    had_one = any(folder.glob("step-*")) or REASON in read_config(path)
    if checkpoint is None and (had_one or last_step(path) > first):
        raise ValueError(
            f"No checkpoint in {folder} is whole, so the training cannot go on: restore one, use "
            f"the model as it is, or train from the beginning ({named('overwrite')})."
        )
    return checkpoint


def _check_made_for(system, model, tokenizer):
    """Checks that the system that the training is for can hold its model."""
    if system == "transformers":
        huggingface.check_model(model)
        huggingface.check_tokenizer(tokenizer)
    elif system in ("ctranslate2", "onnx"):
        check_layers(model, system, known=KNOWN_VARIANTS[system])
