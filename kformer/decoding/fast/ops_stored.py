"""Weights in the form in which the graph of a SavedModel is fastest with them.

A search in Python transposes or converts some weights at each call. An export does so once, and
stores the result.
"""

import weakref
from typing import Any, NamedTuple

import numpy as np

from kformer.decoding.fast.ops import HIGHEST, HIGHEST_OF_7_BITS, PROBE_LENGTH
from kformer.decoding.fast.ops_tensorflow import TensorFlowOps
from kformer.decoding.fast.smoothing import SmoothedOps
from kformer.layers.full_attention import MASKED

DTYPES = ("float32", "bfloat16", "int8")

# Vectors of up to so many numbers become constants of a graph, which cost nothing to read. (To read
# a variable is an operation of its own in each step.) Longer ones, of a vocabulary, stay variables.
_SHORT = 8192

NO_INT8_PRODUCTS = (
    "This build of TensorFlow has no int8 products, which its Linux builds for x86-64 have:"
)


def stored_ops(dtype):
    """The operations of one export, or of searches in Python.

    Args:
        dtype: str or `None`. One of `DTYPES`; `None` stores nothing.

    Returns:
        `TensorFlowOps`, `StoredOps`, `Bfloat16Ops` or `Int8Ops`.
    """
    kinds = {"float32": StoredOps, "bfloat16": Bfloat16Ops, "int8": Int8Ops}
    return kinds.get(dtype, TensorFlowOps)()


def has_int8_products():
    """Whether this build of TensorFlow has the operation of `Int8Ops`."""
    import tensorflow as tf

    fast = Int8Ops()
    try:
        tf.function(lambda: fast.levels().highest, autograph=False)()
    except (RuntimeError, tf.errors.OpError):  # unknown, or known and without a kernel
        return False
    return True


def shortlist_name(tokens):
    """The name of a conversion to the columns of some tokens: one for each shortlist."""
    return f"shortlist {np.asarray(tokens).tolist()}"


class StoredOps(TensorFlowOps):
    """Stores the projection as `[D, V]`, beside the table of embeddings that it may be."""

    def __init__(self):
        super().__init__()
        self._stored = {}

    @property
    def variables(self):
        return [each for each in self._stored.values() if isinstance(each, self._tf.Variable)]

    def bind(self, variable, factors=None):
        if len(variable.shape) > 1 or variable.shape[0] > _SHORT:
            return super().bind(variable)
        return self.store(variable, lambda vector: vector, "vector")

    def store(self, variable, convert, name=None):
        """The value of a Keras variable after a conversion, shared by all uses.

        Args:
            variable: Keras variable.
            convert: function of a tensor to a tensor.
            name: str, default `None` for the function's. Conversions of one name count as one.

        Returns:
            `tf.Variable`; a NumPy array for a short vector.
        """
        key = (id(variable), name or convert.__name__)
        if key not in self._stored:
            with self._tf.init_scope():  # outside of the graph that is being traced
                value = convert(self._tf.convert_to_tensor(variable.value))
                is_short = value.shape.rank == 1 and value.shape[0] <= _SHORT
                self._stored[key] = (
                    value.numpy() if is_short else self._tf.Variable(value, trainable=False)
                )
        return self._stored[key]

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        def shortlist(matrix):
            return self._columns(matrix, is_table, tokens)

        if self._tf.is_tensor(tokens):  # Rows of a table can be gathered at each call.
            table = variable.value if is_table else self.store(variable, self._tf.transpose)
            return self._columns(_read(table), True, tokens), False
        if tokens is not None:
            return self.store(variable, shortlist, shortlist_name(tokens)), False
        kernel = self.store(variable, self._tf.transpose) if is_table else self.bind(variable)
        return kernel, False


class XlaOps(StoredOps):
    """For a graph that XLA compiles: plain operations, which XLA fuses, and static shapes.

    Args:
        stored: the `StoredOps` of the other graphs of the export, whose variables it shares.
    """

    def __init__(self, stored):
        super().__init__()
        self._stored = stored._stored

    def product(self, x, kernel, bias=None, is_positive=False):
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

    def bind_kernel(self, variable, factors=None):
        return self.store(variable, self._transposed)

    def bind_table(self, variable):
        tf = self._tf
        return self.store(variable, lambda table: tf.cast(table, tf.bfloat16), "rounded")

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        def shortlist(matrix):
            return self._transposed(self._columns(matrix, is_table, tokens))

        if tokens is not None and not self._tf.is_tensor(tokens):
            return self.store(variable, shortlist, shortlist_name(tokens)), False
        table = self.bind_table(variable) if is_table else self.bind_kernel(variable)
        return table if tokens is None else self._tf.gather(_read(table), tokens), False

    def product(self, x, kernel, bias=None, is_positive=False):
        return self._large_product(x, kernel, bias)

    def _large_product(self, x, kernel, bias):
        tf = self._tf
        y = tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), kernel, transpose_b=True), tf.float32)
        return y if bias is None else tf.nn.bias_add(y, bias)

    def gather(self, table, indices):
        return self._tf.cast(self._tf.gather(_read(table), indices), self._tf.float32)

    def _transposed(self, matrix):
        return self._tf.cast(self._tf.transpose(matrix), self._tf.bfloat16)


