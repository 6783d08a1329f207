"""Weights in the form in which a SavedModel's graph is quickest with them.

What a search in Python turns round or converts each time anew, an export does once and stores.
"""

from kformer.decoding.fast.ops_tensorflow import TensorFlowKernels
from kformer.layers.full_attention import MASKED

DTYPES = ("float32", "bfloat16")


def stored_kernels(dtype):
    """Kernels for one export, of a dtype out of `DTYPES`."""
    return {"float32": Float32Kernels, "bfloat16": Bfloat16Kernels}[dtype]()


class Float32Kernels(TensorFlowKernels):
    """The projection is stored as `[D, V]`, beside the table of embeddings that it may be."""

    def __init__(self):
        super().__init__()
        self._stored = {}

    @property
    def variables(self):
        """The variables made here."""
        return list(self._stored.values())

    def store(self, variable, convert):
        """A variable with a Keras variable's value after a conversion, one for all uses."""
        key = (id(variable), convert.__name__)
        if key not in self._stored:
            with self._tf.init_scope():  # outside of the graph that is being traced
                self._stored[key] = self._tf.Variable(
                    convert(self._tf.convert_to_tensor(variable.value)), trainable=False
                )
        return self._stored[key]

    def bind_projection(self, variable, is_table, tokens=None):
        def some(matrix):
            return self.some_of(matrix, is_table, tokens)

        if tokens is not None:
            return self.store(variable, some)
        return self.store(variable, self._tf.transpose) if is_table else self.bind(variable)

    def begin_projection(self, projection):
        return ()

    def project(self, x, projection, carried, bias=None):
        return self._large_product(x, projection, bias)


class XlaKernels(Float32Kernels):
    """For a graph that XLA compiles: plain operations, which it merges as it likes, and shapes that
    do not change in a loop.

    Args:
        stored: the `Float32Kernels` of the graphs beside it, whose variables this one uses.
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
        # In one pass over the cache, no slower than a write in place: it is merged with the product
        # that reads it.
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
        # How much of the source is padding is not known when it is compiled.
        places = self._tf.range(self._tf.size(mask))
        return places, places


class Bfloat16Kernels(Float32Kernels):
    """Matrices in half the bytes: products of bfloat16 numbers, summed in float32 and rounded; all
    else is float32.

    A matrix is stored as `[M, K]`, which the product takes faster, and a table of embeddings once
    for its two uses."""

    def bind_kernel(self, variable):
        return self.store(variable, self._turned)

    def bind_table(self, variable):
        return self.store(variable, self._as_it_is)

    def bind_projection(self, variable, is_table, tokens=None):
        def some(matrix):
            return self._turned(self.some_of(matrix, is_table, tokens))

        if tokens is not None:
            return self.store(variable, some)
        return self.bind_table(variable) if is_table else self.bind_kernel(variable)

    def product(self, x, kernel, bias=None):
        return self._large_product(x, kernel, bias)

    def _large_product(self, x, kernel, bias):
        tf = self._tf
        y = tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), kernel, transpose_b=True), tf.float32)
        return y if bias is None else tf.nn.bias_add(y, bias)

    def gather(self, table, places):
        return self._tf.cast(self._tf.gather(table, places), self._tf.float32)

    def _turned(self, matrix):
        return self._tf.cast(self._tf.transpose(matrix), self._tf.bfloat16)

    def _as_it_is(self, table):
        return self._tf.cast(table, self._tf.bfloat16)
