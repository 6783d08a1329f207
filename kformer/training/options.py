"""`TrainOptions`: the options that `kformer_options.training` declares, with their checks."""

import dataclasses
import os
import textwrap

from kformer.models.config import check_packing
from kformer.training.new_model import check_model_options
from kformer_options.combinations import check_combinations
from kformer_options.names import named
from kformer_options.training import TRAINING, default_of


class _Checks:
    """The checks of `TrainOptions`: each value at once, combinations of values later."""

    def __post_init__(self):
        for name, option in TRAINING.items():
            value = plain(getattr(self, name))
            option.check(value, named(name))
            if option.type in (list, dict):
                value = value or None  # An empty list of teachers means none.
            elif option.type in (int, float) and hasattr(value, "item"):
                value = value.item()  # JSON takes no NumPy number.
            object.__setattr__(self, name, value)

    def check_whole(self):
        """Checks that the options fit together, before the long work.

        Raises:
            ValueError: an option is missing, or two options contradict each other.
        """
        check_combinations(self)
        if self.model_options:
            check_model_options(self.model_options, self.preset or default_of("preset"))
            if self.packed:
                check_packing(self.model_options)


def plain(value):
    """Returns a value with paths as strings, as JSON needs them.

    Args:
        value: any type. In a list or tuple, each part is treated.

    Returns:
        A str for a path, a list for a list or tuple, else the value itself.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def _attributes():
    """Yields the entries of the docstring's `Attributes`."""
    for option in TRAINING.values():
        text = f"{option.name}: {option.type_name}. {option.help}"
        yield textwrap.fill(text, 96, initial_indent="    ", subsequent_indent=" " * 8)


TrainOptions = dataclasses.make_dataclass(
    "TrainOptions",
    [(name, option.type | None, None) for name, option in TRAINING.items()],
    bases=(_Checks,),
    frozen=True,
    namespace={"__module__": __name__},
)
TrainOptions.__doc__ = """Options of `train_run`. `None` means unset: the default is taken.

Attributes:
{attributes}

Raises:
    ValueError: a value has the wrong type or is out of range.

Example:
    ```python
    options = kformer.trainer.TrainOptions("train.en", "train.de", preset="small", epochs=20)
    print(options.keep)  # None: the default, 2
    ```
""".format(attributes="\n".join(_attributes()))
