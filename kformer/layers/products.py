"""Matrix products of a training step, which may be of a lower precision than everything around
them.
"""

import contextlib
import contextvars

import keras
from keras import ops

_chosen = None
_IN_USE = contextvars.ContextVar("kformer_products", default=None)


def set_training_products(dtype):
    """Chooses what float32 matrices are rounded to before they are multiplied, in training steps
    that are traced from now on.

    Weights, sums of gradients, norms, softmax and all else stay float32: of what `mixed_bfloat16`
    does, this is the part that saves a processor time.

    Args:
        dtype: "bfloat16", or `None` for products of float32.
    """
    global _chosen
    if dtype not in (None, "bfloat16"):
        raise ValueError(
            "The products of a training step are of bfloat16 or, with None, of float32, but "
            f"{dtype!r} was given."
        )
    _chosen = dtype


@contextlib.contextmanager
def training_products():
    """Within it, `product` multiplies as `set_training_products` chose."""
    token = _IN_USE.set(_chosen)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def product_dtype(dtype):
    """The dtype in which matrices of a dtype are multiplied here."""
    return _IN_USE.get() if dtype == "float32" and _IN_USE.get() else dtype


def product(x, y):
    """`ops.matmul` of two tensors of one dtype, in that dtype, or rounded to the one that
    `set_training_products` chose.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    lower = product_dtype(dtype)
    if lower == dtype:
        return ops.matmul(x, y)
    return ops.cast(ops.matmul(ops.cast(x, lower), ops.cast(y, lower)), dtype)
