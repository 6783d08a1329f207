"""Fields of the configurations of the models, and the docstrings that are made from them."""

import dataclasses
import inspect
import textwrap

from kformer.utils.signatures import show_options

# In the metadata of a field: every value but the default.
NOT_DEFAULT = object()


def option(default, meaning, *, check=None, later=False, variant=(), unpackable=(), is_rate=False):
    """A field of a configuration.

    Args:
        default: the value of an unset option; `dataclasses.MISSING` for one that must be given.
        meaning: string, the sentences that docstrings show.
        check: function of name and value that returns the value or raises a ValueError; `None`
            where the layer that has the option checks it.
        later: bool, default False. Whether the option is newer than the first saved files. It is
            written to a file only where it is in use, so that older versions read what they can.
        variant: tuple of the values, or `NOT_DEFAULT`, that make the model another one than the
            paper's and its published descendants (Marian, fairseq, BART). Formats and programs that
            know those alone refuse it. Empty where all formats know every value, and for options
            that matter in training alone or with another option.
        unpackable: tuple of the values, or `NOT_DEFAULT`, under which a model cannot keep apart the
            sequences of packed rows.
        is_rate: bool, default False. Whether it is a rate of training alone, which may change from
            one training to the next.
    """
    metadata = {
        "meaning": meaning,
        "check": check,
        "later": later,
        "variant": variant,
        "unpackable": unpackable,
        "is_rate": is_rate,
    }
    return dataclasses.field(default=default, metadata=metadata)


def other_default(base, name, default):
    """The field `name` of the dataclass `base` with another default."""
    metadata = base.__dataclass_fields__[name].metadata
    return dataclasses.field(default=default, metadata=metadata)


def takes(config_class):
    """Makes a decorator of a model's class: its `**options` are the fields of `config_class`.

    The class gets the signature that `help` and editors show, and the line `{options}` of its
    docstring is replaced by a description of each.
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
        if cls.__doc__ is not None:  # python -OO has none
            lines = [_describe(f) for f in fields if f.name not in named]
            cls.__doc__ = cls.__doc__.replace("        {options}", "\n".join(lines))
        return cls

    return decorate


def _describe(field):
    """An entry of a docstring's list of arguments."""
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
