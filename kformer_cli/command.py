"""A command whose help shows first what matters first."""

import inspect
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

_ALL = "kformer.help_all"
_VALUES = {"int": "N", "float": "NUMBER"}


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


class _Plain:
    """Formats help text: paragraphs that the terminal wraps, no types of Python."""

    def __init__(self, *args, help=None, **kwargs):
        # The docstring's lines would break where its source does.
        paragraphs = inspect.cleandoc(help or "").split("\n\n")
        joined = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        super().__init__(*args, help=joined or None, **kwargs)

    def get_params(self, ctx):
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type = lambda ctx: None
            elif parameter.metavar is None:
                parameter.metavar = _value_name(parameter, ctx)
        return parameters


def _value_name(option, ctx):
    """What stands for an option's value in its help; a flag has none."""
    if getattr(option, "is_flag", False):
        return ""
    # Typer has a parser of its own since 0.2x, before it had click's.
    is_new = hasattr(option, "display_type")
    kind = str(option.display_type(ctx) if is_new else option.type.name)
    return next((name for part, name in _VALUES.items() if part in kind), "TEXT")


class Command(_Plain, TyperCommand):
    """A command."""


class Group(_Plain, TyperGroup):
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
