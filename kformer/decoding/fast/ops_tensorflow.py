"""The operations of the fast decoder on TensorFlow."""

from kformer.decoding.fast.ops import FastOps
from kformer.layers.feed_forward import GELU_FACTOR


class TensorFlowOps(FastOps):
    """For a graph, in which every operation has a fixed cost of about half a microsecond.

    Here a bound weight is a variable that is read where it is used. Carried through a loop, its
    tensor would cost more operations.
    """

    def __init__(self):
        import tensorflow as tf

        self._tf = tf
        self.split, self.unstack = tf.split, tf.unstack
        self.reshape, self.transpose = tf.reshape, tf.transpose

    # Weights.

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        if tokens is None:
            return self.bind(variable), is_table
        # Once per search: a loop does not compute what it captures.
        return self._columns(variable.value, is_table, tokens), False

    def begin_projection(self, projection):
        variable, is_table = projection
        # A table is transposed once: a product with the table itself takes longer.
        return self._tf.transpose(variable) if is_table else ()

    def project(self, x, projection, carried, bias=None):
        kernel = projection[0] if isinstance(carried, tuple) else carried
        return self._large_product(x, kernel, bias)

    def _columns(self, matrix, is_table, tokens):
        """The projection `[D, C]` to some tokens."""
        chosen = self._tf.gather(matrix, tokens, axis=0 if is_table else 1)
        return self._tf.transpose(chosen) if is_table else chosen

    # Rows.

    def product(self, x, kernel, bias=None, is_positive=False):
        y = self._by_eigen(x, kernel)
        return y if bias is None else y + bias

    def _large_product(self, x, kernel, bias):
        y = self._tf.matmul(x, kernel)
        # The graph's optimizer fuses the two, which matters where the result is wide.
        return y if bias is None else self._tf.nn.bias_add(y, bias)

    def activate(self, x, name):
        if name == "gelu_sigmoid":
            return x * self._tf.sigmoid(GELU_FACTOR * x)
        return getattr(self._tf.nn, name)(x)

    def layer_norm(self, x, gamma, beta, epsilon):
        tf = self._tf
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        variance += epsilon
        # TensorFlow's `rsqrt`, which its optimizer also makes of an ordinary quotient by a root,
        # differs in the last bit with the row's index, and a product of quantized rows can make
        # another word of it.
        return centered * tf.math.divide_no_nan(gamma, tf.sqrt(variance)) + beta

    def gather(self, table, indices):
        return self._tf.gather(table, indices)

    # Attention.

    def attend(self, query, key, value, scale, bias):
        tf = self._tf
        scores = tf.matmul(query * scale, key, transpose_b=True)
        return tf.matmul(self._softmax(scores + bias), value)

    def extend(self, cache, new, index):
        return self._tf.concat([cache, new], 2)

    def attend_cache(self, query, key, value, scale, index):
        scores = self._by_eigen(query * scale, key, adj_y=True)
        return self._rows_of(self._by_eigen(self._softmax(scores), value))

    def arrange_source(self, parts, width):
        return parts if width == 1 else self._tf.expand_dims(parts, 2)

    def attend_source(self, query, key, value, bias, width):
        tf = self._tf
        heads, head_dim = key.shape[-3], key.shape[-1]
        beams = (width,) if width > 1 else ()
        query = tf.reshape(query, (-1, *beams, heads, 1, head_dim))
        bias = tf.expand_dims(bias, 2) if width > 1 else bias
        weights = self._softmax(self._by_eigen(query, key, adj_y=True) + bias)
        return self._rows_of(self._by_eigen(weights, value))

    def _softmax(self, scores):
        return self._tf.nn.softmax(scores)

    def swap(self, x, interleaved):
        tf = self._tf
        if interleaved:
            size = x.shape[-1]
            pairs = tf.reshape(x, (*tf.unstack(tf.shape(x))[:-1], size // 2, 2))
            return tf.reshape(tf.reverse(pairs, [-1]), tf.shape(x))
        return tf.concat(tf.split(x, 2, axis=-1)[::-1], -1)

    def _by_eigen(self, x, y, adj_y=False):
        """`tf.matmul` by Eigen on every CPU.

        oneDNN, which `tf.matmul` would use, takes two to four times as long for a product of few
        rows or of single rows, and as long for others.
        """
        return self._tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=x.dtype, adj_y=adj_y)

    def _rows_of(self, context):
        """`[..., N, 1, H]` -> `[R, N H]`."""
        return self._tf.reshape(context, (-1, context.shape[-3] * context.shape[-1]))

    # Shapes.

    def pack(self, mask):
        tf = self._tf
        return tf.cast(tf.where(mask)[:, 0], tf.int32), tf.cumsum(tf.cast(mask, tf.int32)) - 1
