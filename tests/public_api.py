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
from kformer_options.commands import COMMANDS
from kformer_options.search import SEARCH
from kformer_options.serving import SERVING
from kformer_options.training import TRAINING

FILE = pathlib.Path(__file__).with_suffix(".txt")


def arguments_of(function):
    """The arguments of a function as text, without annotations."""
    signature, empty = inspect.signature(function), inspect.Signature.empty
    parameters = [one.replace(annotation=empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=empty))
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)


def lines_of(name, value):
    """The lines of a public name: of a class its methods and properties, too, but for Keras's; of a
    table its names.
    """
    lines = [f"{name}{arguments_of(value)}" if callable(value) else name]
    if isinstance(value, dict):
        lines += [f"{name}[{key!r}]" for key in value]
    classes = value.__mro__ if inspect.isclass(value) else ()
    ours = [each for each in classes if each.__module__.partition(".")[0].startswith("kformer")]
    for key in sorted({key for each in ours for key in vars(each)}):
        member = inspect.getattr_static(value, key)
        function = getattr(member, "__func__", member)
        if key.startswith("_"):
            continue
        # What only wraps a method of Keras has the arguments of the version that is installed.
        if inspect.isfunction(function) and "keras" not in inspect.unwrap(function).__module__:
            lines.append(f"{name}.{key}{arguments_of(function)}")
        elif isinstance(member, property):
            lines.append(f"{name}.{key}")
    return lines


def command_lines(name, command):
    """The lines of a command and its options."""
    if hasattr(command, "commands"):
        pairs = sorted(command.commands.items())
        return [line for key, each in pairs for line in command_lines(f"{name} {key}", each)]
    lines = []
    for one in command.params:
        line = f"{name} {'/'.join([*one.opts, *one.secondary_opts])}"
        lines.append(line if one.default is None else f"{line} = {one.default}")
    return [line for line in lines if "--help-all" not in line]


def declared_lines(options):
    """The lines of declared options: default, and what there is to choose from."""
    for one in options:
        choices = f" of {', '.join(map(str, one.choices))}" if one.choices else ""
        yield f"--{one.flag} = {one.default}{choices}"


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
    for options in (TRAINING, SEARCH, SERVING, COMMANDS):
        lines += declared_lines(options.values())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
