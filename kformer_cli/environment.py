"""What has to happen before Keras is imported: the environment says backend and threads.

Keras chooses its backend once, when it is imported, and `import kformer` imports Keras.
"""

import contextlib
import importlib
import logging
import os
import sys

from kformer_options.banner import without_banner
from kformer_options.installed import (
    BACKENDS,
    check_backend,
    installed_backends,
    is_installed,
    keras_backend,
)
from kformer_options.training import THREAD_VARIABLES


class UsageError(ValueError):
    """A wrong command line."""


def refuse(is_wrong, message):
    """Raises a `UsageError` with this message if the command line is wrong.

    Args:
        is_wrong: any type, whose truth counts.
        message: str.
    """
    if is_wrong:
        raise UsageError(message)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, with a sentence on how to go on.

    Args:
        message: str.
        code: int, default 130. The exit code: 128 and the number of the signal.
    """

    def __init__(self, message, code=130):
        super().__init__(message)
        self.code = code


def prepare_environment(arguments):
    """Sets the environment variables for `--backend` and `--threads` that Keras and backends read.

    Args:
        arguments: list of str, the command line.

    Raises:
        UsageError: there is no such backend, it is not installed, or the threads are not a number.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    option = value_of("--backend", arguments)
    if backend := option or os.environ.get("KERAS_BACKEND"):  # Keras takes "" for none, too.
        where = "--backend" if option else "KERAS_BACKEND"
        refuse(
            backend not in BACKENDS,
            f"{where} is '{backend}', but must be one of {', '.join(BACKENDS)}.",
        )
        refuse(
            not is_installed(backend),
            f"The backend '{backend}' is not installed here: run `pip install "
            f'"kformer[{backend}]"`, or choose another {where}.',
        )
        os.environ["KERAS_BACKEND"] = backend
    threads = value_of("--threads", arguments)
    if threads is not None:
        refuse(
            not threads.isdecimal() or int(threads) < 1,
            f"--threads must be a whole number of at least 1, but '{threads}' was given.",
        )
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(int(threads))))


@contextlib.contextmanager
def quiet_imports():
    """Drops the lines that TensorFlow's libraries print on import; other lines follow afterwards.

    TensorFlow is imported here, since Keras imports it wherever it is installed, on every backend,
    as soon as it reads or writes a model.

    If nobody chose a backend and Keras's default is not installed, another one is taken that is.

    Raises:
        ImportError: no backend is installed.
    """
    if not is_installed(keras_backend()) and (backends := installed_backends()):
        os.environ["KERAS_BACKEND"] = backends[0]
        print(f"backend: {backends[0]} (choose by --backend or KERAS_BACKEND)", file=sys.stderr)
    check_backend()
    with without_banner():
        yield
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorflow")


def value_of(option, arguments):
    """What stands after an option on the command line, or `None`.

    Args:
        option: str, such as "--backend".
        arguments: list of str, the command line.
    """
    for i, argument in enumerate(arguments):
        if argument == "--":
            return None
        if argument.startswith(option + "="):
            return argument[len(option) + 1 :]
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
    return None
