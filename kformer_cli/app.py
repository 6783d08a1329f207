"""The subcommands and their help.

Nothing of kformer is imported at the top: each command imports what it needs, and Keras with it, so
that help and mistyped options answer at once.
"""

from typing import Annotated

import typer

from kformer_cli.alignment import align, calibrate
from kformer_cli.command import Command, Group, HelpAll, add_option, command_class
from kformer_cli.distillation import distill
from kformer_cli.formats import export, import_
from kformer_cli.plotting import plot
from kformer_cli.serving import serve
from kformer_cli.training import average, card, quickstart, train
from kformer_cli.translation import evaluate, score, translate
from kformer_cli.trimming import trim

app = typer.Typer(
    name="kformer",
    cls=Group,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train an encoder-decoder Transformer on parallel text, translate with it, and export "
    "it as a SavedModel, strings in and strings out.\n\n"
    "Begin with [bold]kformer quickstart[/bold], which needs no data; then "
    "[bold]kformer train --train-source train.en --train-target train.de --output "
    "runs/en-de[/bold].",
)


def _version(wanted: bool):
    if wanted:
        from importlib.metadata import version

        print(f"kformer {version('kformer')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
):
    pass


# The options that `--help` shows where there are many; `--help-all` shows all.
_FIRST = {
    train: "train_source train_target valid_source valid_target preset start_from effort made_for "
    "output backend",
    translate: "input output beam_size n_best scores length_penalty target_language batch_size "
    "backend",
    evaluate: "source reference tokenize output as_json beam_size length_penalty batch_size "
    "backend",
    distill: "source output_source output_target reference backward closest beam_size batch_size "
    "backend",
    export: "output format dtype beam_size length_penalty n_best signatures source_language "
    "target_language backend",
}
_COMMANDS = (
    *(quickstart, train, average, card, translate, evaluate, score, align),
    *(calibrate, distill, export),
    *(import_, trim, serve),
)
for _command in _COMMANDS:
    _first = _FIRST.get(_command)
    if _first:
        add_option(_command, "help_all", HelpAll)
    app.command(_command.__name__.strip("_"), cls=command_class(_first) if _first else Command)(
        _command
    )
app.add_typer(plot, name="plot")
