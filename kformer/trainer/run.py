"""A whole training, from two files of text to a run directory: what `kformer train` does."""

import csv
import dataclasses
import math
import pathlib
import shutil
import sys
from typing import NamedTuple

import keras

from kformer.data import ParallelDataset, SoftTargets
from kformer.data.preparation import prepare_cached
from kformer.distillation.soft_targets import soft_targets
from kformer.evaluation.callback import TranslationQuality
from kformer.models import Transformer
from kformer.models.config import check_packing
from kformer.saving.checkpoints import TrainingState, latest_checkpoint, load_checkpoint
from kformer.saving.run_directory import FORMAT_VERSION, load_run, read_config
from kformer.text import Tokenizer
from kformer.trainer.defaults import (
    COOLDOWN,
    USUAL_BATCH_TOKENS,
    choose_batch_tokens,
    choose_dropout,
    choose_ema,
    choose_epochs,
    choose_learning_rate,
    choose_patience,
    choose_warmup,
    describe_schedule,
)
from kformer.trainer.options import (
    TrainOptions,
    resume_options,
    train_tokenizer,
    usual_model_options,
)
from kformer.training.callbacks.best_model import BestModel
from kformer.training.callbacks.checkpoint import Checkpoint
from kformer.training.callbacks.history import StepHistory
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.fitting import fit_from
from kformer.training.losses import TEACHER_WEIGHT
from kformer.training.recipe import paper_recipe
from kformer.training.schedules import WarmupInverseSqrt
from kformer.utils import files
from kformer.utils.checks import check_same_length
from kformer.utils.lines import check_readable, count_lines, read_chunks
from kformer.utils.progress import Progress

# Within a run directory: what the teachers said of the training text.
_SOFT_TARGETS = pathlib.Path("data", "soft-targets")


class TrainResult(NamedTuple):
    """What `train_run` did.

    Attributes:
        path: the run directory.
        steps: the step at which the training stands.
        history: dict of lists, the metrics at the end of each epoch trained in this call.
        best: dict with the `epoch` of the model that was saved and its `nll` or `bleu`, by which it
            was chosen; `None` without validation.
    """

    path: pathlib.Path
    steps: int
    history: dict
    best: dict | None


def train_run(output, *, resume=False, report=None, show_progress=True, **options):
    """Trains a translation model from text files into a run directory, or goes on with a training
    that was interrupted.

    The tokenizer is trained, the text prepared (under `output/data/`) and the model trained with
    `model.fit`. At the end of each epoch `model.keras` is replaced: with validation data by the
    best model so far (by `select`), else by the latest. So the run can be used while it is still in
    training, and `Translator.load(output)` reads it.

    A training that was killed goes on from its latest checkpoint through the very same losses.

    Args:
        output: the run directory.
        resume: whether to go on with the training in `output`; where there is none yet, it begins.
        report: function that takes the sentences about the set-up; `None` prints them on standard
            error.
        show_progress: whether to show steps, rate and time left on standard error.
        **options: fields of `TrainOptions`.

    Returns:
        `TrainResult`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: an option, a file or the run directory cannot be used; the message says why and
            what to do.

    Example:
        >>> kformer.trainer.train_run("runs/en-de", train_source="train.en", train_target="train.de",
        ...                            valid_source="val.en", valid_target="val.de", preset="tiny", epochs=20)
    """
    path = pathlib.Path(output)
    report = report or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
    given = {name: value for name, value in options.items() if value is not None}
    unknown = set(given) - {field.name for field in dataclasses.fields(TrainOptions)}
    if unknown:
        raise TypeError(
            f"Unknown training option {', '.join(sorted(unknown))}; kformer.trainer.TrainOptions lists them."
        )
    with files.locked(path):
        return _train(path, given, resume, report, show_progress)


