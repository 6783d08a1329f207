"""A command whose help shows first what matters first."""

import inspect
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

_ALL = "kformer.help_all"


def _print_all(context: typer.Context, wanted: bool):
    if wanted:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        callback=_print_all,
        show_default=False,
        help="Show all options, in groups, and exit.",
    ),
]


def add_option(command, name, annotation):
    """Gives a command, which takes `**options`, one more option."""
    signature = command.__signature__
    parameter = inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=False
    )
    command.__signature__ = signature.replace(
        parameters=[*signature.parameters.values(), parameter]
    )
    command.__annotations__ = command.__annotations__ | {name: annotation}


class _PlainFlags:
    """Flags are shown without a type: `<bool>` reads as if they took a value."""

    def get_params(self, ctx):
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command."""


class Group(_PlainFlags, TyperGroup):
    """A command of commands."""


def command_class(main):
    """A class of commands whose `--help` has the options that matter first alone.

    Args:
        main: str. The names of these parameters, with spaces between them.

    Returns:
        Subclass of `Command`.
    """
    shown = {*main.split(), "help", "help_all"}

    class LongCommand(Command):
        def format_help(self, ctx, formatter):
            if ctx.meta.get(_ALL):
                super().format_help(ctx, formatter)
                return
            options = [part for part in self.get_params(ctx) if part.param_type_name == "option"]
            before = [(part, part.hidden, part.rich_help_panel) for part in self._own(options)]
            number = len(options) - 1  # Without --help-all.
            self.epilog = f"All {number} options, in groups: {ctx.command_path} --help-all"
            try:
                for part, hidden, _ in before:
                    part.hidden, part.rich_help_panel = hidden or part.name not in shown, None
                super().format_help(ctx, formatter)
            finally:
                for part, hidden, panel in before:
                    part.hidden, part.rich_help_panel = hidden, panel

        @staticmethod
        def _own(options):
            """Those that are not the parser's own, as `--help` is."""
            return [part for part in options if hasattr(part, "rich_help_panel")]

    return LongCommand
