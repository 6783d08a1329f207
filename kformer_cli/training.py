"""The commands that train: `quickstart`, `train` and `average`."""

import dataclasses
import json
import pathlib
import signal
import sys
import types
from typing import Annotated

import typer

from kformer_cli.checks import check_output, check_sides, check_text
from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import MACHINE, Backend, Json, Run, chosen, option, with_options
from kformer_options.combinations import check_combinations
from kformer_options.commands import COMMANDS
from kformer_options.host_addresses import place_of_host
from kformer_options.model_folders import PARTS, check_new_run, check_run, check_teachers
from kformer_options.training import TEXTS, TRAINING


@with_options(MACHINE)
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
            help="Training steps. Default: as many as reach 99 % on two CPU cores in minutes.",
        ),
    ] = None,
    seed: Annotated[
        int,
        option(
            "--seed",
            min=0,
            show_default=True,
            help="Seed of the pairs, the weights and the order of training.",
        ),
    ] = 0,
    quick: Annotated[
        bool,
        option(
            "--quick",
            help="A smoke test: a minute instead of several. Everything runs once, but the model "
            "has not learnt to translate.",
        ),
    ] = False,
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
        folder = result.saved_model and str(result.saved_model)
        parts = {"run": str(result.run), "saved_model": folder}
        parts |= {"accuracy": result.accuracy, "seconds": result.seconds}
        print(json.dumps(parts, ensure_ascii=False))


_DEVICES = dataclasses.replace(
    COMMANDS["devices"],
    meaning="Devices of this machine that share each batch, as several GPUs (JAX, TensorFlow). The "
    "losses are those of one.",
    settled="1; with --model-parallel all",
)


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
        **chosen("resume"),
        "as_json": dataclasses.replace(COMMANDS["as_json"], group="Output"),
        **MACHINE,
        "devices": _DEVICES,
        **chosen("model_parallel", "jobs", "matmul_precision", "keep_memory"),
        **chosen("hosts", "host_index"),
    }
)
def train(
    output: Annotated[
        pathlib.Path,
        option(
            "--output",
            metavar="RUN",
            help="The run directory to make, or with --resume to go on with.",
            rich_help_panel="Output",
        ),
    ],
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
    settings["model_options"] = dict(map(_name_and_value, settings["model_options"] or ())) or None
    place = place_of_host(options["hosts"], options["host_index"])
    is_first = place is None or place.index == 0
    _check_files(output, settings, options["resume"] or not is_first)
    with quiet_imports():
        from kformer.trainer import train_run
        from kformer.training import configure_machine

        machine = configure_machine(options["matmul_precision"], options["keep_memory"])
    print(machine, file=sys.stderr, flush=True)
    try:
        shared = {name: options[name] for name in ("model_parallel", "hosts", "host_index")}
        shared |= {"devices": options["devices"], "jobs": options["jobs"] or 1}
        result = train_run(output, resume=bool(options["resume"]), **shared, **settings)
    except KeyboardInterrupt as error:
        raise _interrupted(output, error, place) from None
    if place is not None and place.index > 0:
        return  # The first host has the result.
    if options["as_json"]:
        parts = {"run": str(result.path), "steps": result.steps, "best": result.best}
        latest = {name: values[-1] for name, values in result.history.items() if values}
        print(json.dumps({**parts, "latest": latest}))
        return
    print(result.path)


def _check_files(output, settings, resume):
    """Checks the files, folders and combinations of a training."""
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f"{output} is a file, so no run directory can be made there.")
    flags = {name: f"--{TRAINING[name].flag}" for name in settings}
    for names in TEXTS:
        check_sides([(settings[name], flags[name]) for name in names])
    if settings["guided_alignment"] not in (None, "auto"):
        flag = flags["guided_alignment"]
        check_text(settings["guided_alignment"], flag)
    if settings["teachers_from"] and not resume:
        check_teachers(settings["teachers_from"])
    for run in filter(None, [settings["start_from"], *(settings["teachers"] or ())]):
        check_run(run)
    if not resume:
        check_new_run(output)
    if not resume or not output.exists():  # Else it has the options that it began with, too.
        check_combinations(types.SimpleNamespace(**settings))


def _interrupted(run, error, place):
    """The `Interrupted` of a training: what `--resume` will do, and the exit code."""
    from kformer.saving import latest_checkpoint

    code = 128 + getattr(error, "signal_number", signal.SIGINT)
    command = f"`kformer train --output {run} --resume`"
    if place is not None:
        command = "the same command with --resume on all hosts"
    if not any((run / name).exists() for name in ("config.json", PARTS)):
        return Interrupted("interrupted before the training began; nothing was written.", code)
    checkpoint = latest_checkpoint(run)
    if (run / PARTS).is_dir():
        return Interrupted(f"interrupted; {command} goes on with the part that it was at.", code)
    if checkpoint is None:
        return Interrupted(
            f"interrupted before the first checkpoint; {command} begins at step 0.", code
        )
    step = int(checkpoint.name.removeprefix("step-"))
    return Interrupted(f"interrupted; {command} goes on from step {step:,}.", code)


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


def card(
    run: Run,
    output: Annotated[
        pathlib.Path | None,
        option("--output", metavar="FILE", help="Where the card goes. Default: RUN/README.md."),
    ] = None,
    scores: Annotated[
        list[pathlib.Path] | None,
        option(
            "--scores",
            metavar="FILE",
            help="What `kformer evaluate --json` printed. Give the option again for more.",
        ),
    ] = None,
    language: Annotated[
        list[str] | None,
        option(
            "--language",
            metavar="CODE",
            help="A language of the model, such as en. Give the option again for more.",
        ),
    ] = None,
    license: Annotated[
        str | None,
        option("--license", metavar="NAME", help="Licence of the weights, such as cc-by-4.0."),
    ] = None,
):
    """Write a model card: data, training, scores, and the command that makes the run again.

    A run with its card can be uploaded as it is: [bold]hf upload NAME runs/en-de[/bold], the model
    hub's own tool, whose `--exclude` leaves out checkpoints and prepared text.

    Example: [bold]kformer card runs/en-de --scores test.json --language en --language de[/bold]
    """
    check_run(run)
    for path in scores or ():
        check_text(path, "--scores")
    check_output(output)
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
    output = output or pathlib.Path(run) / "README.md"
    with open_output(output) as out:
        out.write(text.encode())
    print(output)


def average(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A run directory, whose checkpoints are averaged, or several runs.",
        ),
    ],
    output: Annotated[
        pathlib.Path, option("--output", metavar="RUN", help="The run directory to make.")
    ],
    last: Annotated[
        int | None,
        option("--last", min=1, help="Of one run: the latest checkpoints to average. Default: 10."),
    ] = None,
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
    if (output / "history.csv").exists():
        raise ValueError(
            f"{output} holds a training, whose model the average would replace: choose another "
            "folder."
        )
    is_empty = not output.is_file() and not entries(output)
    if not is_empty and not {"averaged_steps", "averaged_runs"} & read_config(output).keys():
        raise ValueError(
            f"{output} holds a run that `kformer average` did not make, whose model the average "
            "would replace: choose another folder."
        )
    if len(runs) > 1:
        model, tokenizer, config = average_runs(runs)
        found = {"averaged_runs": [pathlib.Path(run).name for run in runs]}
    else:
        tokenizer, config = load_tokenizer(runs[0]), read_config(runs[0])
        model, steps = average_checkpoints(runs[0], last or 10)
        found = {"averaged_steps": steps}
    print(save_run(output, model, tokenizer, {**without_calibration(config), **found}))
