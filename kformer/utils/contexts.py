"""Values that hold within a `with` block."""

import contextlib


@contextlib.contextmanager
def context_value(variable, value):
    """A context in which a `contextvars.ContextVar` has a value, in this thread or task alone."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
