"""What a reader of a toolkit's files returns, and what a user tells it beside the files."""

import dataclasses
from typing import NamedTuple

import numpy as np

from kformer.text import Tokenizer


class TensorTable:
    """Tensors by the names that `kformer.interop.slots` gives them. Each is read when asked for.

    Args:
        tensors: dict of name to pair of shape and function without arguments, which returns a NumPy
            array of this shape.
        num_bytes: int. The size of the files.

    Attributes:
        shapes: dict of name to tuple of int.
        num_bytes: int.
    """

    def __init__(self, tensors, num_bytes):
        self._tensors, self.num_bytes = tensors, num_bytes
        self.shapes = {name: tuple(shape) for name, (shape, _) in tensors.items()}

    def read(self, name):
        """A tensor as a NumPy array, in the dtype in which it is stored.

        Raises:
            ValueError: NumPy has no such dtype.
        """
        try:
            return np.asarray(self._tensors[name][1]())
        except TypeError as error:
            raise ValueError(
                f"The tensor {name!r} holds numbers that cannot be read ({error})."
            ) from None


class ToolkitModel(NamedTuple):
    """A model as a toolkit's files have it.

    Attributes:
        toolkit: str. Its name, such as "Marian".
        arguments: dict. Keyword arguments of `kformer.Transformer`: what the numbers mean is
            settled here (norms, positions, ids).
        weights: `TensorTable`.
        tokenizer: `Tokenizer`, with the ids that the model knows.
        search: dict. Fields of `SearchOptions`: the toolkit's own search.
        remarks: tuple of str, default empty. Sentences for the user, such as that 8-bit weights
            were made float32.
        config: dict of JSON values, default `None`. What else the configuration of a run has.
    """

    toolkit: str
    arguments: dict
    weights: TensorTable
    tokenizer: Tokenizer
    search: dict
    remarks: tuple = ()
    config: dict | None = None


@dataclasses.dataclass(frozen=True)
class ToolkitOptions:
    """What the files of a toolkit may not say, as `load_checkpoint` takes it.

    Args:
        source_model, target_model: path, default `None`. The SentencePiece models that split the
            text before the toolkit saw it; `None` for those beside the files.
        source_vocabulary, target_vocabulary: path, default `None`. The toolkit's files of tokens;
            `None` for those beside the model.
        pretokenized: bool, default `False`. Whether texts are tokens with spaces between them.
        num_heads: int, default `None`. `None` for what the files say.
        source_language, target_language: str, default `None`. The languages' codes, where the model
            has several.
    """

    source_model: str | None = None
    target_model: str | None = None
    source_vocabulary: str | None = None
    target_vocabulary: str | None = None
    pretokenized: bool = False
    num_heads: int | None = None
    source_language: str | None = None
    target_language: str | None = None