def _train(path, given, resume, report, show_progress):
    config = _begin(path, resume)
    options = (
        TrainOptions(**given) if config is None else resume_options(config["training"], given, path)
    )
    says_positions = "position_encoding" in (options.model_options or {})
    is_new = config is None and options.start_from is None
    if is_new:
        options = dataclasses.replace(
            options, model_options=usual_model_options(options.model_options)
        )
    options.check_whole()
    if is_new and not says_positions:
        report(
            "positions: rotary, from which a model learns faster; model option position_encoding=sinusoidal for the paper's"
        )
    num_pairs = _count_pairs(options)
    kept = _kept(config or (read_config(options.start_from) if options.start_from else {}))
    if config is not None:
        ready = _set_up(path, options, kept, num_pairs, True, report)
    else:
        path.mkdir(parents=True, exist_ok=True)
        try:
            # First of all, so that the training can be resumed whenever it is killed.
            _write_config(path, options, kept)
            ready = _set_up(path, options, kept, num_pairs, False, report)
        except Exception:
            # What is wrong can be put right, and the same command given again.
            shutil.rmtree(path, ignore_errors=True)
            raise
    return _fit(path, ready, report, show_progress)


class _Ready(NamedTuple):
    """What a training needs to go on: all that `_set_up` makes or finds."""

    options: TrainOptions
    model: keras.Model
    train: ParallelDataset
    valid: ParallelDataset | None
    state: TrainingState | None
    data: dict
    total_steps: int


def _set_up(path, options, kept, num_pairs, resumes, report):
    options = dataclasses.replace(options, **_usual(options))
    model, state = (
        load_checkpoint(path) if resumes and latest_checkpoint(path) is not None else (None, None)
    )
    start = load_run(options.start_from) if options.start_from and model is None else None
    teachers = (
        [load_run(run) for run in options.teachers or ()]
        if not (path / _SOFT_TARGETS).exists()
        else []
    )
    tokenizer = _tokenizer(
        path, options, start or (teachers and teachers[0]), resumes, num_pairs, report
    )
    for run, (_, other, _) in zip(options.teachers or (), teachers, strict=False):
        if not tokenizer.writes_like(other):
            raise ValueError(
                f"The teacher {run} has another tokenizer than the model: a teacher and its student need one (kformer train --tokenizer)."
            )
    trained = model or (start and start[0])
    max_length = trained.max_length if trained else options.max_length or 256
    train, valid = _datasets(
        path, options, tokenizer, max_length, [teacher for teacher, *_ in teachers], state, report
    )
    del teachers
    options = dataclasses.replace(options, batch_tokens=train.batch_tokens)
    options = dataclasses.replace(
        options, **_chosen(options, num_pairs, train.steps_per_epoch, report)
    )
    total_steps = min(
        options.steps or math.inf, (options.epochs or math.inf) * train.steps_per_epoch
    )
    data = {
        "corpus": train.corpus.folder.name,
        "batch_tokens": options.batch_tokens,
        "seed": train.seed,
    }
    if state is not None:
        report(f"resume: at step {state.step:,} of {total_steps:,}, in epoch {state.epoch + 1}")
    else:
        model = _trained_model(options, start[0]) if start else _new_model(options, tokenizer)
        if options.packed:
            check_packing(model.get_config())
        if model.trainable_weights[0].dtype == "float16":
            raise ValueError(
                f"The weights of {options.start_from} are float16, whose gradients overflow: import the model as float32 (or bfloat16) to "
                "train it further."
            )
        options = _compile(model, options, total_steps, report)
    _write_config(path, options, kept)
    return _Ready(options, model, train, valid, state, data, total_steps)


