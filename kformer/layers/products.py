"""Matrix products of a training step, which may have a lower precision than the rest."""

import contextvars

import keras
from keras import ops

from kformer.utils.contexts import context_value

_training_dtype = None
_IN_USE = contextvars.ContextVar("kformer_products", default=None)


def set_training_products(dtype):
    """Sets the dtype that float32 matrices are rounded to before a product in a training step.

    It holds for steps that are traced from now on. Weights, sums of gradients, norms, softmax and
    all else stay float32: this is the part of `mixed_bfloat16` that saves CPU time.

    Args:
        dtype: str or `None`. `"bfloat16"`, or `None` for products of float32.

    Raises:
        ValueError: another dtype was given.
    """
    global _training_dtype
    if dtype not in (None, "bfloat16"):
        raise ValueError(
            "The products of a training step are of bfloat16 or, with None, of float32, but "
            f"{dtype!r} was given."
        )
    _training_dtype = dtype


def training_products():
    """A context within which `product` uses the dtype that `set_training_products` set."""
    return context_value(_IN_USE, _training_dtype)


def product_dtype(dtype):
    """Returns the dtype in which matrices of a dtype are multiplied in this context.

    Args:
        dtype: str. The dtype of the matrices.

    Returns:
        The dtype's name.
    """
    return _IN_USE.get() if dtype == "float32" and _IN_USE.get() else dtype


def product(x, y):
    """`ops.matmul` of tensors of one dtype, in that dtype or in `product_dtype` of it.

    Args:
        x: float tensor `[..., T, D]`.
        y: float tensor `[..., D, K]` of the same dtype.

    Returns:
        Float tensor `[..., T, K]` of that dtype.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    lower = product_dtype(dtype)
    if lower == dtype:
        return ops.matmul(x, y)
    return ops.cast(ops.matmul(ops.cast(x, lower), ops.cast(y, lower)), dtype)
