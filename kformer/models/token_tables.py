"""The weights with a row for each token: embeddings, the output projection and its bias."""

import numpy as np
from keras import ops

# The weights with a row or column for each token, and its axis.
_TABLES = {
    **dict.fromkeys((f"{name}embedding/embeddings" for name in ("", "source_", "target_")), 0),
    **{"output_projection/kernel": 1, "output_bias/bias": 0},
}


def with_tables(model, changes, edit):
    """Returns a model like another, with other tokens.

    Args:
        model: `kformer.Transformer`.
        changes: dict. The entries of its configuration that change, such as sizes.
        edit: function of a table `[V, ...]`, its side ("source" or "target") and its name. Returns
            the new table.

    Returns:
        A model of the same class, not compiled. All other weights are the same.
    """

    def edit_weight(name, value):
        if (axis := _TABLES.get(name)) is None:
            return value
        side = "source" if name.startswith("source") else "target"
        table = np.moveaxis(ops.convert_to_numpy(value), axis, 0)
        return np.moveaxis(edit(table, side, name), 0, axis)

    return model.copy_with(changes, edit_weight)


def add_rows(table, size, seed):
    """Returns a table with further rows at the end, which are random.

    Each number is normally distributed, with the mean of its column and half the deviation. Rows
    with another mean take more probability from the old tokens (Hewitt 2021), and rows with the
    full deviation twice as much; without any, all new tokens would begin as one.

    Args:
        table: float array `[V, ...]`.
        size: int. The number of rows of the result.
        seed: int or sequence of int.

    Returns:
        Float array.

    References:
        Hewitt 2021, "Initializing new word embeddings for pretrained language models",
        https://nlp.stanford.edu/~johnhew/vocab-expansion.html.
    """
    rows = table.astype("float32")
    shape = size - len(rows), *rows.shape[1:]
    noise = np.random.default_rng(seed).standard_normal(shape, "float32")
    new = rows.mean(0) + rows.std(0) / 2 * noise
    return np.concatenate([table, new.astype(table.dtype)])