def _begin(path, resume):
    """The config of the training to go on with, or `None` for a new one in a folder that is free
    for it.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, so no run directory can be made there.")
    if (path / "config.json").exists():
        config = read_config(path)
        # An average of checkpoints, or what a translator has saved, keeps the options of its
        # training, but has no history.
        if "training" not in config or (
            (path / "model.keras").exists() and not (path / "history.csv").exists()
        ):
            raise ValueError(
                f"{path} holds a model that was not trained there by this command: choose another folder, with start_from={path}."
            )
        if not resume:
            raise ValueError(
                f"{path} holds a training already: go on with it by resume (--resume), or choose another folder."
            )
        return config
    others = sorted({entry.name for entry in path.glob("*")} - {files.LOCK_FILE})
    if others:
        raise ValueError(
            f"{path} is not empty and holds no training (it has {', '.join(others[:3])}): choose another folder."
        )
    return None


def _kept(config):
    """What a run inherits from the one that it starts from: how that is searched, and where it came
    from.
    """
    return {name: config[name] for name in ("search", "imported") if name in config}


def _write_config(path, options, kept):
    files.write_json(
        path / "config.json",
        {"format_version": FORMAT_VERSION, **kept, "training": dataclasses.asdict(options)},
    )


def _count_pairs(options):
    """Lines of the training text, after a look at all files: what is wrong with them should be
    known before the long work.
    """
    count = None
    for names in (("valid_source", "valid_target"), ("train_source", "train_target")):
        paths = [getattr(options, name) for name in names]
        if paths[0] is None:
            continue
        for path, side in zip(paths, ("source", "target"), strict=True):
            check_readable(str(path), side)
        counts = [count_lines(str(path)) for path in paths]
        for path, count in zip(paths, counts, strict=True):
            if count == 0:
                raise ValueError(f"The file '{path}' is empty; there is nothing to train on.")
        count = check_same_length(f"'{paths[0]}'", counts[0], f"'{paths[1]}'", counts[1])
    return count


def _tokenizer(path, options, start, resumes, num_pairs, report):
    folder = path / "tokenizer"
    if resumes and (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    if options.tokenizer:
        tokenizer = Tokenizer.load(options.tokenizer)
    elif start:
        tokenizer = start[1]
    else:
        report(f"tokenizer: training it on {num_pairs:,} pairs ...")
        tokenizer = train_tokenizer(options, num_pairs, report)
    tokenizer.save(folder)
    return tokenizer


def _datasets(path, options, tokenizer, max_length, teachers, state, report):
    """Training data and validation data, or `None` for the latter."""

    def prepared(source, target):
        progress = Progress(what="pairs prepared", name="data", report=report)
        options = {"max_length": max_length, "report": report, "progress": progress}
        return prepare_cached(str(source), str(target), tokenizer, path / "data", **options)

    corpus = prepared(options.train_source, options.train_target)
    if state is not None and state.data["corpus"] != corpus.folder.name:
        raise ValueError(
            f"The text in the files of {path} is not the text that its training began with: put it back, or begin anew."
        )
    batch_tokens = options.batch_tokens or choose_batch_tokens(
        max(corpus.num_source_tokens, corpus.num_target_tokens)
    )
    max_shapes = options.max_shapes or 8
    settings = {"batch_tokens": batch_tokens, "packed": bool(options.packed)}
    noise = {
        "subword_sampling": options.subword_sampling,
        "word_dropout": options.word_dropout or 0.0,
        "tokenizer": tokenizer,
    }
    if options.teachers:
        noise["soft_targets"] = _ask(path, options, corpus, teachers, report)
    train = ParallelDataset.from_prepared(
        corpus, **settings, **noise, max_shapes=max_shapes, seed=options.seed or 0
    )
    report(f"data: {train.summary()}")
    if options.batch_tokens is None:
        usual = batch_tokens == USUAL_BATCH_TOKENS
        reason = (
            "as is usual"
            if usual
            else f"less than the usual {USUAL_BATCH_TOKENS:,}, so that an epoch still has some 200 steps"
        )
        report(f"batches: at most {batch_tokens:,} tokens, {reason}")
    valid = None
    if options.valid_source is not None:
        corpus = prepared(options.valid_source, options.valid_target)
        valid = ParallelDataset.from_prepared(
            corpus, **settings, max_shapes=min(max_shapes, 4), shuffle=False
        )
    return train, valid


def _ask(path, options, corpus, teachers, report):
    """What the teachers expect at each token of the training text; asked once in a training."""
    if teachers:
        count = f"{len(teachers)} teachers" if len(teachers) > 1 else "the teacher"
        report(f"teachers: asking {count} about {corpus.num_target_tokens:,} tokens ...")
        progress = Progress(what="pairs looked at", name="teachers", report=report)
        soft_targets(teachers, corpus, path / _SOFT_TARGETS, progress=progress)
    found = SoftTargets(path / _SOFT_TARGETS, corpus)
    weight = options.teacher_weight
    report(
        f"targets: {weight:g} of each is what the teachers expect, {round(1 - weight, 6):g} the given word"
    )
    return found


def _chosen(options, num_pairs, steps_per_epoch, report):
    """Values for open options that depend on the corpus, each reported with its reason."""
    values = {}

    def choose(name, value, sentence):
        if getattr(options, name) is None:
            values[name] = value
            report(sentence)

    if options.start_from is None:
        dropout, reason = choose_dropout(options.preset, num_pairs)
        choose("dropout", dropout, f"dropout: {dropout}, {reason}")
    if options.steps is None:
        epochs, reason = choose_epochs(steps_per_epoch, options.accumulate)
        choose(
            "epochs",
            epochs,
            f"length: {epochs:,} epochs, {epochs * steps_per_epoch:,} steps: {reason}",
        )
    if options.valid_source is not None:
        what = "BLEU" if options.select == "bleu" else "negative log-likelihood"
        patience, reason = choose_patience(steps_per_epoch, options.valid_every)
        choose(
            "patience",
            patience,
            f"stopping: before that end, if {patience} validations in a row bring no better {what}{reason}",
        )
    total_steps = min(
        options.steps or math.inf,
        (options.epochs or values.get("epochs") or math.inf) * steps_per_epoch,
    )
    # It moves with every batch, also where several make one update.
    ema = 0.0 if options.start_from else choose_ema(total_steps)
    sentence = f"average: the weights that are validated and saved average the latest {1 / (1 - ema):,.0f} steps, which translate better"
    choose(
        "ema",
        ema,
        sentence
        if ema
        else "average: none, as the training is short or begins with a trained model",
    )
    return values


def _usual(options):
    """Values for open options that do not depend on the corpus, so that the config tells all that a
    training was made with.
    """
    values = {
        "packed": False,
        "valid_every": 1,
        "checkpoint_every": 500,
        "keep": 2,
        "label_smoothing": 0.1,
        "clip_norm": 1.0,
    }
    values |= {"weight_decay": 0.0, "consistency": 0.0, "word_dropout": 0.0, "accumulate": 1}
    values["cooldown"] = 0.0 if options.start_from else COOLDOWN
    if options.valid_source is not None:
        values["select"] = "nll"
    if options.teachers:
        values["teacher_weight"] = TEACHER_WEIGHT
    if not options.packed:
        values["max_shapes"] = 8
    if options.start_from is None:
        values |= {
            "seed": 0,
            "preset": "tiny",
            "norm": "pre",
            "max_length": 256,
            "precision": "float32",
        }
        values |= {"attention_dropout": 0.0, "activation_dropout": 0.0}
    return {name: value for name, value in values.items() if getattr(options, name) is None}


def _trained_model(options, model):
    """The model to train further, with the rates of dropout, the seed and the precision that are
    given.
    """
    rates = {
        name: getattr(options, name)
        for name in ("dropout", "attention_dropout", "activation_dropout")
    }
    rates = {name: rate for name, rate in rates.items() if rate is not None}
    if options.seed is not None or rates:
        model = model.with_dropout(seed=options.seed, **rates)
    return model.with_precision(options.precision) if options.precision else model


def _new_model(options, tokenizer):
    settings = {
        "dropout": options.dropout,
        "attention_dropout": options.attention_dropout,
        "activation_dropout": options.activation_dropout,
        "normalize_first": options.norm == "pre",
        "max_length": options.max_length,
        "pad_id": tokenizer.pad_id,
        "start_id": tokenizer.start_id,
        "end_id": tokenizer.end_id,
        "seed": options.seed,
        "dtype": options.precision,
    }
    if not tokenizer.joint:
        settings.update(
            target_vocabulary_size=tokenizer.target_vocabulary_size, share_embeddings=False
        )
    return Transformer.from_preset(
        options.preset,
        vocabulary_size=tokenizer.vocabulary_size,
        **settings,
        **options.model_options or {},
    )


def _compile(model, options, total_steps, report):
    """Compiles the model; returns the options with what was chosen."""
    total_updates = max(1, total_steps // options.accumulate)
    warmup = options.warmup_steps or choose_warmup(total_updates)
    peak = options.learning_rate or choose_learning_rate(
        model.hidden_dim, warmup, fine_tuning=options.start_from is not None
    )
    cooldown = math.ceil(options.cooldown * total_updates)
    ending = {"total_steps": total_updates, "cooldown_steps": cooldown} if cooldown else {}
    ending["batches_per_update"] = options.accumulate
    schedule = WarmupInverseSqrt(
        model.hidden_dim, warmup, scale=peak * (model.hidden_dim * warmup) ** 0.5, **ending
    )
    recipe = {
        "label_smoothing": options.label_smoothing,
        "clip_norm": options.clip_norm or None,
        "ema_momentum": options.ema or None,
    }
    recipe |= {
        "consistency": options.consistency,
        "accumulation_steps": options.accumulate,
        "weight_decay": options.weight_decay,
    }
    if options.teachers:
        recipe["teacher_weight"] = options.teacher_weight
    model.compile(**paper_recipe(model, learning_rate=schedule, **recipe))
    further = "".join(f", {name} {value}" for name, value in (options.model_options or {}).items())
    name = options.start_from or f"preset {options.preset}, {options.norm}-norm{further}"
    report(f"model: {name}, {model.count_params():,} parameters, {keras.backend.backend()} backend")
    report(describe_schedule(options, peak, warmup, cooldown, model.hidden_dim, total_updates))
    return dataclasses.replace(options, warmup_steps=warmup, learning_rate=peak)


def _fit(path, ready, report, show_progress):
    options, model, train, valid, state, data, total_steps = ready

    def count_tokens(step):
        return train.count_tokens(step - 1)

    history = StepHistory(path, resume_from=state, count_tokens=count_tokens)
    best_model = BestModel(
        path,
        options.select or "nll",
        options.patience or None,
        _validations(path, options.select, state),
    )
    checkpoint = Checkpoint(
        path,
        every=options.checkpoint_every,
        keep=options.keep,
        resume_from=state,
        history=history,
        data=data,
    )
    callbacks = [history, best_model, checkpoint]
    if options.select == "bleu" or options.quality_every or options.log_dir:
        texts = (_lines(getattr(options, name)) for name in ("valid_source", "valid_target"))
        tokenizer = Tokenizer.load(path / "tokenizer")
        measured = {
            "every": options.quality_every,
            "epochs": options.valid_every,
            "log_dir": options.log_dir,
        }
        callbacks.insert(0, TranslationQuality(tokenizer, *texts, **measured, resume_from=state))
    if state is not None and state.step >= total_steps:
        report(
            f"The training has reached its end, step {total_steps:,}, already: give more epochs or steps to go on."
        )
    if best_model.has_waited:
        total_steps = state.step
    with TrainingProgress(total_steps, resume_from=state, count_tokens=count_tokens) as progress:
        metrics = fit_from(
            model,
            train,
            state,
            epochs=options.epochs,
            steps=state.step if best_model.has_waited else options.steps,
            callbacks=[*callbacks, progress] if show_progress else callbacks,
            validation_data=valid,
            validation_freq=options.valid_every or 1,
            verbose=0,
        )
    if best_model.has_waited:
        report(
            f"stopped at step {history.step:,}: {options.patience} validations in a row were no better"
        )
    if not (path / "model.keras").exists():
        best_model.save(model)
    if best_model.best is not None:
        epoch, measure = best_model.best["epoch"], best_model.measure
        report(
            f"best: epoch {epoch}, with a validation {measure} of {best_model.value:.4f}, is in model.keras"
        )
    return TrainResult(path, history.step, metrics, best_model.best)


def _lines(path):
    return [line for chunk in read_chunks(str(path), "validation", 10_000) for line in chunk]


def _validations(path, measure, state):
    """Epoch and value of each validation up to the step that the training goes on from: list of
    dicts.
    """
    if state is None or not (path / "history.csv").exists():
        return []
    name, measure = f"val_{measure or 'nll'}", measure or "nll"
    with open(path / "history.csv", encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row.get(name) and int(row["step"]) <= state.step
        ]
    # Every validation has a likelihood; within an epoch there is only what `quality_every`
    # translates.
    rows = [row for row in rows if row.get("val_nll")]
    return [{"epoch": int(row["epoch"]), measure: float(row[name])} for row in rows]
