"""The subcommands and their help.

Nothing of kformer is imported at the top: each command imports what it needs, and Keras with it, so
that help and mistyped options answer at once.
"""

from typing import Annotated

import typer

from kformer_cli.alignment import align, calibrate
from kformer_cli.command import Command, Group, command_class
from kformer_cli.corpora import clean
from kformer_cli.distillation import distill
from kformer_cli.formats import export, import_
from kformer_cli.plotting import plot
from kformer_cli.serving import serve
from kformer_cli.speed import speed
from kformer_cli.token_lists import shortlist
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


for _command in (
    *(quickstart, train, average, card, translate, evaluate, score, align),
    *(calibrate, clean, distill, export, import_, trim, shortlist, speed, serve),
):
    _class = command_class(_command.first) if hasattr(_command, "first") else Command
    app.command(_command.__name__.strip("_"), cls=_class)(_command)
app.add_typer(plot, name="plot")
