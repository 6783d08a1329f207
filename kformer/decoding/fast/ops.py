"""The operations of the fast decoder.

At one token per row a step is hundreds of small operations, and the fixed cost of each decides how
long it takes. Keras's operations convert and check their inputs at each call (on PyTorch, which has
no graph to keep) or become several operations of the graph (on TensorFlow). Here each is one call
or a few of the backend's own.

Shape letters: B sentences, K rows per sentence, R = B K rows, D hidden size, I and O sizes of a
product, N heads, H head size, Q queries, S source length, T tokens so far, V vocabulary, C tokens
of a shortlist, P positions.
"""

import abc

from keras import ops

# int8 products. The largest number of a matrix's column, or of a row of activations, becomes
# HIGHEST. On a CPU whose products are not exact with 8 bits, that of activations becomes
# HIGHEST_OF_7_BITS. A product of PROBE_LENGTH numbers finds out which CPU it is.
HIGHEST, HIGHEST_OF_7_BITS, PROBE_LENGTH = 127, 63, 64


class FastOps(abc.ABC):
    """The operations that a `FastNetwork` is made of; one subclass per backend or form of weights.

    A bound weight is whatever `bind`, `bind_kernel`, `bind_table` or `bind_projection` returns for
    a Keras variable. It is passed to the other methods as it is, so a subclass may keep its weights
    in another layout or dtype. Tensors are float32 or int32 tensors of the backend.

    Attributes:
        split: function of a tensor, a number of parts and an axis: a list of tensors of equal size.
        unstack: function of a tensor and the size of its first axis: a list of the tensors along
            it, without it.
        reshape: function of a tensor and a shape.
        transpose: function of a tensor and its axes in another order.
    """

    @property
    def variables(self):
        """List of the variables that hold weights in another form; empty by default."""
        return []

    # Weights.

    def smoothing(self, norm, kernels):
        """Factors that even out the channels between a norm and the matrices after it.

        Gamma and beta of the norm are divided by them, the rows of the matrices multiplied: their
        products stay the same.

        Args:
            norm: `keras.layers.LayerNormalization`.
            kernels: list of Keras variables `[D, O]`, all that read the norm's output.

        Returns:
            float `[D]`; `None`, the default, for none.
        """
        return None

    def bind(self, variable, factors=None):
        """Binds a vector: a bias, or gamma or beta of a norm; as it is by default.

        Args:
            variable: Keras variable.
            factors: from `smoothing`, default `None`. The vector is divided by them.

        Returns:
            A bound weight.
        """
        return variable.value

    def bind_kernel(self, variable, factors=None):
        """Binds the matrix `[I, O]` of a `product`; as `bind` by default.

        Args:
            variable: Keras variable.
            factors: from `smoothing`, default `None`. The rows are multiplied by them.
        """
        return self.bind(variable)

    def bind_table(self, variable):
        """Binds a table of embeddings `[V, D]`, for `gather`; as `bind` by default."""
        return self.bind(variable)

    @abc.abstractmethod
    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        """Binds the projection to the vocabulary.

        Args:
            variable: Keras variable `[D, V]`, or `[V, D]` with `is_table`.
            is_table: bool. Whether it is a table of embeddings.
            tokens: int array `[C]`, default `None`. The tokens whose logits are computed; `None`
                for all.
            factors: from `smoothing`, default `None`, without `is_table`. As in `bind_kernel`.

        Returns:
            A bound weight for `begin_projection` and `project`.
        """

    def begin_projection(self, projection):
        """What a search computes once for the projection, and carries through its loop.

        Args:
            projection: from `bind_projection`.

        Returns:
            A tensor, or `()` for nothing, the default.
        """
        return ()

    @abc.abstractmethod
    def project(self, x, projection, carried, bias=None):
        """Logits of hidden states.

        Args:
            x: `[R, D]`.
            projection: from `bind_projection`.
            carried: from `begin_projection`.
            bias: bound vector `[V]`, default `None`.

        Returns:
            `[R, V]`, or `[R, C]` with a shortlist.
        """

    # Rows.

    @abc.abstractmethod
    def product(self, x, kernel, bias=None, is_positive=False):
        """`x W + b`.

        Args:
            x: `[R, I]`.
            kernel: from `bind_kernel`, of `[I, O]`.
            bias: bound vector `[O]`, default `None`.
            is_positive: bool, default `False`. Whether no number of `x` is negative, which makes
                8-bit activations twice as exact.

        Returns:
            `[R, O]`.
        """

    @abc.abstractmethod
    def activate(self, x, name):
        """An activation of `[R, O]`: `"relu"`, `"gelu"` (exact), `"gelu_sigmoid"`, `"silu"` or
        `"sigmoid"`.
        """

    @abc.abstractmethod
    def layer_norm(self, x, gamma, beta, epsilon):
        """Layer norm of the rows of `[R, D]`.

        Args:
            x: `[R, D]`.
            gamma, beta: bound vectors `[D]`.
            epsilon: float. Added to the variance.

        Returns:
            `[R, D]`.
        """

    @abc.abstractmethod
    def gather(self, table, indices):
        """Rows of a table.

        Args:
            table: a bound table or vector, or a tensor, `[V, ...]`.
            indices: integer tensor or array of any shape.

        Returns:
            `[*indices.shape, ...]`.
        """

    # Attention.

    @abc.abstractmethod
    def attend(self, query, key, value, scale, bias):
        """`softmax(scale Q K^T + bias) V` of many queries.

        Args:
            query: `[B, N, Q, H]`.
            key, value: `[B, N, S, H]`.
            scale: float.
            bias: broadcastable to `[B, N, Q, S]`.

        Returns:
            `[B, N, Q, H]`.
        """

    def empty_cache(self, rows, heads, steps, head_dim):
        """Keys or values of no token yet.

        Args:
            rows: R, int or scalar tensor.
            heads, head_dim: ints. N and H.
            steps: int or scalar tensor. The most tokens that will come.

        Returns:
            `[R, N, 0, H]`, the default, or `[R, N, steps, H]` where shapes are static.
        """
        return ops.zeros((rows, heads, 0, head_dim), dtype="float32")

    @abc.abstractmethod
    def extend(self, cache, new, index):
        """Keys or values with one token more.

        Args:
            cache: from `empty_cache` or `extend`.
            new: `[R, N, 1, H]`.
            index: int scalar tensor. The position of the new token.

        Returns:
            `[R, N, T, H]`, or `[R, N, steps, H]` where shapes are static.
        """

    @abc.abstractmethod
    def attend_cache(self, query, key, value, scale, index):
        """Attention of one query per row over a cache.

        Args:
            query: `[R, N, 1, H]`.
            key, value: from `extend`.
            scale: float.
            index: int scalar tensor. The position of the newest token in the cache.

        Returns:
            `[R, N H]`.
        """

    def arrange_source(self, parts, width):
        """Keys and values of the source, arranged for `attend_source`.

        Args:
            parts: `[2 layers, B, N, S, H]`. The keys are multiplied by the scale of the scores.
            width: int. K.

        Returns:
            A tensor with the first two axes of `parts`; `unstack` and `select` rely on these. The
            parts by default.
        """
        return parts

    @abc.abstractmethod
    def attend_source(self, query, key, value, bias, width):
        """Attention of one query per row over the source of its sentence.

        Args:
            query: `[R, N H]`.
            key, value: parts of what `arrange_source` returned.
            bias: `[B, 1, 1, S]`.
            width: int. K.

        Returns:
            `[R, N H]`.
        """

    @abc.abstractmethod
    def swap(self, x, interleaved):
        """The two numbers of each pair of the last axis exchanged, for rotary positions.

        Args:
            x: `[..., H]`.
            interleaved: bool. Whether a pair is two neighbours; otherwise the numbers i and
                i + H / 2.

        Returns:
            `[..., H]`.
        """

    # Shapes.

    @abc.abstractmethod
    def pack(self, mask):
        """Which entries of a vector are computed.

        Args:
            mask: bool `[B S]`. The first entry is `True`.

        Returns:
            The indices of the `True` entries, int32 `[P]`; and for each entry the index, among
            these, of the last one up to it, int32 `[B S]`.
        """
