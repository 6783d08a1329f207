"""The entry point of the `kformer` command: what has to happen before Keras is imported.

Keras chooses its backend once, when it is imported, and `import kformer` imports Keras. So
`--backend` and `--threads` are read here, outside the package, and put into the environment.
`kformer/cli`, which describes the commands, is then run as a package of its own rather than as a
part of that one: help and mistyped options answer at once, and Keras is imported by the commands
that need it.

What goes wrong becomes one line on standard error and an exit code: 2 for a command line that
cannot be, 130 for Ctrl-C, and otherwise 1. `KFORMER_TRACEBACK=1` shows the traceback as well. """

import contextlib
import importlib
import importlib.util
import logging
import os
import pathlib
import re
import sys
import tempfile
import traceback
import warnings

BACKENDS = ("tensorflow", "jax", "torch")
# What each backend reads when it is imported. PyTorch and NumPy read OMP_NUM_THREADS.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")
# Lines that TensorFlow's libraries print on import whatever the log level is.
_CHATTER = re.compile(
    r"WARNING: All log messages before absl|[IW]\d{4} \d\d:|[IW]0000 |To enable the following instructions|\s*$"
)


class UsageError(ValueError):
    """A command line that cannot be."""


class Interrupted(Exception):
    """Ctrl-C, with a word on how to go on."""


def main(arguments=None):
    """Runs the command and returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(
                errors="replace"
            )  # A terminal that cannot show a character is no reason to stop.
    try:
        prepare_environment(arguments)
        code = load_app()(args=arguments or ["--help"], prog_name="kformer", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # The option parser makes this of Ctrl-C.
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # Whoever read the output has left, as `head` does: there is nobody to tell. Python must not
        # try to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("KFORMER_TRACEBACK") == "1":
            traceback.print_exc()
        message, code = describe(error)
        print(f"error: {message}", file=sys.stderr)
        return code


def prepare_environment(arguments):
    """Puts `--backend` and `--threads` into the environment, where Keras and its backend look for
    them.

    Raises:
        UsageError: no such backend, it is not installed, or no number of threads.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    given = _value_of("--backend", arguments)
    backend = given or os.environ.get("KERAS_BACKEND")
    if backend is not None:
        where = "--backend" if given else "KERAS_BACKEND"
        if backend not in BACKENDS:
            raise UsageError(f"{where} is '{backend}', but must be one of {', '.join(BACKENDS)}.")
        if importlib.util.find_spec(backend) is None:
            raise UsageError(
                f"The backend '{backend}' is not installed here: run `pip install {backend}`, or choose another {where}."
            )
        os.environ["KERAS_BACKEND"] = backend
    threads = _value_of("--threads", arguments)
    if threads is not None:
        if not threads.isdecimal() or int(threads) < 1:
            raise UsageError(
                f"--threads must be a whole number of at least 1, but '{threads}' was given."
            )
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(int(threads))))


def load_app():
    """The commands of `kformer/cli`, without the import of the package around it."""
    package = importlib.util.find_spec("kformer")
    spec = importlib.util.spec_from_file_location(
        "kformer_cli", pathlib.Path(package.origin).parent / "cli" / "__init__.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.app


def describe(error):
    """One line about an exception, and the exit code that goes with it."""
    # By name: under `python -m kformer_command` this module and the one that the commands import
    # are two.
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in ("Abort", "Interrupted"):
        return str(error) or "interrupted.", 130
    if hasattr(error, "format_message"):  # the option parser's own errors
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "kformer"
        return f"{_one_line(error.format_message())} (`{command} --help` explains the options.)", 2
    if isinstance(error, UsageError):
        return _one_line(str(error)), 2
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: '{os.fspath(error.filename)}'.", 1
    if isinstance(error, MemoryError):
        return "there is not enough memory: try a smaller --batch-tokens or --batch-size.", 1
    if isinstance(error, ValueError | OSError | ImportError | RuntimeError) and str(error):
        return _one_line(str(error)), 1
    return (
        f"{type(error).__name__}: {_one_line(str(error))} (Run again with KFORMER_TRACEBACK=1 to see where.)",
        1,
    )


@contextlib.contextmanager
def quiet_imports():
    """Holds back what TensorFlow's libraries print when they are imported; anything else that was
    printed follows afterwards.

    Keras imports TensorFlow wherever it is installed, on every backend, as soon as it reads or
    writes a model. So it is imported here. """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, contextlib.ExitStack() as undo:
        stderr = os.dup(2)
        undo.callback(os.close, stderr)
        os.dup2(held.fileno(), 2)
        try:
            yield
            with contextlib.suppress(ImportError):
                importlib.import_module("tensorflow")
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if not _CHATTER.match(line):
                    print(line, file=sys.stderr)


def _value_of(option, arguments):
    """What stands after an option on the command line, or `None`."""
    for i, argument in enumerate(arguments):
        if argument == "--":
            return None
        if argument.startswith(option + "="):
            return argument[len(option) + 1 :]
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
    return None


def _one_line(text):
    return " ".join(text.split())


def _show_warning(message, category, filename, lineno, file=None, line=None):
    print(f"warning: {_one_line(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
