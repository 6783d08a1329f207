"""Signatures of functions that take their options as `**options`."""

import inspect


def show_options(function, options):
    """Gives a function with `**options` the signature that `help` and editors show.

    Args:
        function: a function whose last parameter is `**something`, which is replaced.
        options: list of (name, default, annotation); those that the function names itself are left
            out. `inspect.Parameter.empty` stands for no default and for no annotation.
    """
    signature = inspect.signature(function)
    own = [part for part in signature.parameters.values() if part.kind is not part.VAR_KEYWORD]
    positional = [part for part in own if part.kind is not part.KEYWORD_ONLY]
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, default, annotation in options
        if name not in signature.parameters
    ]
    keywords += [part for part in own if part.kind is part.KEYWORD_ONLY]
    function.__signature__ = signature.replace(parameters=[*positional, *keywords])
