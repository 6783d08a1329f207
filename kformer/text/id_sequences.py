"""Sequences of ids from lists, NumPy arrays or tensors of any backend."""

import itertools
import numbers

import numpy as np


class IdSequence(list):
    """The ids of one text. Empty, it is still one sequence, while `[]` may be an empty batch."""


def id_rows(ids):
    """Converts ids to lists.

    No backend is imported: tensors are recognized by their methods.

    Args:
        ids: sequence of int, or sequence of such sequences; lists, arrays or tensors. An empty list
            is an empty batch, an empty `IdSequence` one sequence.

    Returns:
        list of lists of int, and whether `ids` was one flat sequence.

    Raises:
        ValueError: `ids` has other than one or two dimensions, or holds anything but integers.
    """
    if hasattr(ids, "row_splits"):  # a ragged tensor of TensorFlow
        return ids.to_list(), False
    if hasattr(ids, "detach"):  # a tensor of PyTorch, perhaps on a GPU or with a gradient
        ids = ids.detach().cpu()
    if hasattr(ids, "ndim") and hasattr(ids, "dtype"):
        ids = np.asarray(ids)
        if ids.ndim not in (1, 2):
            raise ValueError(f"ids must have one or two dimensions, not {ids.ndim}.")
        flat = ids.ndim == 1 and ids.dtype != object
    else:
        is_one, ids = isinstance(ids, IdSequence), list(ids)
        flat = is_one or (bool(ids) and isinstance(ids[0], numbers.Integral))
    rows = [
        row.tolist() if hasattr(row, "tolist") else list(row) for row in ([ids] if flat else ids)
    ]
    for token_id in itertools.chain.from_iterable(rows):
        if type(token_id) is not int and not isinstance(token_id, numbers.Integral):
            raise ValueError(f"ids must be whole numbers; {token_id!r} is not.")
    return rows, flat
