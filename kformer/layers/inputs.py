"""Inputs that a user gives to a layer: nested lists become tensors, and ranks are checked."""

from typing import Any, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from kformer.layers.counter_hash import derive_seed

_DTYPES = {"float64": "float32", "int64": "int32"}
# The arguments of Keras's and KerasHub's layers that have other names here.
_OUR_NAMES = {
    "key_dim": "head_dim",
    "key_mask": "padding_mask",
    "decoder_sequence": "x",
    "encoder_sequence": "encoded",
    "decoder_padding_mask": "padding_mask",
    "decoder_attention_mask": "attention_mask",
    "encoder_padding_mask": "encoded_padding_mask",
    "encoder_attention_mask": "cross_attention_mask",
}


def of_list(value):
    """Returns a nested list of numbers or booleans as a tensor, anything else unchanged.

    Keras takes a nested list for a structure of many tensors.

    Args:
        value: nested list, or any other value.

    Returns:
        Tensor of float32, int32 or bool for a list of numbers; else `value`.

    Raises:
        ValueError: the list holds strings, or rows of different lengths.
    """
    if type(value) not in (list, tuple):
        return value
    leaf = value
    while type(leaf) in (list, tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, str):
        raise ValueError(f"A list of numbers is needed, but it holds {leaf!r}: tokenize texts.")
    if not isinstance(leaf, bool | int | float | np.generic):
        return value
    try:
        array = np.array(value)
    except ValueError:
        message = "The rows of a list have different lengths: pad the shorter ones."
        raise ValueError(message) from None
    return ops.convert_to_tensor(array, dtype=_DTYPES.get(array.dtype.name, array.dtype.name))


def check_rank(owner, value, axes):
    """Checks the number of axes of an input.

    Args:
        owner: str. The name of the input, for the message.
        value: tensor or array. A value without a shape is not checked.
        axes: str. Such as `"[B, T, D]"`.

    Raises:
        ValueError: the input has another rank.
    """
    shape = getattr(value, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return
    if len(shape) != axes.count(",") + 1:
        raise ValueError(
            f"{owner} must have the shape {axes}, but one of the shape {tuple(shape)} was given."
        )


def is_boolean(value):
    """Returns whether a value is a boolean tensor or array."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and keras.backend.standardize_dtype(dtype) == "bool"


def check_further_inputs(layer, values):
    """Checks that no mask is among the positional arguments after the first.

    Raises:
        ValueError: a value is boolean or has another rank than a sequence of vectors.
    """
    owner = (
        f"A positional argument of the layer '{layer.name}', which takes masks by name "
        "(padding_mask=mask, attention_mask=mask),"
    )
    for value in values:
        if is_boolean(value):
            raise ValueError(f"{owner} must be a sequence of vectors, but is boolean.")
        check_rank(owner, value, "[B, T, D]")


def check_names(owner, names):
    """Checks that no argument has the name that it has in Keras's or KerasHub's layers.

    Raises:
        TypeError: an argument has such a name.
    """
    for name in names:
        if name in _OUR_NAMES:
            raise TypeError(f"{owner} has no argument {name!r}: give {_OUR_NAMES[name]!r} instead.")


class LayerArguments(TypedDict, total=False):
    """The arguments of `keras.layers.Layer`, which every layer takes as `**kwargs`."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


def part_arguments(name, seed, dtype, label=None):
    """Returns arguments of a layer that is part of a layer or model: name, dtype policy, own seed.

    Args:
        name: str. The name of the part.
        seed: int. The seed of the whole.
        dtype: Keras dtype policy.
        label: str or `None`, default `None`. What the seed is derived for; `None` for the name.

    Returns:
        Dict.
    """
    return {"name": name, "dtype": dtype, "seed": derive_seed(seed, label or name)}


class ReadsLists(keras.layers.Layer):
    """Base class of layers whose inputs may be nested lists, and have Keras masks.

    A subclass whose inputs have one rank names their axes in `input_axes`. It names the arguments
    that its configuration has in `saved_arguments`; its attributes of these names have the values.
    """

    input_axes = None
    saved_arguments = ()

    def __init__(self, **kwargs: Unpack[LayerArguments]):
        check_names(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args, **kwargs):
        args, kwargs = self._tensors(args, kwargs)
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, inputs, *args, **kwargs):
        """Returns the outputs as symbolic tensors; here those of the inputs' shape."""
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self):
        values = {name: getattr(self, name) for name in self.saved_arguments}
        values |= {
            name: keras.initializers.serialize(value)
            for name, value in values.items()
            if callable(value)
        }
        return {**super().get_config(), **values}

    def _part(self, name, label=None):
        return part_arguments(name, self.seed, self.dtype_policy, label)

    def compute_output_shape(self, *shapes, **named_shapes):
        """Returns the shape of the outputs for the shapes of the inputs.

        Args:
            *shapes: tuple of int or `None` each, in the order of the call's tensors.
            **named_shapes: the same by name, such as `encoded_shape`.

        Returns:
            Tuple of int or `None`.
        """
        inputs = [keras.KerasTensor(tuple(shape), self.compute_dtype) for shape in shapes]
        named_inputs = {
            name.removesuffix("_shape"): keras.KerasTensor(tuple(shape), self.compute_dtype)
            for name, shape in named_shapes.items()
        }
        return self.compute_output_spec(*inputs, **named_inputs).shape

    def _tensors(self, args, kwargs):
        """The arguments of a call without nested lists, the positional ones of the right rank."""
        check_names(f"The layer '{self.name}'", kwargs)
        same = {id(value): of_list(value) for value in args}
        args = tuple(same[id(value)] for value in args)
        kwargs = {name: of_list(value) for name, value in kwargs.items()}
        if self.input_axes is not None:
            for value in args[:1]:
                check_rank(f"The input of the layer '{self.name}'", value, self.input_axes)
            check_further_inputs(self, args[1:])
        return args, kwargs
