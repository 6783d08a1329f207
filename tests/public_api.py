"""The public interface as text: every name with its arguments and defaults, and every option of the
command.

    python -m tests.public_api

writes it to `tests/public_api.txt`. What is removed or changed there breaks the programs of users:
docs/stability.md says how that is done.
"""

import inspect
import pathlib
import re

import typer

import kformer
from kformer_cli.app import app

FILE = pathlib.Path(__file__).with_suffix(".txt")


def arguments_of(function):
    """The arguments of a function as text, without annotations."""
    signature, empty = inspect.signature(function), inspect.Signature.empty
    parameters = [one.replace(annotation=empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=empty))
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)


def lines_of(name, value):
    """The lines of a public name: of a class its own methods and properties, too."""
    lines = [f"{name}{arguments_of(value)}" if callable(value) else name]
    for key in sorted(vars(value)) if inspect.isclass(value) else ():
        member = inspect.getattr_static(value, key)
        function = getattr(member, "__func__", member)
        if key.startswith("_"):
            continue
        if inspect.isfunction(function):
            lines.append(f"{name}.{key}{arguments_of(function)}")
        elif isinstance(member, property):
            lines.append(f"{name}.{key}")
    return lines


def command_lines(name, command):
    """The lines of a command and its options."""
    if hasattr(command, "commands"):
        pairs = sorted(command.commands.items())
        return [line for key, each in pairs for line in command_lines(f"{name} {key}", each)]
    options = ["/".join([*one.opts, *one.secondary_opts]) for one in command.params]
    return [f"{name} {option}" for option in options if option != "--help-all"]


def text():
    """The whole interface."""
    lines = []
    for name in kformer.__all__:
        value = getattr(kformer, name)
        names = value.__all__ if inspect.ismodule(value) else ()
        for key in sorted(names):
            lines += lines_of(f"kformer.{name}.{key}", getattr(value, key))
        if not names:
            lines += lines_of(f"kformer.{name}", value)
    lines += command_lines("kformer", typer.main.get_command(app))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
