"""The operations of the fast decoder on TensorFlow."""


class TensorFlowKernels:
    """For a graph, in which every operation costs about half a microsecond before it does anything."""

    def __init__(self):
        import tensorflow as tf

        self._tf = tf

    def bind(self, variable):
        """What the other methods take for a Keras variable: here one that is read where it is used.
        Carried through a loop, its tensor would cost more operations."""
        return variable.value

    def bind_kernel(self, variable):
        """`bind` for the matrix of a product."""
        return self.bind(variable)

    def bind_table(self, variable):
        """`bind` for a table of embeddings, of which rows are gathered."""
        return self.bind(variable)

    def bind_projection(self, variable, is_table, tokens=None):
        """`bind` for the projection to the vocabulary, `[D, V]`, or a table `[V, D]`; with `tokens`
        for the projection to these.
        """
        if (
            tokens is not None
        ):  # Once for each search: what a loop takes from outside is not computed in it.
            return self.some_of(variable.value, is_table, tokens), False
        return self.bind(variable), is_table

    def some_of(self, matrix, is_table, tokens):
        """The projection `[D, C]` to some tokens."""
        some = self._tf.gather(matrix, tokens, axis=0 if is_table else 1)
        return self._tf.transpose(some) if is_table else some

    def begin_projection(self, projection):
        """What a search carries for the projection: a table turned once, since the product with one
        as it is takes longer.
        """
        variable, is_table = projection
        return self._tf.transpose(variable) if is_table else ()

    def project(self, x, projection, carried, bias=None):
        """Logits `[R, V]` of `[R, D]`."""
        return self._large_product(
            x, projection[0] if isinstance(carried, tuple) else carried, bias
        )

    def _large_product(self, x, kernel, bias):
        y = self._tf.matmul(x, kernel)
        # The graph's optimizer merges the two into one, which counts where the result is wide.
        return y if bias is None else self._tf.nn.bias_add(y, bias)

    def product(self, x, kernel, bias=None):
        """`x W + b`: `[R, K]`, `[K, M]`, `[M]` -> `[R, M]`."""
        y = self._by_eigen(x, kernel)
        return y if bias is None else y + bias

    def activate(self, x, name):
        tf = self._tf
        return {
            "relu": tf.nn.relu,
            "gelu": lambda x: tf.nn.gelu(x, approximate=False),
            "silu": tf.nn.silu,
        }[name](x)

    def layer_norm(self, x, gamma, beta, epsilon):
        """Layer norm of rows."""
        tf = self._tf
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return centered * (tf.math.rsqrt(variance + epsilon) * gamma) + beta

    def attend(self, query, key, value, scale, bias):
        """`softmax(scale Q K^T + bias) V` of many queries: `[B, N, T, H]` over `[B, N, S, H]`."""
        tf = self._tf
        scores = tf.matmul(query * scale, key, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores + bias), value)

    def empty_cache(self, rows, heads, steps, head_dim):
        """Keys or values of no token yet, of at most `steps`."""
        return self._tf.zeros((rows, heads, 0, head_dim))

    def extend(self, cache, new, index):
        """Keys or values with those of token `index`, `[R, N, 1, H]`."""
        return self._tf.concat([cache, new], 2)

    def attend_cache(self, query, key, value, scale, index):
        """The same of one query per row, `[R, N, 1, H]`, over a cache that token `index` is the
        last of, as rows `[R, N H]`.
        """
        return self._rows_of(
            self._by_eigen(
                self._tf.nn.softmax(self._by_eigen(query * scale, key, adj_y=True)), value
            )
        )

    def arrange_source(self, parts, width):
        """Keys and values of the source `[2 layers, B, N, S, H]`, as `attend_source` takes those of
        a layer with K rows per sentence.
        """
        return parts if width == 1 else self._tf.expand_dims(parts, 2)

    def attend_source(self, query, key, value, scale, bias, width):
        """The same of K rows per sentence, `[R, N H]`, over keys and values of the source, with a
        bias `[B, 1, 1, S]`.
        """
        tf = self._tf
        heads, head_dim = key.shape[-3], key.shape[-1]
        query = tf.reshape(
            query * scale, (-1, *((width,) if width > 1 else ()), heads, 1, head_dim)
        )
        bias = tf.expand_dims(bias, 2) if width > 1 else bias
        return self._rows_of(
            self._by_eigen(tf.nn.softmax(self._by_eigen(query, key, adj_y=True) + bias), value)
        )

    def _by_eigen(self, x, y, adj_y=False):
        """`tf.matmul` by Eigen on every processor. With oneDNN, which would run that, a product of
        few rows or of single rows takes two to four times as long, others the same."""
        return self._tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=x.dtype, adj_y=adj_y)

    def _rows_of(self, context):
        """`[..., N, 1, H]` -> `[R, N H]`."""
        return self._tf.reshape(context, (-1, context.shape[-3] * context.shape[-1]))

    def gather(self, table, places):
        """Rows of a table."""
        return self._tf.gather(table, places)

    def swap(self, x, interleaved):
        """The two numbers of each pair of the last axis change places: neighbours, or the number i
        and i + H / 2.
        """
        tf = self._tf
        if interleaved:
            size = x.shape[-1]
            pairs = tf.reshape(x, (*tf.unstack(tf.shape(x))[:-1], size // 2, 2))
            return tf.reshape(tf.reverse(pairs, [-1]), tf.shape(x))
        return tf.concat(tf.split(x, 2, axis=-1)[::-1], -1)

    def pack(self, mask):
        """Where a vector `[C]` is `True`, int32 `[P]`; and how many are before each place or there,
        less one, int32 `[C]`.
        """
        tf = self._tf
        return tf.cast(tf.where(mask)[:, 0], tf.int32), tf.cumsum(tf.cast(mask, tf.int32)) - 1

    def split(self, x, parts, axis=-1):
        """Parts of equal size of an axis."""
        return self._tf.split(x, parts, axis=axis)

    def unstack(self, x, parts):
        return self._tf.unstack(x, parts)

    def reshape(self, x, shape):
        return self._tf.reshape(x, shape)

    def transpose(self, x, axes):
        return self._tf.transpose(x, axes)
