"""Weights in the form in which a SavedModel's graph is quickest with them.

What a search in Python turns round or converts each time anew, an export does once and stores.
"""

from kformer.decoding.kernels import TensorFlowKernels

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
                self._stored[key] = self._tf.Variable(convert(self._tf.convert_to_tensor(variable.value)), trainable=False)
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


class Bfloat16Kernels(Float32Kernels):
    """Matrices in half the bytes: products of bfloat16 numbers, summed in float32 and rounded; all else is float32.

    A matrix is stored as `[M, K]`, which the product takes faster, and a table of embeddings once for its two uses.
    """

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
