"""`TrainOptions`: the options that `kformer_cli.declarations` declares, with their checks."""

import dataclasses
import importlib.util
import os
import textwrap

from kformer.models.config import check_packing
from kformer.training.new_model import check_model_options
from kformer_cli.declarations import TRAINING, default_of
from kformer_cli.option_names import named

_VOCABULARY = ("tokenizer_type", "vocabulary_size", "separate_vocabularies")
_OF_THE_MODEL = ("preset", "model_options", "norm", "max_length", "tokenizer", *_VOCABULARY)
_OF_THE_VALIDATION = ("select", "patience", "valid_every", "quality_every", "log_dir")


class _Checks:
    """The checks of `TrainOptions`: each value at once, combinations of values later."""

    def __post_init__(self):
        for name, option in TRAINING.items():
            value = plain(getattr(self, name))
            option.check(value, named(name))
            if option.type in (list, dict):
                value = value or None  # An empty list of teachers means none.
            object.__setattr__(self, name, value)

    def check_whole(self):
        """Checks that the options fit together, before the long work.

        Raises:
            ValueError: an option is missing, or two options contradict each other.
        """
        self._check_files()
        self._check_start()
        if self.model_options:
            check_model_options(self.model_options, self.preset or default_of("preset"))
            if self.packed:
                check_packing(self.model_options)
        if self.packed and self.max_shapes is not None:
            raise ValueError(
                f"Packed batches all have one shape: leave out {named('max_shapes')}="
                f"{self.max_shapes}, or {named('packed')}."
            )
        self._check_tokenizer()
        self._check_teachers()

    def _check_files(self):
        if self.train_source is None or self.train_target is None:
            raise ValueError(
                "A training needs both sides of the corpus: give "
                f"{named('train_source')} and {named('train_target')}."
            )
        if (self.valid_source is None) != (self.valid_target is None):
            raise ValueError(
                "A validation needs both sides: give "
                f"{named('valid_source')} and {named('valid_target')}, or neither."
            )
        for name in _OF_THE_VALIDATION:
            # A run without validation has the default of valid_every in its config.
            unused = None if name != "valid_every" else default_of(name)
            if self.valid_source is None and getattr(self, name) not in (None, unused):
                raise ValueError(
                    f"{named(name)} is about the validation: give {named('valid_source')} and "
                    f"{named('valid_target')}, or leave it out."
                )
        if self.log_dir is not None and importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                f"{named('log_dir')} is for TensorBoard, which is not installed: pip install "
                f"tensorboard, or leave {named('log_dir')} out."
            )

    def _check_start(self):
        for name in _OF_THE_MODEL if self.start_from is not None else ():
            if getattr(self, name) is not None:
                raise ValueError(
                    f"With {named('start_from')} the model is the one of {self.start_from}, so "
                    f"{named(name)} cannot be chosen."
                )

    def _check_tokenizer(self):
        has_vocabulary_options = any(getattr(self, name) for name in _VOCABULARY)
        if self.tokenizer is not None and has_vocabulary_options:
            raise ValueError(
                f"The tokenizer in {self.tokenizer} has its vocabularies already: leave the other "
                "vocabulary options out."
            )
        if self.teachers and self.tokenizer is None and has_vocabulary_options:
            raise ValueError(
                "The student's tokenizer is that of its teachers: leave the vocabulary options out."
            )
        is_new = self.tokenizer is None and self.start_from is None and not self.teachers
        is_bpe = (self.tokenizer_type or default_of("tokenizer_type")) == "bpe"
        if is_new and is_bpe and (self.subword_sampling or 0) >= 1:
            raise ValueError(
                f"{named('subword_sampling')} must be below 1 with a tokenizer of type bpe, whose "
                f"merges it leaves out, but {self.subword_sampling} was given; 0.1 is usual."
            )

    def _check_teachers(self):
        if self.teacher_weight is not None and not self.teachers:
            raise ValueError(
                f"{named('teacher_weight')} is about what teachers predict: give "
                f"{named('teachers')}, or leave it out."
            )
        if self.teachers and self.subword_sampling:
            raise ValueError(
                "The predictions of teachers belong to one segmentation of the text: leave out "
                f"{named('subword_sampling')}, or {named('teachers')}."
            )


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
