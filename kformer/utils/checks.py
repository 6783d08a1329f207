"""Checks of arguments, with one wording each: what a value must be, and what was given.

Each function returns the value, so that a constructor can check and assign in one line.
"""

import numpy as np

from kformer_options.field import Option
from kformer_options.text_files import check_same_length  # noqa: F401
from kformer_options.wording import shown  # noqa: F401


def check_whole(name, value, least=1, most=None):
    """Checks that a value is a whole number in a range.

    Args:
        name: str. What the message calls the value; the name of an option is written as on the
            command line, if it was given there.
        value: any. An int or a NumPy integer passes; `True` and `2.0` do not.
        least: int, default 1. The smallest number that passes.
        most: int, default `None`. The largest number that passes; `None` for no limit.

    Returns:
        The value as an int.

    Raises:
        ValueError: the value is not a whole number, or lies outside the range.

    Example:
        ```python
        from kformer.utils.checks import check_whole

        check_whole("beam_size", 4)  # 4
        ```
    """
    return Option("", name=name, type=int, at_least=least, at_most=most).check(value)


def check_number(name, value, **limits):
    """Checks that a value is a finite number within limits.

    Args:
        name: str. What the message calls the value.
        value: any. An int, a float or a NumPy number passes; `False` does not.
        **limits: `at_least`, `at_most`, `above`, `below` and `note`, as of an option's `Option`.

    Returns:
        The value as a float.

    Raises:
        ValueError: the value is not a number, or lies outside the limits.
    """
    return float(Option("", name=name, type=float, **limits).check(value))


def check_choice(name, value, choices):
    """Checks that a value is one of several.

    Args:
        name: str. What the message calls the value.
        value: any.
        choices: iterable of the values that pass, in the order of the message.

    Returns:
        The value.

    Raises:
        ValueError: the value is none of the choices.
    """
    Option("", name=name, choices=tuple(choices)).check(value)
    return value


def check_float16(name, array, remedy):
    """Checks that the numbers of an array fit into float16.

    Args:
        name: str. What the message calls the array.
        array: NumPy array.
        remedy: str, for the message.

    Raises:
        ValueError: a number would become infinite.
    """
    if array.dtype.name != "float16" and np.abs(array).max(initial=0) > np.finfo("float16").max:
        raise ValueError(f"{name} holds numbers too large for float16; {remedy}.")


def check_texts(texts):
    """Checks that an argument is a list of texts, not one text.

    Args:
        texts: iterable of str.

    Returns:
        The texts as a list.

    Raises:
        TypeError: `texts` is one text, or an item is not a text.
    """
    if isinstance(texts, str | bytes):
        raise TypeError("Give a list of texts, not one text: put it into a list, [text].")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str | bytes):
            raise TypeError(f"Text {i + 1} is {type(text).__name__}, not a string: {text!r}.")
    return texts
