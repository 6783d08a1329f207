"""What a message calls an option: by its name in Python, or as on the command line.

This module imports only the standard library, as `kformer_options.training` does.
"""

import contextlib
import contextvars

# The flags of the options that messages name: those of commands alone, and all that `add_flags`
# adds where options are declared.
_OF_COMMANDS = ("scores", "tokenize", "signatures", "closest", "saved-model")
FLAGS = {name.replace("-", "_"): f"--{name}" for name in _OF_COMMANDS}
_on_command_line = contextvars.ContextVar("on_command_line", default=False)


def add_flags(options):
    """Adds options to those that messages name as on the command line.

    Args:
        options: dict of name to `kformer_options.field.Option`.
    """
    FLAGS.update({name: f"--{option.flag}" for name, option in options.items()})


@contextlib.contextmanager
def command_line_names(are_used=True):
    """In this context messages name options as the command line does.

    Args:
        are_used: bool, default `True`. `False` for options that stand in a file.
    """
    token = _on_command_line.set(are_used)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def on_command_line():
    """Whether messages name options as the command line does (bool)."""
    return _on_command_line.get()


def in_python(text):
    """A part of a message for those who write Python; it is empty on the command line."""
    return "" if _on_command_line.get() else text


def numbered(number):
    """What a message calls a text by its number, from 1: "text 3", on the command line "line 3"."""
    return f"{'line' if _on_command_line.get() else 'text'} {number}"


def named(name):
    """What a message calls an option: `train_source` in Python, `--train-source` in a command.

    A name that is not an option stays as it is.
    """
    return FLAGS.get(name, name) if _on_command_line.get() else name
