"""Declared options as the option parser takes them: the one way from a field to a command."""

import inspect
import os
from typing import Annotated

import typer

from kformer_cli.command import HelpAll
from kformer_cli.environment import UsageError
from kformer_options.commands import COMMANDS
from kformer_options.search import SEARCH as SEARCH_OPTIONS


def option(meaning, *, default=None, required=False, show_default=False, **settings):
    """The default of a command's parameter, of which the parser makes an option with a value.

    Args:
        meaning: str. The sentences of its help.
        default: any type, default `None`. The value of an unset option.
        required: bool, default `False`. Whether the option must be set.
        show_default: bool, default `False`. Whether the help adds the default.
        **settings: further arguments of `typer.Option`.
    """
    default = ... if required else default
    return typer.Option(default, help=meaning, show_default=show_default, **settings)


def flag(name, meaning):
    """The default of a command's parameter, of which the parser makes an option without a value."""
    return typer.Option(False, name, help=meaning, show_default=False)


def parameter(declared, show_default=False):
    """Makes the `Annotated` type of a command's parameter from a declared option.

    The parser checks a value by the option's own check, with the name of the flag.

    Args:
        declared: `kformer_options.field.Option`.
        show_default: bool, default `False`. Whether the help adds the default.
    """
    kinds = {os.PathLike: str, list: list[str], dict: list[str]}
    name = f"--{declared.flag}"
    has_no = declared.default is not None and (declared.is_optional or declared.default is True)
    names = f"{name}/--no-{declared.flag}" if declared.type is bool and has_no else name

    def check(value):
        if value is None or declared.type in (bool, dict):
            return value
        try:
            checked = declared.check(value, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return value if declared.type is list else checked  # The parser iterates over it.

    declaration = typer.Option(
        names,
        help=declared.help,
        show_default=show_default,
        metavar=declared.metavar or ("FILE" if declared.type is os.PathLike else None),
        rich_help_panel=None if declared.group == "Options" else declared.group,
        callback=check,
    )
    return Annotated[kinds.get(declared.type, declared.type) | None, declaration]


def chosen(*names):
    """The options of commands with these names: a dict of name to `Option`."""
    return {name: COMMANDS[name] for name in names}


Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_SAVED_MODEL", help="A run directory, or a SavedModel: NAME or NAME/VERSION."
    ),
]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, as `kformer train` writes it.")
]
Backend = parameter(COMMANDS["backend"])
Json = parameter(COMMANDS["as_json"])

# Groups of options: name to `Option`.
LIMITS = {name: SEARCH_OPTIONS[name] for name in ("length_ratio", "length_offset")}
SEARCH = {
    name: SEARCH_OPTIONS[name]
    for name in (
        *("beam_size", "length_penalty", "max_length", *LIMITS),
        *("repetition_penalty", "no_repeat_ngram_size", "max_text_bytes"),
    )
}
SAMPLING = {name: SEARCH_OPTIONS[name] for name in ("temperature", "top_k", "top_p", "seed")}
LANGUAGES = chosen("source_language", "target_language")
MACHINE = chosen("threads", "backend")
BATCH = chosen("batch_size")


def with_options(declarations, first=None, **defaults):
    """A decorator: gives a command declared options, which it takes as `**options`.

    The option parser makes the command line of a function's signature. This writes one: the
    function's own parameters, then the declared ones. An option that is not set is `None`.

    Args:
        declarations: dict of parameter name to `Option`.
        first: str, default `None`. The options that `--help` shows, with spaces between them, if
            `--help-all` shows all.
        **defaults: defaults of these parameters, which the help shows.
    """

    def decorate(command):
        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in inspect.signature(command).parameters.values()
            if each.kind != inspect.Parameter.VAR_KEYWORD
        ]
        annotations, values = {}, dict(defaults)
        for name, declared in declarations.items():
            annotations[name] = parameter(declared, show_default=name in defaults)
            if declared.default is True and not declared.is_optional:
                values[name] = True
        if first is not None:
            command.first = first
            annotations["help_all"] = HelpAll
        for name, annotation in annotations.items():
            settings = {"annotation": annotation, "default": values.get(name)}
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **settings))
        command.__annotations__ |= annotations
        command.__signature__ = inspect.Signature(parameters)
        return command

    return decorate


def set_options(options, names):
    """The options of these names that are set: a dict."""
    return {name: options[name] for name in names if options[name] is not None}
