"""Signatures of functions that take the fields of a dataclass."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def takes(
    options_class: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Decorates a method whose arguments are the fields of a dataclass.

    Type checkers, editors, `help` and Jupyter then show every field as an argument. What the method
    does is unchanged.

    Args:
        options_class: dataclass.

    Returns:
        Function that takes the method, which has `**kwargs`, and returns it.
    """

    def decorate(method):
        signature = inspect.signature(method)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        first, *named = (p for p in signature.parameters.values() if p.kind not in variadic)
        fields = inspect.signature(options_class).parameters.values()
        others = [field for field in fields if field.name not in signature.parameters]
        parameters = [first, *sorted([*others, *named], key=lambda parameter: parameter.kind)]
        method.__signature__ = signature.replace(parameters=parameters)
        return method

    return decorate
