"""What an option is: its name, type, default, range, help and check.

This module imports only the standard library, as `kformer_options.training` does.
"""

import dataclasses
import math
import numbers
import os

# When an option's default applies; without a condition it always does.
NEW_MODEL, NEW_TOKENIZER, VALIDATION = "new model", "new tokenizer", "validation"
TEACHERS, LORA, GENERAL = "teachers", "adapters", "general text"


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a training. Every option may be unset, which is `None`.

    Attributes:
        name: str, the keyword argument of `train_run` and the name in `config.json`.
        type: type of a value: int, float, str, bool, dict, list (of paths), or `os.PathLike` for a
            path.
        meaning: str, what it is, without its default.
        default: the value of an unset option. `None` if it is chosen by the corpus, or if unset
            means that nothing is done.
        group: str, the heading in `kformer train --help`.
        applies: condition of that default: `None` (always), `NEW_MODEL` (without start_from),
            `NEW_TOKENIZER`, `VALIDATION`, `TEACHERS`, `LORA` or `GENERAL`.
        unset: str, what an unset option means, where `default` does not show it; `""` if there is
            nothing to tell.
        least, most: bounds that are allowed values.
        above, below: bounds that are not.
        note: str, what a message adds to the range.
        choices: tuple of the allowed values.
        flag: str, the name on the command line, without hyphens in front.
        metavar: str, what the help shows for a value.
        changeable: bool, whether a resumed training may have another value: the option says how
            long and how often, not what is computed at a step.
    """

    name: str
    type: type
    meaning: str
    default: object = None
    group: str = ""
    applies: str | None = None
    unset: str | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    note: str = ""
    choices: tuple = ()
    flag: str = ""
    metavar: str | None = None
    changeable: bool = False

    def __post_init__(self):
        if not self.flag:
            object.__setattr__(self, "flag", self.name.replace("_", "-"))

    @property
    def type_name(self):
        """The type as a docstring has it, such as `"int"` or `"path"`."""
        names = {os.PathLike: "path", list: "list of paths"}
        return names.get(self.type, self.type.__name__)

    @property
    def default_text(self):
        """What an unset option means, in words."""
        if self.unset is not None:
            return self.unset
        if self.default is None:
            return "none"
        if self.type is bool:
            return "yes" if self.default else "no"
        return f"{self.default:g}" if self.type is float else str(self.default)

    @property
    def help(self):
        """The sentences of `--help`."""
        choices = f" One of {', '.join(self.choices)}." if self.choices else ""
        default = f" Default: {self.default_text}." if self.default_text else ""
        return f"{self.meaning}{choices}{default}"

    @property
    def expected(self):
        """What a value must be, in words: the end of "NAME must be ..."."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kinds = {bool: "true or false", str: "a text", os.PathLike: "a path"}
        kinds |= {dict: "a dict of names and values", list: f"a list of {self.note}"}
        if self.type in kinds:
            return kinds[self.type]
        if self.above is not None:
            bounds = f"above {self.above}"
            bounds += "" if self.below is None else f" and below {self.below}"
            bounds += "" if self.most is None else f" and at most {self.most}"
        elif self.below is not None:
            bounds = f"in [{self.least}, {self.below})"
        elif self.most is not None:
            bounds = f"from {self.least} to {self.most}"
        else:
            bounds = f"at least {self.least}"
        if self.type is int:
            bounds = f"a whole number {'of ' if self.most is None else ''}{bounds}"
        return bounds + self.note

    def check(self, value, name=None):
        """Checks a value; `None`, an unset option, passes.

        Args:
            value: what was given.
            name: str, default the option's name. What the message calls the option.

        Raises:
            ValueError: the value has the wrong type or is out of range.
        """
        if value is not None and not (self._has_type(value) and self._is_in_range(value)):
            name = name or self.name
            raise ValueError(f"{name} must be {self.expected}, but {value!r} was given.")

    def _has_type(self, value):
        kinds = {int: numbers.Integral, float: numbers.Real, os.PathLike: str | os.PathLike}
        if self.type is list:
            is_list = isinstance(value, list | tuple)
            return is_list and all(isinstance(part, str | os.PathLike) for part in value)
        is_kind = isinstance(value, kinds.get(self.type, self.type))
        return is_kind and isinstance(value, bool) == (self.type is bool)

    def _is_in_range(self, value):
        if self.choices:
            return value in self.choices
        if self.type not in (int, float):
            return True
        low = value > self.above if self.above is not None else value >= self.least
        high = value < (math.inf if self.below is None else self.below)
        return low and high and (self.most is None or value <= self.most)
