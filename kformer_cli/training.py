"""The commands that train: `quickstart` and `train`."""

import json
import pathlib
import sys
from typing import Annotated

import typer

from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import Backend, Run, Threads, option

# Options that say how this process runs, and are no part of a training.
_MACHINE = ("threads", "backend", "matmul_precision", "keep_memory")


def quickstart(
    output: Annotated[
        pathlib.Path,
        option(
            "--output",
            show_default=True,
            help="The run directory; an older quickstart there is replaced.",
        ),
    ] = pathlib.Path("runs/quickstart"),
    saved_model: Annotated[
        pathlib.Path,
        option("--saved-model", show_default=True, help="The SavedModel; a new version is added."),
    ] = pathlib.Path("saved_models/quickstart"),
    steps: Annotated[
        int | None,
        option(
            "--steps",
            min=1,
            help="Training steps. Default: as many as reach 99 % on two processor cores in minutes.",
        ),
    ] = None,
    seed: Annotated[
        int,
        option(
            "--seed",
            min=0,
            show_default=True,
            help="Of the pairs, the weights and the order of training.",
        ),
    ] = 0,
    quick: Annotated[
        bool,
        option(
            "--quick",
            help="A minute instead of several: everything runs, but the translations are poor.",
        ),
    ] = False,
    threads: Threads = None,
    backend: Backend = None,
):
    """Train on generated pairs, measure, export and translate: the whole way in minutes, without
    any data.

    The pairs are English dates, times, numbers and amounts of money and their Chinese, which the
    package generates. The accuracy is measured on values that never occurred in training; the
    sentences at the end are read back from the exported SavedModel.

    Example: [bold]kformer quickstart[/bold]
    """
    with quiet_imports():
        from kformer.examples.quickstart import quickstart
    quickstart(output, saved_model, steps=steps, seed=seed, quick=quick)


