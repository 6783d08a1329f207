"""Weights in the form in which the graph of a SavedModel is fastest with them.

A search in Python transposes or converts some weights at each call. An export does so once, and
stores the result.
"""

from kformer.decoding.fast.ops_tensorflow import TensorFlowOps
from kformer.layers.full_attention import MASKED

DTYPES = ("float32", "bfloat16")


def stored_ops(dtype):
    """The operations of one export.

    Args:
        dtype: str. One of `DTYPES`.

    Returns:
        `StoredOps` or `Bfloat16Ops`.
    """
    return {"float32": StoredOps, "bfloat16": Bfloat16Ops}[dtype]()


class StoredOps(TensorFlowOps):
    """Stores the projection as `[D, V]`, beside the table of embeddings that it may be."""

    def __init__(self):
        super().__init__()
        self._stored = {}

    @property
    def variables(self):
        return list(self._stored.values())

    def store(self, variable, convert):
        """The value of a Keras variable after a conversion, in a variable shared by all uses.

        Args:
            variable: Keras variable.
            convert: function of a tensor to a tensor. Functions of one name count as one.

        Returns:
            `tf.Variable`.
        """
        key = (id(variable), convert.__name__)
        if key not in self._stored:
            with self._tf.init_scope():  # outside of the graph that is being traced
                self._stored[key] = self._tf.Variable(
                    convert(self._tf.convert_to_tensor(variable.value)), trainable=False
                )
        return self._stored[key]

    def bind_projection(self, variable, is_table, tokens=None):
        def shortlist(matrix):
            return self._columns(matrix, is_table, tokens)

        if tokens is not None:
            return self.store(variable, shortlist)
        return self.store(variable, self._tf.transpose) if is_table else self.bind(variable)

    def begin_projection(self, projection):
        return ()

    def project(self, x, projection, carried, bias=None):
        return self._large_product(x, projection, bias)


class XlaOps(StoredOps):
    """For a graph that XLA compiles: plain operations, which XLA fuses, and static shapes.

    Args:
        stored: the `StoredOps` of the other graphs of the export, whose variables it shares.
    """

    def __init__(self, stored):
        super().__init__()
        self._stored = stored._stored

    def product(self, x, kernel, bias=None):
        y = self._tf.matmul(x, kernel)
        return y if bias is None else y + bias

    _large_product = product

    def empty_cache(self, rows, heads, steps, head_dim):
        return self._tf.zeros((rows, heads, steps, head_dim))

    def extend(self, cache, new, index):
        # One pass over the cache, no slower than a write in place: XLA fuses it with the product
        # that reads the cache.
        is_here = self._tf.range(self._tf.shape(cache)[2]) == index
        return self._tf.where(is_here[:, None], new, cache)

    def attend_cache(self, query, key, value, scale, index):
        tf = self._tf
        scores = tf.matmul(query * scale, key, transpose_b=True)
        scores = tf.where(tf.range(tf.shape(key)[2]) <= index, scores, MASKED)
        return self._rows_of(tf.matmul(tf.nn.softmax(scores), value))

    def _by_eigen(self, x, y, adj_y=False):
        return self._tf.matmul(x, y, transpose_b=adj_y)

    def pack(self, mask):
        # The amount of padding is not known when the graph is compiled: all positions are computed.
        indices = self._tf.range(self._tf.size(mask))
        return indices, indices


class Bfloat16Ops(StoredOps):
    """Matrices in half the bytes: products of bfloat16 numbers, summed in float32 and rounded.
    Everything else is float32.

    A matrix is stored transposed, `[O, I]`, which makes its product faster, and a table of
    embeddings once for its two uses.
    """

    def bind_kernel(self, variable):
        return self.store(variable, self._transposed)

    def bind_table(self, variable):
        return self.store(variable, self._rounded)

    def bind_projection(self, variable, is_table, tokens=None):
        def shortlist(matrix):
            return self._transposed(self._columns(matrix, is_table, tokens))

        if tokens is not None:
            return self.store(variable, shortlist)
        return self.bind_table(variable) if is_table else self.bind_kernel(variable)

    def product(self, x, kernel, bias=None):
        return self._large_product(x, kernel, bias)

    def _large_product(self, x, kernel, bias):
        tf = self._tf
        y = tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), kernel, transpose_b=True), tf.float32)
        return y if bias is None else tf.nn.bias_add(y, bias)

    def gather(self, table, indices):
        return self._tf.cast(self._tf.gather(table, indices), self._tf.float32)

    def _transposed(self, matrix):
        return self._tf.cast(self._tf.transpose(matrix), self._tf.bfloat16)

    def _rounded(self, table):
        return self._tf.cast(table, self._tf.bfloat16)
