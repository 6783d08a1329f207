"""Fields of the configurations of the models, and the docstrings that are made from them."""

import dataclasses
import textwrap
from typing import Any

# In the metadata of a field, stands for every value except the default.
NOT_DEFAULT = object()


def option(
    default: Any,
    meaning: str,
    *,
    check=None,
    variant: Any = (),
    unpackable: Any = (),
    is_rate: bool = False,
) -> Any:
    """Makes a field of a configuration.

    Args:
        default: any type. The value of an unset option.
        meaning: str. The sentences that docstrings show.
        check: function or `None`, default `None`. Takes name and value, and returns the value or
            raises a ValueError; `None` if the layer that has the option checks it.
        variant: tuple or `NOT_DEFAULT`, default `()`. The values that make the model differ from
            the paper's and from published models (Marian, fairseq, BART). Formats and programs that
            support only those models refuse it. Empty if all formats support every value, and for
            options that matter only in training or together with another option.
        unpackable: tuple or `NOT_DEFAULT`, default `()`. The values with which a model cannot keep
            the sequences of packed rows apart.
        is_rate: bool, default False. Whether it is a rate that matters only in training, and may
            change from one training to the next.

    Returns:
        `dataclasses.Field`.
    """
    metadata = {
        "meaning": meaning,
        "check": check,
        "variant": variant,
        "unpackable": unpackable,
        "is_rate": is_rate,
    }
    return dataclasses.field(default=default, metadata=metadata)


def first_argument(meaning, check):
    """Metadata of a field without default, which a model takes by position, too.

    Type checkers know `dataclasses.field(kw_only=False, metadata=first_argument(...))`.
    """
    return option(None, meaning, check=check).metadata


def other_default(base: type, name: str, default: Any) -> Any:
    """Makes a copy of a field with another default.

    Args:
        base: dataclass that has the field.
        name: str. The name of the field.
        default: any type. The new default.

    Returns:
        `dataclasses.Field`.
    """
    metadata = base.__dataclass_fields__[name].metadata
    return dataclasses.field(default=default, metadata=metadata)


def describes(config_class):
    """Makes a class decorator that describes each field of `config_class` in a model's docstring.

    The descriptions replace the line `{options}`; those that the docstring has already are left
    out.

    Args:
        config_class: dataclass whose fields come from `option`.

    Returns:
        Function that takes the class and returns it.
    """

    def decorate(cls):
        if cls.__doc__ is not None:  # It is None under python -OO.
            fields = sorted(dataclasses.fields(config_class), key=lambda f: f.kw_only)
            lines = [_describe(f) for f in fields if f"\n        {f.name}: " not in cls.__doc__]
            cls.__doc__ = cls.__doc__.replace("        {options}", "\n".join(lines))
        return cls

    return decorate


def _describe(field):
    """The description of a field as an entry of a docstring's `Args`."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    if field.default is not dataclasses.MISSING:
        value = f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
        kind += f", default {value}"
    return textwrap.fill(
        f"{field.name}: {kind}. {field.metadata['meaning']}",
        width=100,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
