"""What a program that starts processes needs: their environment, and SIGTERM that ends them, too.

This module imports only the standard library, as `kformer_options.training` does.
"""

import contextlib
import os
import signal
import sys
import threading


def environment(**variables):
    """This process's environment, with its path, so that a child can import the same modules.

    Args:
        **variables: str. Further variables of the child.

    Returns:
        dict of str to str.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}


@contextlib.contextmanager
def sigterm_as_interruption():
    """Makes SIGTERM a `KeyboardInterrupt` with a `signal_number`, in the main thread."""

    def interrupt(number, frame):
        error = KeyboardInterrupt("interrupted by SIGTERM")
        error.signal_number = number
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)
