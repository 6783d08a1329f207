"""The lists of source tokens in the graph of a SavedModel."""

import numpy as np
import tensorflow as tf

from kformer.decoding.repetition import NO_TOKEN


class GraphLists:
    """The tokens that translations may need, as `TokenLists` has them in Python.

    Args:
        lists: `TokenLists`.

    Call arguments:
        source_ids: int32 tensor `[B, S]`, padded.
        is_static: bool, default `False`. Whether the size of the result depends on S alone.

    Returns:
        int32 tensor `[B, X]`, filled up with `NO_TOKEN`.

    Attributes:
        variables: list of `tf.Variable`, which all graphs share.
    """

    def __init__(self, lists):
        sizes = [len(row) for row in lists.lists]
        values = np.array([token for row in lists.lists for token in row], "int32")
        splits = np.cumsum([0, *sizes], dtype="int32")
        self.variables = [tf.Variable(array, trainable=False) for array in (values, splits)]
        self._always, self._longest = np.array([lists.always], "int32"), max(sizes)

    def __call__(self, source_ids, is_static=False):
        lists = tf.RaggedTensor.from_row_splits(*map(tf.identity, self.variables), validate=False)
        batch, length = tf.unstack(tf.shape(source_ids))
        rows = tf.gather(lists, source_ids).merge_dims(1, 2).to_tensor(NO_TOKEN)
        if is_static:
            width = length * self._longest - tf.shape(rows)[1]
            rows = tf.pad(rows, [[0, 0], [0, width]], constant_values=NO_TOKEN)
        return tf.concat([tf.repeat(self._always, batch, axis=0), rows], axis=1)
