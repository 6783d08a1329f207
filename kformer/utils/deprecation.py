"""Names that are going: they work as before, and say once what takes their place."""

import functools
import warnings


def deprecated(instead, removal):
    """Returns a decorator of a function, method or class that warns where it is called.

    Args:
        instead: str. What to use in its place.
        removal: str. The version that is without it, such as "2.0".

    Example:
        ```python
        from kformer.utils.deprecation import deprecated


        @deprecated("translate", removal="2.0")
        def decode(texts): ...
        ```
    """

    def decorate(named):
        name, is_class = named.__qualname__, isinstance(named, type)
        function = named.__init__ if is_class else named

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            _warn(name, instead, removal)
            return function(*args, **kwargs)

        if not is_class:
            return wrapper
        named.__init__ = wrapper  # Its instances and subclasses stay what they are.
        return named

    return decorate


def renamed_arguments(removal, **names):
    """Returns a decorator of a function that takes arguments by their former names, too, and warns.

    Args:
        removal: str. The version that no longer takes them, such as "2.0".
        **names: str. The present name, by the former one.

    Example:
        ```python
        from kformer.utils.deprecation import renamed_arguments


        @renamed_arguments(removal="2.0", width="beam_size")
        def search(texts, beam_size=4): ...
        ```
    """

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            for former in names.keys() & kwargs.keys():
                _warn(f"{former} of {function.__qualname__}", names[former], removal)
                kwargs.setdefault(names[former], kwargs.pop(former))
            return function(*args, **kwargs)

        return wrapper

    return decorate


def _warn(name, instead, removal):
    # Users of a program see this kind, too, and not its developers alone.
    message = f"{name} is deprecated and will be removed in kformer {removal}: use {instead}."
    warnings.warn(message, FutureWarning, stacklevel=3)
