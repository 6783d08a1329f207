"""The entry point of the `kformer` command: runs it, and prints one line for any error.

The exit code is 2 for a wrong command line, 130 for Ctrl-C, 143 for SIGTERM in a training or while
a run is exported to be served, and 1 for any other error.
`KFORMER_TRACEBACK=1` shows the traceback as well.
"""

import contextlib
import errno
import os
import sys
import traceback
import warnings

from kformer_cli.environment import Interrupted, UsageError, prepare_environment
from kformer_cli.hosts import end_child, run_as_child, runs_as_child, take_streams
from kformer_options.names import command_line_names

# Of a message. The sentences of this package are shorter, unless they quote something.
_MOST_CHARACTERS = 2000
# What the errors of backends say that have no class of their own.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "can't allocate memory")


def main(arguments=None):
    """Runs the command and returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:
        _replace_closed_errors()
    if runs_as_child(arguments):
        return run_as_child(arguments)
    if take_streams():
        end_child(_run(arguments))
    return _run(arguments)


def _replace_closed_errors():
    """Makes the null device standard error, which is closed.

    Else Python prints errors on standard output, and the next open file gets the descriptor 2, on
    which libraries write.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 2:  # These are closed, too.
        pass
    if number > 2:  # Another file has that descriptor already.
        os.close(number)
    else:
        os.set_inheritable(2, True)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _run(arguments):
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            # A character that the terminal cannot show is no reason to stop.
            stream.reconfigure(errors="replace")
    try:
        prepare_environment(arguments)
        from kformer_cli.app import app

        with command_line_names():
            code = app(args=arguments or ["--help"], prog_name="kformer", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        if code == 130:  # The option parser makes this of Ctrl-C.
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # The reader of the output has left, as `head` does.
        _give_up_output()
        return 1
    except (Exception, KeyboardInterrupt) as error:
        is_full = getattr(error, "errno", None) == errno.ENOSPC
        if is_full and error.filename in (None, "standard output"):
            _give_up_output()
        if os.environ.get("KFORMER_TRACEBACK") == "1":
            traceback.print_exc()
        message, code = describe(error)
        # Ctrl-C is no error: 128 and the number of the signal.
        print(message if code > 128 else f"error: {message}", file=sys.stderr)
        return code


def _give_up_output():
    """Drops what is still to be written to standard output: Python must not try again at its end.

    Without a file of its own, as in a test, there is nothing to drop.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(error):
    """The line about an exception, and the exit code that goes with it: (str, int)."""
    import typer

    # The parser's class for a wrong command line has no public name in Typer, its subclass has.
    parser_error = typer.BadParameter.__base__
    if isinstance(error, KeyboardInterrupt | Interrupted | typer.Abort):
        return str(error) or "interrupted.", getattr(error, "code", 130)
    if isinstance(error, parser_error):
        command = error.ctx.command_path if error.ctx is not None else "kformer"
        return f"{_one_line(error.format_message())} (`{command} --help` explains the options.)", 2
    if isinstance(error, UsageError):
        return _one_line(str(error)), 2
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: '{os.fspath(error.filename)}'.", 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # The files name theirs.
        return f"{error.strerror}: standard output.", 1
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "there is not enough memory: try a smaller --batch-tokens or --batch-size.", 1
    if isinstance(error, ValueError | OSError | ImportError | RuntimeError) and str(error):
        return _one_line(str(error)), 1
    what = f"{type(error).__name__}: {_one_line(str(error))}"
    return f"{what} (Run again with KFORMER_TRACEBACK=1 to see where.)", 1


def _is_out_of_memory(error):
    """Whether it is a backend's error about the memory of its device."""
    if type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError"):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def _one_line(text):
    """The text as one line. A long one, such as a value in a stranger's file, loses its middle."""
    text = " ".join(text.split())
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS // 2]} ... {text[-_MOST_CHARACTERS // 2 :]}"


def _show_warning(message, category, filename, lineno, file=None, line=None):
    print(f"warning: {_one_line(str(message))}", file=sys.stderr)
