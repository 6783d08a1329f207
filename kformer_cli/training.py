"""The commands that train: `quickstart`, `train` and `average`."""

import dataclasses
import itertools
import json
import pathlib
import signal
import sys
import types

import typer

from kformer_cli.checks import check_description, check_sides, check_text
from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import MACHINE, Backend, Json, Run, chosen, flag, option, with_options
from kformer_options.combinations import check_combinations
from kformer_options.commands import COMMANDS
from kformer_options.host_addresses import place_of_host
from kformer_options.model_folders import (
    PARTS,
    check_begun,
    check_new_run,
    check_run,
    check_teachers,
)
from kformer_options.names import named
from kformer_options.text_files import check_output, check_rereadable, is_plain
from kformer_options.training import TEXTS, TRAINING


@with_options(MACHINE)
def quickstart(
    output: pathlib.Path = option(
        "The run directory; an older quickstart there is replaced.",
        default=pathlib.Path("runs/quickstart"),
        show_default=True,
    ),
    saved_model: pathlib.Path = option(
        "The SavedModel; a new version is added.",
        default=pathlib.Path("saved_models/quickstart"),
        show_default=True,
    ),
    steps: int | None = option(
        "Training steps. Default: as many as reach 99 % on two CPU cores in minutes.", min=1
    ),
    seed: int = option(
        "Seed of the pairs, the weights and the order of training.",
        default=0,
        min=0,
        show_default=True,
    ),
    quick: bool = flag(
        "--quick",
        "A smoke test: a minute instead of several. Everything runs once, but the model has not "
        "learnt to translate.",
    ),
    as_json: Json = False,
    **options,
):
    """Train on generated pairs, measure, export and translate: the whole way in minutes, without
    any data.

    The pairs are English dates, times, numbers and amounts of money and their Chinese, which the
    package generates. The accuracy is measured on values that never occurred in training; the
    sentences at the end are read back from the exported SavedModel, or translated by the run where
    TensorFlow is not installed.

    Example: [bold]kformer quickstart[/bold]
    """
    with quiet_imports():
        from rich.console import Console

        from kformer.examples import quickstart
    # With --json standard output has the object alone.
    console = Console(stderr=True, highlight=False) if as_json else None
    result = quickstart(output, saved_model, steps=steps, seed=seed, quick=quick, console=console)
    if as_json:
        names = ("run", "saved_model", "accuracy", "seconds")
        values = {name: getattr(result, name) for name in names}
        print(json.dumps(values, ensure_ascii=False, default=str))


_DEVICES = dataclasses.replace(
    COMMANDS["devices"],
    meaning="Devices of this machine that share each batch, as several GPUs (JAX, TensorFlow). The "
    "losses are those of one.",
    settled="1; with --model-parallel all",
)

_FURTHER_TEXTS = ("monolingual_source", "monolingual_target", "guided_alignment")


def _train_options():
    """The options of `train`, with flags in their texts instead of names in Python."""
    for name, declared in TRAINING.items():
        text = declared.help.replace("start_from", "--start-from")
        if declared.type in (list, dict):
            text += " Give the option again for more."
        yield name, dataclasses.replace(declared, help_text=text)