def train(
    output: Annotated[
        pathlib.Path,
        option(
            "--output",
            metavar="RUN",
            help="The run directory to make, or with --resume to go on with.",
        ),
    ],
    train_source: Annotated[
        str | None,
        option(
            "--train-source", metavar="FILE", help="Source side: UTF-8 text, one sentence per line."
        ),
    ] = None,
    train_target: Annotated[
        str | None,
        option(
            "--train-target",
            metavar="FILE",
            help="Target side: line n translates line n of the source.",
        ),
    ] = None,
    valid_source: Annotated[
        str | None,
        option(
            "--valid-source",
            metavar="FILE",
            help="Source side of text to validate with after an epoch; the best model is kept.",
        ),
    ] = None,
    valid_target: Annotated[
        str | None, option("--valid-target", metavar="FILE", help="Its target side.")
    ] = None,
    resume: Annotated[
        bool,
        option(
            "--resume",
            help="Go on where the training in RUN was interrupted, with the options that it began with.",
        ),
    ] = False,
    epochs: Annotated[
        int | None,
        option(
            "--epochs",
            help="Passes over the text. Default: 20 to 30, and 2,000 to 100,000 steps in all.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option(
            "--steps", help="Steps to stop after; of --epochs and --steps, what comes first counts."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "--preset",
            help="Size of the model: tiny (default, right for some 10,000 pairs), small, base or big (millions of pairs).",
        ),
    ] = None,
    model_option: Annotated[
        list[str] | None,
        option(
            "--model-option",
            metavar="NAME=VALUE",
            help="A further argument of kformer.Transformer, such as gated=true, or position_encoding=sinusoidal in place of rope (rotary "
            "positions). Give the option again for more.",
        ),
    ] = None,
    norm: Annotated[
        str | None,
        option(
            "--norm",
            help="post: layer norms behind each sub-layer, as in the paper; pre: before it, which learns much faster here. Default: pre.",
        ),
    ] = None,
    vocabulary_size: Annotated[
        int | None,
        option(
            "--vocabulary-size",
            help="Pieces of the tokenizer. Default: 1,000 to 32,000 by the number of pairs, so that each piece occurs often enough.",
        ),
    ] = None,
    tokenizer_type: Annotated[
        str | None, option("--tokenizer-type", help="bpe or unigram. Default: bpe.")
    ] = None,
    separate_vocabularies: Annotated[
        bool,
        option(
            "--separate-vocabularies",
            help="A tokenizer for each side: for languages that share no script, as English and Chinese.",
        ),
    ] = False,
    tokenizer: Annotated[
        str | None,
        option("--tokenizer", metavar="FOLDER", help="Use this tokenizer instead of training one."),
    ] = None,
    start_from: Annotated[
        str | None,
        option(
            "--start-from",
            metavar="RUN",
            help="Train the model of this run further, on this text (fine-tuning).",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        option(
            "--batch-tokens",
            help="Most padded tokens of a batch. Default: 4096, less for a small corpus; lower it if memory runs out.",
        ),
    ] = None,
    max_shapes: Annotated[
        int | None,
        option(
            "--max-shapes",
            help="Most batch shapes; fewer spare compilations on JAX, more spare padding. Default: 8.",
        ),
    ] = None,
    packed: Annotated[
        bool | None,
        option(
            "--packed/--no-packed",
            help="Several sentences behind each other in a row: one batch shape, hardly any padding, one compilation. Default: no.",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        option(
            "--max-length",
            help="Longest sentence in tokens; longer pairs are left out and counted. Default: 256.",
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        option(
            "--dropout",
            help="Default: 0.3 up to 200,000 pairs, less for more text; with --start-from its model's.",
        ),
    ] = None,
    attention_dropout: Annotated[
        float | None, option("--attention-dropout", help="On attention probabilities. Default: 0.")
    ] = None,
    activation_dropout: Annotated[
        float | None, option("--activation-dropout", help="In feed-forward networks. Default: 0.")
    ] = None,
    word_dropout: Annotated[
        float | None,
        option(
            "--word-dropout",
            help="Probability that a token is hidden from the model that reads it. Default: 0.",
        ),
    ] = None,
    subword_sampling: Annotated[
        float | None,
        option(
            "--subword-sampling",
            help="Cut words anew in every epoch (subword regularisation): with a bpe tokenizer the probability that a merge is left "
            "out, 0.1 is usual; with a unigram one the exponent, 0.1 to 0.5, less is more random. Default: none.",
        ),
    ] = None,
    consistency: Annotated[
        float | None,
        option(
            "--consistency",
            metavar="ALPHA",
            help="R-Drop: every batch twice, with another dropout each time, and the two predictions drawn together with this weight; "
            "5 is usual. Default: 0, not.",
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        option(
            "--teacher",
            metavar="RUN",
            help="Learn at each token what this run expects there, too (word-level distillation); it lends its tokenizer. Give the option "
            "again for more teachers, whose mean counts.",
        ),
    ] = None,
    teacher_weight: Annotated[
        float | None,
        option(
            "--teacher-weight",
            help="How far the teachers' word replaces the text's, from 0 to 1. Default: 0.8.",
        ),
    ] = None,
    label_smoothing: Annotated[
        float | None, option("--label-smoothing", help="Default: 0.1, as in the paper.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        option(
            "--learning-rate",
            help="Its peak. Default: 0.64 / hidden size up to 256, then the paper's; with --start-from a tenth of that.",
        ),
    ] = None,
    warmup_steps: Annotated[
        int | None,
        option(
            "--warmup-steps",
            help="Updates in which the learning rate rises. Default: a fifth of all, at most 4,000.",
        ),
    ] = None,
    cooldown: Annotated[
        float | None,
        option(
            "--cooldown",
            metavar="SHARE",
            help="Share of the training at whose end the rate falls to 0. Default: 0.25.",
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        option(
            "--accumulate",
            metavar="BATCHES",
            help="Batches whose gradients make one update. Default: 1.",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        option(
            "--weight-decay",
            help="Share of each weight, times the learning rate, that an update takes off it (AdamW). Default: 0.",
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        option(
            "--clip-norm",
            help="Largest norm of the gradient; 0 for no limit. Default: 1, which keeps a short warm-up steady.",
        ),
    ] = None,
    ema: Annotated[
        float | None,
        option(
            "--ema",
            metavar="MOMENTUM",
            help="Keep a moving average of the weights, and validate and save that; 0 for none. Default: 0.999, less where it is short.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        option(
            "--precision",
            help="float32 (default), mixed_float16 or mixed_bfloat16: the mixed ones are faster on GPUs and slower on processors. With "
            "--start-from its model's.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option(
            "--seed", help="The same seed, text and backend give the same training. Default: 0."
        ),
    ] = None,
    valid_every: Annotated[
        int | None,
        option(
            "--valid-every",
            metavar="EPOCHS",
            help="Epochs from one validation to the next. Default: 1.",
        ),
    ] = None,
    select: Annotated[
        str | None,
        option(
            "--select",
            help="What a validation is judged by: nll (default), or bleu, which translates the validation text.",
        ),
    ] = None,
    quality_every: Annotated[
        int | None,
        option(
            "--quality-every",
            metavar="STEPS",
            help="Translate the validation text after so many steps and with each validation; history.csv has BLEU and chrF.",
        ),
    ] = None,
    log_dir: Annotated[
        str | None,
        option(
            "--log-dir",
            metavar="FOLDER",
            help="Write BLEU and chrF of the validation text for TensorBoard (package tensorboard).",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        option(
            "--patience",
            metavar="VALIDATIONS",
            help="Stop after so many without a better one; 0 for never. Default: 10, or those of 1,000 steps where an epoch has so few.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        option(
            "--checkpoint-every",
            metavar="STEPS",
            help="Steps from one checkpoint to the next: the most that an interruption loses. Default: 500.",
        ),
    ] = None,
    keep: Annotated[
        int | None, option("--keep", help="Checkpoints that are kept. Default: 2.")
    ] = None,
    matmul_precision: Annotated[
        str | None,
        option(
            "--matmul-precision",
            help="Of float32 products: highest, high or medium; lower is faster on GPUs, and on some processors. Default: the backend's.",
        ),
    ] = None,
    keep_memory: Annotated[
        bool,
        option(
            "--keep-memory/--no-keep-memory",
            help="Keep memory that a step frees for the next (Linux): saves PyTorch a tenth of its time on processors. Default: yes.",
        ),
    ] = True,
    threads: Threads = None,
    backend: Backend = None,
):
    """Train a model on parallel text, or go on with a training.

    Writes a run directory: the tokenizer, config.json, history.csv (a row per step), checkpoints,
    and at the end of each epoch model.keras, so that `kformer translate RUN` works from the first
    epoch on.

    Example: [bold]kformer train --train-source train.en --train-target train.de --valid-source
        val.en --valid-target val.de
    --output runs/en-de[/bold]

    After an interruption, also by kill -9: [bold]kformer train --output runs/en-de --resume[/bold]
    """
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("output", "resume", *_MACHINE)
    }
    options["separate_vocabularies"] = separate_vocabularies or None
    options["teachers"] = options.pop("teacher") or None
    options["model_options"] = dict(map(_name_and_value, options.pop("model_option") or ())) or None
    with quiet_imports():
        from kformer.trainer import train_run
        from kformer.training import configure_machine

        machine = configure_machine(matmul_precision, keep_memory)
    print(machine, file=sys.stderr, flush=True)
    try:
        result = train_run(output, resume=resume, **options)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; `kformer train --output {output} --resume` goes on from the latest checkpoint."
        ) from None
    print(result.path)


def _name_and_value(text):
    """The two sides of NAME=VALUE; the value as JSON has it, or a string."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(
            f"a model option is NAME=VALUE, as gated=true, but {text!r} was given",
            param_hint="'--model-option'",
        )
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def average(
    run: Run,
    output: Annotated[
        pathlib.Path, option("--output", metavar="RUN", help="The run directory to make.")
    ],
    last: Annotated[
        int,
        option("--last", min=1, show_default=True, help="Checkpoints to average, the latest ones."),
    ] = 10,
    backend: Backend = None,
):
    """Average the weights of a training's last checkpoints into a new run, which often translates
    better than each of them.

    Give `kformer train` a `--keep` of that many, and `--checkpoint-every` for the steps between
    them.

    Example: [bold]kformer average runs/en-de --last 10 --output runs/en-de-averaged[/bold]
    """
    with quiet_imports():
        from kformer.saving import load_run, save_run
        from kformer.training import average_checkpoints
    if (output / "history.csv").exists():
        raise ValueError(
            f"{output} holds a training, whose model the average would replace: choose another folder."
        )
    _, tokenizer, config = load_run(run)
    model, steps = average_checkpoints(run, last)
    print(save_run(output, model, tokenizer, {**config, "averaged_steps": steps}))
