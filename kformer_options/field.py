"""An option as a field of a plain dataclass: name, type, default, limits and meaning, once.

The command line, docstrings, checks and saved configurations read the fields by `options_of`. A
module that declares options must not postpone its annotations (`from __future__ import
annotations`). This module imports only the standard library, as all of this package.
"""

import collections.abc
import dataclasses
import functools
import math
import numbers
import operator
import os
import textwrap
import types
import typing
from typing import Any, TypeAlias, TypeVar

from kformer_options.names import named
from kformer_options.wording import shown

# When the default of an unset option applies; without a condition it always does.
NEW_MODEL, NEW_TOKENIZER, VALIDATION = "new model", "new tokenizer", "validation"
TEACHERS, LORA, GENERAL = "teachers", "adapters", "general text"

Path: TypeAlias = str | os.PathLike[str]
_Class = TypeVar("_Class", bound=type)
_TYPE_NAMES = {os.PathLike: "path", list: "list of paths"}
_EXPECTED = {bool: "true or false", str: "a text", os.PathLike: "a path", tuple: "a tuple"}
_EXPECTED |= {dict: "a dict of names and values"}
_LIMITS = {"at_least": operator.ge, "at_most": operator.le}
_LIMITS |= {"above": operator.gt, "below": operator.lt}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: what `option` declares, and what the field adds: name, type, `is_optional`.

    Attributes:
        meaning: str, the sentences of the docstring, without the default.
        name: str, the name of the field.
        type: type of a value: int, float, str, bool, dict, tuple, list (of paths), or `os.PathLike`
            for a path.
        is_optional: bool, whether `None` is a value.
        default: any type, the value of an unset option. `None` if the corpus decides, or if
            nothing is done without the option.
        help_text: str or `None`, the text of `--help` if it is not made from the meaning.
        own_check: function or `None`, instead of the check of type and range.
        group: str, default that of the field before. The heading in `--help-all`.
        applies: str or `None`, when `default` applies: `NEW_MODEL` (without start_from),
            `NEW_TOKENIZER`, `VALIDATION`, `TEACHERS`, `LORA` or `GENERAL`; `None` for always.
        settled: str or `None`, what an unset option means, in words, if `default` does not show
            it; `""` for nothing.
        at_least, at_most: numbers or `None`, bounds that are allowed values.
        above, below: numbers or `None`, bounds that are not.
        note: str, text after the range in messages; of a list, what it holds.
        choices: tuple, the only values.
        flag: str, default the name with hyphens. The name on the command line, without `--`.
        metavar: str or `None`, what the help shows for a value.
        changeable: bool, whether a resumed training may have another value: the option says how
            long and how often, not what is computed at a step.
    """

    meaning: str
    name: str = ""
    type: type = object
    is_optional: bool = False
    default: Any = None
    help_text: str | None = None
    own_check: Any = None
    group: str = ""
    applies: str | None = None
    settled: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    note: str = ""
    choices: tuple = ()
    flag: str = ""
    metavar: str | None = None
    changeable: bool = False

    @property
    def type_name(self):
        """The type as a docstring has it, such as `"int"` or `"path"`."""
        return _TYPE_NAMES.get(self.type, self.type.__name__)

    @property
    def default_text(self):
        """What an unset option means, in words."""
        if self.settled is not None:
            return self.settled
        if self.default in (None, ()):
            return "none"
        if self.type is bool:
            return "yes" if self.default else "no" if self.is_optional else ""
        return f"{self.default:g}" if self.type is float else str(self.default)

    @property
    def help(self):
        """The sentences of `--help`."""
        if self.help_text is not None:
            return self.help_text
        choices = f" One of {', '.join(map(str, self.choices))}." if self.choices else ""
        default = f" Default: {self.default_text}." if self.default_text else ""
        return f"{self.meaning}{choices}{default}"

    @property
    def expected(self):
        """What a value must be, in words: the end of "NAME must be ..."."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.type is list:
            return f"a list of {self.note}"
        if self.type in _EXPECTED:
            return _EXPECTED[self.type]
        if self.above is not None:
            limits = {"above": self.above, "below": self.below, "at most": self.at_most}
            texts = [f"{word} {limit}" for word, limit in limits.items() if limit is not None]
            bounds = " and ".join(texts)
        elif self.below is not None:
            bounds = f"in [{self.at_least}, {self.below})"
        elif self.at_most is not None:
            bounds = f"from {self.at_least} to {self.at_most}"
        elif self.at_least is not None:
            bounds = f"{'of ' if self.type is int else ''}at least {self.at_least}"
        else:
            return "a whole number" if self.type is int else "a finite number"
        return f"{'a whole number ' if self.type is int else ''}{bounds}{self.note}"

    def check(self, value, name=None):
        """Returns a value as it is stored: NumPy's numbers as Python's, paths as str.

        Args:
            value: any type.
            name: str, default as `named` has it. What the message calls the option.

        Raises:
            ValueError: the value has the wrong type or is out of range.
        """
        name = name or named(self.name)
        if value is None and self.is_optional:
            return None
        if self.own_check is not None:
            return self.own_check(name, value)
        if self._has_type(value) and self._is_in_range(value):
            return _stored(value)
        is_infinite = isinstance(value, float) and not abs(value) < math.inf
        expected = "a finite number" if is_infinite and self.type is float else self.expected
        raise ValueError(f"{name} must be {expected}, but {shown(value)} was given.")

    def _has_type(self, value):
        if self.choices:
            return isinstance(value, tuple({type(choice) for choice in self.choices}))
        if self.type is list:
            is_list = isinstance(value, list | tuple)
            return is_list and all(isinstance(item, str | os.PathLike) for item in value)
        kinds = {int: numbers.Integral, float: numbers.Real, os.PathLike: str | os.PathLike}
        is_kind = isinstance(value, kinds.get(self.type, self.type))
        return is_kind and isinstance(value, bool) == (self.type is bool)

    def _is_in_range(self, value):
        if self.choices:
            return value in self.choices
        limits = [(getattr(self, name), holds) for name, holds in _LIMITS.items()]
        is_within = all(limit is None or holds(value, limit) for limit, holds in limits)
        return is_within and (self.type is not float or abs(value) < math.inf)