@with_options(
    {
        **dict(_train_options()),
        **chosen("resume", "overwrite"),
        "as_json": dataclasses.replace(COMMANDS["as_json"], group="Output"),
        **MACHINE,
        "devices": _DEVICES,
        **chosen("model_parallel", "jobs", "matmul_precision", "keep_memory"),
        **chosen("hosts", "host_index"),
    },
    first="train_source train_target corpora valid_source valid_target preset start_from epochs "
    "effort made_for output backend",
)
def train(
    output: pathlib.Path = option(
        "The run directory to make, or with --resume to go on with.",
        required=True,
        metavar="RUN",
        rich_help_panel="Output",
    ),
    **options,
):
    """Train a model on parallel text, or go on with a training.

    Writes a run directory: the tokenizer, config.json, history.csv (a row per step), checkpoints,
    and at the end of each epoch model.keras, so that `kformer translate RUN` works from the first
    epoch on.

    Example: [bold]kformer train --train-source train.en --train-target train.de --valid-source
    val.en --valid-target val.de --output runs/en-de[/bold]

    After an interruption, also by kill -9: [bold]kformer train --output runs/en-de --resume[/bold]

    On two hosts, the same command on each except for the index: [bold]kformer train ... --hosts
    node1,node2 --host-index 0[/bold]
    """
    settings = {name: options[name] for name in TRAINING}
    settings |= {name: TRAINING[name].check(settings[name]) for name in TEXTS[-1]}
    settings["model_options"] = dict(map(_name_and_value, settings["model_options"] or ())) or None
    place = place_of_host(options["hosts"], options["host_index"])
    is_first = place is None or place.index == 0
    kept = {name: options[name] for name in ("resume", "overwrite")}
    if options["resume"] and not (settings["train_source"] or settings["corpora"]):
        check_begun(output)
    if is_first and not any(kept.values()):
        check_new_run(output)
    _check_files(output, settings, options["resume"] or not is_first)
    with quiet_imports():
        from kformer.trainer import train_run
        from kformer.training import configure_machine

        machine = configure_machine(options["matmul_precision"], options["keep_memory"])
    print(machine, file=sys.stderr, flush=True)
    shared = ("devices", "model_parallel", "hosts", "host_index")
    settings |= {name: options[name] for name in shared} | {"jobs": options["jobs"] or 1}
    try:
        result = train_run(output, **kept, **settings)
    except KeyboardInterrupt as error:
        raise _interrupted(output, error, place) from None
    if not is_first:
        return  # The first host has the result.
    if options["as_json"]:
        latest = {name: values[-1] for name, values in result.history.items() if values}
        values = {"run": str(result.path), "steps": result.steps, "best": result.best}
        print(json.dumps({**values, "latest": latest}))
    else:
        print(result.path)


def _check_files(output, settings, resume):
    """Checks the files, folders and combinations of a training."""
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file, so no run directory can be made there.")
    *others, training = TEXTS
    for name in (*itertools.chain(*others), *_FURTHER_TEXTS, "corpora"):
        check_rereadable(settings[name], named(name))
    if all(is_plain(settings[name]) for name in training):
        others.append(training)
    for names in others:
        check_sides([(settings[name], named(name)) for name in names])
    check_description(settings["corpora"])
    if settings["guided_alignment"] not in (None, "auto"):
        check_text(settings["guided_alignment"], named("guided_alignment"))
    if settings["teachers_from"] and not resume:
        check_teachers(settings["teachers_from"])
    for run in filter(None, [settings["start_from"], *(settings["teachers"] or ())]):
        check_run(run)
    if not resume or not output.exists():  # Else it has the options that it began with, too.
        check_combinations(types.SimpleNamespace(**settings))


def _interrupted(run, error, place):
    """The `Interrupted` of a training: what `--resume` will do, and the exit code."""
    from kformer.saving import latest_checkpoint

    command = f"`kformer train --output {run} --resume`"
    if place is not None:
        command = "the same command with --resume on all hosts"
    checkpoint = latest_checkpoint(run)
    if not any((run / name).exists() for name in ("config.json", PARTS)):
        message = "interrupted before the training began; nothing was written."
    elif (run / PARTS).is_dir():
        message = f"interrupted; {command} goes on with the part that it was at."
    elif checkpoint is None:
        message = f"interrupted before the first checkpoint; {command} begins at step 0."
    else:
        step = int(checkpoint.name.removeprefix("step-"))
        message = f"interrupted; {command} goes on from step {step:,}."
    return Interrupted(message, 128 + getattr(error, "signal_number", signal.SIGINT))


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