class Int8Matrix(NamedTuple):
    """A matrix `[I, O]` as an int8 product reads it."""

    values: Any  # qint8 variable, [I, O], or [O, I] if it is a table of embeddings
    limits: Any  # float32 variable [O]: the number that 127 stands for in a column
    sums: Any  # float32 variable [O]: minus the sum of a column
    is_table: bool
    is_constant: bool = True  # or its parts are tensors of one call, the values int8


class Levels(NamedTuple):
    """How a graph quantizes activations, as float32 scalars."""

    # The integer that stands for the largest number of a row, and the byte that stands for zero:
    # 127, or 63.
    highest: Any
    rounding: Any  # highest + 1 / 2
    range: Any  # 255 / highest: the number that the product's operation takes the byte 255 for
    # The two for rows without negative numbers, in which the byte 0 stands for zero.
    highest_positive: Any  # 255, or 127
    range_positive: Any


class Int8Ops(SmoothedOps, StoredOps):
    """Matrices in a quarter of the bytes: products of int8 weights and 8-bit activations.

    Each column of a matrix has a scale, and each row of activations, which is quantized when the
    product is computed; so a row never depends on the others. Where a norm comes before a matrix,
    `SmoothedOps` evens out the channels. Everything else is float32. The product is an operation of
    TensorFlow's builds with oneDNN (Linux on x86-64).

    oneDNN multiplies unsigned by signed bytes. On a CPU without VNNI it adds pairs of products in
    16 bits, where two products of 255 by 127 do not fit. A graph finds that out by one small
    product at the beginning of each search, and then quantizes activations to 7 bits, which fit.

    With VNNI oneDNN keeps its own copy of a matrix, made at the first product: an assignment to the
    variable has no effect from then on. Without VNNI it may read the variable at each product.
    """

    def __init__(self):
        super().__init__()
        self._levels = weakref.WeakKeyDictionary()  # by graph

    def smoothing(self, norm, kernels):
        with self._tf.init_scope():  # outside of the graph that is being traced
            return super().smoothing(norm, kernels)

    def bind(self, variable, factors=None):
        if factors is None:
            return super().bind(variable)
        return self.store(variable, lambda vector: vector / factors, "smoothed")

    def bind_kernel(self, variable, factors=None):
        return self._matrix(variable, False, _rows_times(factors))

    def bind_table(self, variable):
        return self._matrix(variable, True)

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        if tokens is None:
            return self._matrix(variable, is_table, _rows_times(factors)), False

        def shortlist(matrix):
            return self._columns(_rows_times(factors)(matrix), is_table, tokens)

        if self._tf.is_tensor(tokens):
            table = self._matrix(variable, True)
            if not is_table:
                convert = _rows_times(factors)
                table = self._matrix(
                    variable, True, lambda x: self._tf.transpose(convert(x)), "table"
                )
            values, *others = (self._tf.gather(_read(part), tokens) for part in table[:3])
            values = self._tf.bitcast(values, self._tf.int8)  # Loops do not carry qint8.
            return Int8Matrix(values, *others, is_table=True, is_constant=False), False

        return self._matrix(variable, False, shortlist, shortlist_name(tokens)), False

    def product(self, x, kernel, bias=None, is_positive=False):
        tf, levels = self._tf, self.levels()
        if is_positive:
            largest, sums = tf.reduce_max(x, axis=-1, keepdims=True), tf.zeros(kernel.sums.shape)
            highest, rounding, range = levels.highest_positive, 0.5, levels.range_positive
        else:
            largest, sums = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True), kernel.sums
            highest, rounding, range = levels.highest, levels.rounding, levels.range
        # A row of zeros stays one. A cast drops the fraction, so the half that was added rounds.
        x = tf.cast(x * tf.math.divide_no_nan(highest, largest) + rounding, tf.uint8)
        y = self._byte_product(x, kernel, sums, range) * largest
        return y if bias is None else tf.nn.bias_add(y, bias)

    _large_product = product

    # Attention in float64 where float32 would depend on the other texts: a last bit of activations
    # is another byte now and then, and a word may be another one.

    def attend(self, query, key, value, scale, bias):
        # oneDNN has one kernel for the product of one text, and another one for several.
        tf = self._tf
        query, key, value, bias = (tf.cast(x, tf.float64) for x in (query, key, value, bias))
        weights = tf.nn.softmax(tf.matmul(query * scale, key, transpose_b=True) + bias)
        return tf.cast(tf.matmul(weights, value), tf.float32)

    def _softmax(self, scores):
        # Eigen computes exponentials eight at a time, and what is left over one by one.
        tf = self._tf
        return tf.cast(tf.nn.softmax(tf.cast(scores, tf.float64)), tf.float32)

    def gather(self, table, indices):
        tf = self._tf
        if not isinstance(table, Int8Matrix):
            return tf.gather(table, indices)
        rows = tf.gather(_read(table.values), indices)
        rows = tf.cast(tf.bitcast(rows, tf.int8), tf.float32)
        return rows * (tf.gather(table.limits, indices) / HIGHEST)[..., None]

    def _matrix(self, variable, is_table, convert=lambda matrix: matrix, name=""):
        """`Int8Matrix` of a Keras variable after a conversion, such as to some of its columns."""
        tf, axis = self._tf, 1 if is_table else 0

        def limits(matrix):
            largest = tf.reduce_max(tf.abs(convert(matrix)), axis=axis)
            return tf.where(largest > 0, largest, 1.0)

        def values(matrix):
            ratios = convert(matrix) / tf.expand_dims(limits(matrix) / HIGHEST, axis)
            return tf.bitcast(tf.cast(tf.round(ratios), tf.int8), tf.qint8)

        def negative_sums(matrix):
            integers = tf.cast(tf.bitcast(values(matrix), tf.int8), tf.float32)
            return tf.reduce_sum(integers, axis=axis) * limits(matrix) / -HIGHEST

        parts = (values, limits, negative_sums)
        stored = [self.store(variable, part, f"{name} int8 {part.__name__}") for part in parts]
        return Int8Matrix(*stored, is_table)

    def levels(self):
        """`Levels` of the graph that is being traced."""
        graph = self._tf.compat.v1.get_default_graph()
        if graph not in self._levels:
            highest = self._highest(graph)
            highest_positive = 2.0 * highest + 1.0
            self._levels[graph] = Levels(
                highest=highest,
                rounding=highest + 0.5,
                range=255.0 / highest,
                highest_positive=highest_positive,
                range_positive=255.0 / highest_positive,
            )
        return self._levels[graph]

    def _highest(self, graph):
        """`Levels.highest`, computed outside of the loops of a graph."""
        tf, outer = self._tf, graph
        while outer := getattr(outer, "outer_graph", None):
            if outer in self._levels:
                return self._levels[outer].highest
        weights = tf.fill([PROBE_LENGTH, 1], tf.bitcast(tf.constant(127, tf.int8), tf.qint8))
        probe = Int8Matrix(weights, tf.constant([float(HIGHEST)]), None, False)
        bytes_255 = tf.fill([1, PROBE_LENGTH], tf.constant(255, tf.uint8))
        product = self._byte_product(bytes_255, probe, tf.zeros([1]), 255.0)
        is_exact = product[0, 0] == 255.0 * HIGHEST * PROBE_LENGTH
        return tf.where(is_exact, float(HIGHEST), float(HIGHEST_OF_7_BITS))

    def _byte_product(self, x, matrix, bias, range):
        """The product of bytes `[R, I]` and an `Int8Matrix`, and a bias `[O]`.

        The byte 255 stands for the number `range`.
        """
        from tensorflow.python.framework import op_def_library

        tf, limits = self._tf, _read(matrix.limits)
        values = matrix.values if matrix.is_constant else tf.bitcast(matrix.values, tf.qint8)
        # The operation has no function of its own in Python. Of its ranges of inputs and weights it
        # uses the larger absolute values, which 255 and 127 stand for.
        [[y], _] = op_def_library.apply_op(
            "_QuantizedMatMul",
            name="int8_product",
            device_inputs=[tf.bitcast(x, tf.quint8), values, bias],
            host_inputs=[0.0, range, limits, limits],
            Tdevice_outputs=[tf.float32],
            Thost_outputs=[],
            T1=tf.quint8,
            T2=tf.qint8,
            Tbias=tf.float32,
            U=tf.float32,
            Tout=tf.float32,
            fused_ops=["BiasAdd", "Dequantize"],
            input_quant_mode="SCALED",
            output_quant_mode="SCALED",
            # oneDNN then arranges the weights once, not at each product.
            is_weight_const=matrix.is_constant,
            is_bias_const=False,
            transpose_a=False,
            transpose_b=matrix.is_table,
            leakyrelu_alpha=0.2,
        )
        return y


def _rows_times(factors):
    """The conversion of a matrix `[D, O]` that multiplies its rows; `None` for no factors."""
    return lambda matrix: matrix if factors is None else matrix * factors[:, None]


def _read(variable):
    """The tensor of a variable, without a copy.

    TensorFlow's own gather from a variable makes every later read of it a copy, and the projection
    to the vocabulary reads a table at each step.
    """
    import tensorflow as tf

    return tf.convert_to_tensor(variable)