def option(
    meaning: str,
    default: Any = None,
    *,
    unset: Any = None,
    help: str | None = None,
    check: Any = None,
    metadata: dict[str, Any] | None = None,
    **attributes: Any,
) -> Any:
    """Makes the field of an option. The result is `Any` for type checkers, as the field's own type.

    Args:
        meaning: str, the sentences of the docstring, without the default.
        default: any type, default `None`. The default of the field; `dataclasses.MISSING` if there
            is none.
        unset: any type, default `None`. The value that settling gives an unset option, whose field
            is `None`.
        help: str, default made from `meaning` and the default. The text of `--help`.
        check: function, default `None`. Takes the option's name and a value, and returns the value
            or raises a ValueError, instead of the check of type and range.
        metadata: dict, default `None`. Further entries of the field's metadata.
        **attributes: attributes of `Option`, from `group` on.

    Returns:
        `dataclasses.Field`.

    Example:
        ```python
        import dataclasses

        from kformer_options.field import check_values, option


        @dataclasses.dataclass(frozen=True)
        class Noise:
            dropout: float | None = option("The rate of dropout.", at_least=0, below=1)

            def __post_init__(self):
                check_values(self)


        Noise(dropout=0.3)
        ```
    """
    declared = Option(
        meaning,
        default=default if unset is None else unset,
        help_text=help,
        own_check=check,
        **attributes,
    )
    return dataclasses.field(default=default, metadata={"option": declared, **(metadata or {})})


@functools.cache
def options_of(cls):
    """Returns the options of a dataclass: a dict of name to `Option`, in the order of the fields.

    Fields that `option` did not make are left out.

    Args:
        cls: dataclass.
    """
    options, group = {}, ""
    for field in dataclasses.fields(cls):
        if (declared := field.metadata.get("option")) is None:
            continue
        group = declared.group or group
        kind, is_optional = _kind(field.type)
        options[field.name] = dataclasses.replace(
            declared,
            name=field.name,
            type=kind,
            is_optional=is_optional,
            group=group,
            flag=declared.flag or field.name.replace("_", "-"),
        )
    return options


def check_values(instance):
    """Checks each option of an instance, and stores the values that the checks return.

    Args:
        instance: of a dataclass, which may be frozen.

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """
    for name, declared in options_of(type(instance)).items():
        object.__setattr__(instance, name, declared.check(getattr(instance, name)))


def documented(cls: _Class) -> _Class:
    """A class decorator: an entry for each option replaces the line `{options}` of the docstring.

    An entry has name, type, default and meaning.
    """
    if cls.__doc__ is not None:  # It is None under python -OO.
        entries = [docstring_entry(cls, name) for name in options_of(cls)]
        cls.__doc__ = cls.__doc__.replace("        {options}", "\n".join(entries))
    return cls


def docstring_entry(cls, name):
    """Returns the entry of an option in a docstring: name, type, default and meaning.

    Args:
        cls: dataclass that has the option.
        name: str.
    """
    declared = options_of(cls)[name]
    default = cls.__dataclass_fields__[declared.name].default
    if default is None and (declared.default is not None or declared.settled is not None):
        text = f"{declared.type_name}. {declared.help}"
    elif default is dataclasses.MISSING:
        text = f"{declared.type_name}. {declared.meaning}"
    else:
        kind = declared.type_name
        if declared.choices:
            kind = " or ".join(f"`{choice!r}`".replace("'", '"') for choice in declared.choices)
        value = f"{default!r}".replace("'", '"')
        plain = isinstance(default, int | float) and not isinstance(default, bool)
        text = f"{kind}, default {value if plain else f'`{value}`'}. {declared.meaning}"
    return textwrap.fill(
        f"{declared.name}: {text}",
        width=100,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _kind(annotation):
    """The type of an option by its annotation, and whether `None` is a value."""
    kinds = [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        kinds = list(typing.get_args(annotation))
    is_optional = type(None) in kinds
    kinds = [typing.get_origin(kind) or kind for kind in kinds if kind is not type(None)]
    if collections.abc.Sequence in kinds:
        return list, is_optional
    return (os.PathLike if os.PathLike in kinds else kinds[0]), is_optional


def _stored(value):
    """A value with NumPy's numbers as Python's, and paths as str, since JSON takes no others."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_stored(item) for item in value]
    is_number = isinstance(value, numbers.Number) and not isinstance(value, bool | int | float)
    return value.item() if is_number and hasattr(value, "item") else value