# The files of a run that a card is made of.
_OF_A_CARD = ("config.json", "history.csv")


def card(
    run: Run,
    output: pathlib.Path | None = option(
        "Where the card goes. Default: RUN/README.md.", metavar="FILE"
    ),
    scores: list[pathlib.Path] | None = option(
        "What `kformer evaluate --json` printed. Give the option again for more.", metavar="FILE"
    ),
    language: list[str] | None = option(
        "A language of the model, such as en. Give the option again for more.", metavar="CODE"
    ),
    license: str | None = option("Licence of the weights, such as cc-by-4.0.", metavar="NAME"),
):
    """Write a model card: data, training, scores, and the command that makes the run again.

    A run with its card can be uploaded as it is: [bold]hf upload NAME runs/en-de[/bold], the model
    hub's own tool, whose `--exclude` leaves out checkpoints and prepared text.

    Example: [bold]kformer card runs/en-de --scores test.json --language en --language de[/bold]
    """
    check_run(run)
    for path in scores or ():
        check_text(path, "--scores")
    output = output or pathlib.Path(run) / "README.md"
    check_output(output, *(scores or ()), *(pathlib.Path(run, name) for name in _OF_A_CARD))
    with quiet_imports():
        from kformer.trainer import model_card
        from kformer.translating.streaming import open_output
        from kformer.utils.files import read_json
    text = model_card(
        run,
        scores=[read_json(path) for path in scores or ()],
        languages=language or (),
        license=license,
    )
    with open_output(output) as out:
        out.write(text.encode())
    print(output)


def average(
    runs: list[str] = typer.Argument(
        metavar="RUN...", help="A run directory, whose checkpoints are averaged, or several runs."
    ),
    output: pathlib.Path = option("The run directory to make.", required=True, metavar="RUN"),
    last: int | None = option("Of one run: the latest checkpoints to average. Default: 10.", min=1),
    backend: Backend = None,
):
    """Average the weights of a training's last checkpoints, or of several runs, into a new run,
    which often translates better than each of them.

    For checkpoints give `kformer train` a `--keep` of that many, and `--checkpoint-every` for the
    steps between them. Several runs must have begun from one model by `--start-from`; the new run
    has the search of the first.

    Example: [bold]kformer average runs/en-de --last 10 --output runs/en-de-averaged[/bold]

    [bold]kformer average runs/seed-1 runs/seed-2 runs/seed-3 --output runs/soup[/bold]
    """
    for run in runs:
        check_run(run)
    if last is not None and len(runs) > 1:
        raise typer.BadParameter("is about the checkpoints of one run", param_hint="'--last'")
    with quiet_imports():
        from kformer.saving import read_config, save_run
        from kformer.saving.run_directory import load_tokenizer
        from kformer.training import average_checkpoints, average_runs
        from kformer.translating.word_alignment import without_calibration
        from kformer.utils.files import entries
    is_training = (output / "history.csv").exists()
    may_replace = not output.is_file() and not entries(output)
    if not is_training and not may_replace:
        may_replace = bool({"averaged_steps", "averaged_runs"} & read_config(output).keys())
    is_input = output.exists() and any(output.samefile(run) for run in runs)
    if is_training or is_input or not may_replace:
        content = "a training" if is_training else "a run that `kformer average` did not make"
        content = "one of the runs" if is_input and not is_training else content
        raise ValueError(
            f"{output} holds {content}, whose model the average would replace: choose another "
            "folder."
        )
    if len(runs) > 1:
        model, tokenizer, config = average_runs(runs)
        origin = {"averaged_runs": [pathlib.Path(run).name for run in runs]}
    else:
        tokenizer, config = load_tokenizer(runs[0]), read_config(runs[0])
        model, steps = average_checkpoints(runs[0], last or 10)
        origin = {"averaged_steps": steps}
    print(save_run(output, model, tokenizer, {**without_calibration(config), **origin}))
