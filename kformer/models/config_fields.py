"""Fields of the configurations of the models, and the docstrings that are made from them."""

import dataclasses
import inspect
import textwrap

from kformer.utils.signatures import show_options

# In the metadata of a field, stands for every value except the default.
NOT_DEFAULT = object()


def option(default, meaning, *, check=None, variant=(), unpackable=(), is_rate=False):
    """Makes a field of a configuration.

    Args:
        default: any type. The value of an unset option; `dataclasses.MISSING` for an option that
            must be given.
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


def other_default(base, name, default):
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


def takes(config_class):
    """Makes a class decorator for a model whose `**options` are the fields of `config_class`.

    The class gets a signature with these options, for `help` and editors. In its docstring a
    description of each replaces the line `{options}`.

    Args:
        config_class: dataclass whose fields come from `option`.

    Returns:
        Function that takes the class and returns it.
    """

    def decorate(cls):
        named = inspect.signature(cls.__init__).parameters
        fields = dataclasses.fields(config_class)
        empty = inspect.Parameter.empty
        defaults = [empty if f.default is dataclasses.MISSING else f.default for f in fields]
        show_options(
            cls.__init__,
            [(f.name, default, f.type) for f, default in zip(fields, defaults, strict=True)],
        )
        if cls.__doc__ is not None:  # It is None under python -OO.
            lines = [_describe(f) for f in fields if f.name not in named]
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
