"""The projection of hidden states to the vocabulary."""

import keras

from kformer.layers import OutputBias
from kformer.layers.counter_hash import derive_seed
from kformer.layers.shapes import linear


class TokenOutput:
    """Hidden states to logits, by a table that the embedding shares or by one of its own; a plain
    object, as the networks are.

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        embedding: the `PositionalEmbedding` whose table may be shared.
        share: whether it is.
        bias: whether logits have a bias.
        scale: what hidden states are multiplied by beforehand; `None` for nothing.
        seed, policy: of the projection.
    """

    def __init__(
        self, vocabulary_size, hidden_dim, embedding, *, share, bias=False, scale=None, seed, policy
    ):
        self.embedding, self._scale = embedding, scale
        self.projection = None
        if not share:
            initializer = keras.initializers.RandomNormal(
                stddev=hidden_dim**-0.5, seed=derive_seed(seed, "output_projection")
            )
            self.projection = keras.layers.Dense(
                vocabulary_size,
                use_bias=False,
                kernel_initializer=initializer,
                dtype=policy,
                name="output_projection",
            )
        self.bias = OutputBias(dtype=policy, name="output_bias") if bias else None

    def project(self, x, kernel=None, bias=()):
        """`[..., D]` to logits `[..., V]`; by what `kernel` and `bias_of` gave, where these are at
        hand.
        """
        x = self._scaled(x)
        if kernel is not None:
            logits = linear(x, kernel)
        elif self.projection is None:
            logits = self.embedding(x, reverse=True)
        else:
            logits = self.projection(x)
        if self.bias is None:
            return logits
        return self.bias(logits) if isinstance(bias, tuple) else logits + bias

    def before_projection(self, x):
        """What `table` projects: the scaled hidden states, and a one that meets the bias."""
        x = self._scaled(x)
        return (
            x
            if self.bias is None
            else keras.ops.concatenate([x, keras.ops.ones_like(x[..., :1])], axis=-1)
        )

    def _scaled(self, x):
        return x if self._scale is None else x * self._scale

    def kernel(self, tokens=None):
        """The projection as a matrix `[D, V]` for TensorFlow, whose product with a transposed one
        takes longer; elsewhere `None`.

        With `tokens`, int array `[C]`, on every backend the matrix `[D, C]` of these tokens.
        """
        ops = keras.ops
        if keras.backend.backend() != "tensorflow" and tokens is None:
            return None
        if self.projection is not None:
            kernel = ops.cast(
                ops.convert_to_tensor(self.projection.kernel), self.projection.compute_dtype
            )
            return kernel if tokens is None else ops.take(kernel, tokens, axis=1)
        table = ops.convert_to_tensor(self.embedding.embeddings)
        table = table if tokens is None else ops.take(table, tokens, axis=0)
        return ops.transpose(ops.cast(table, self.embedding.compute_dtype))

    def bias_of(self, tokens):
        """The output bias `[C]` of some tokens; an empty tuple where there is none, or where
        `tokens` is `None`.
        """
        if tokens is None or self.bias is None:
            return ()
        return keras.ops.cast(
            keras.ops.take(self.bias.bias, tokens, axis=0), self.bias.compute_dtype
        )

    def table(self):
        """The projection to the vocabulary as a table, `[V, D]` in the compute dtype; with an
        output bias `[V, D + 1]`.
        """
        ops = keras.ops
        if self.projection is None:
            table = ops.cast(self.embedding.embeddings, self.embedding.compute_dtype)
        else:
            table = ops.transpose(ops.cast(self.projection.kernel, self.projection.compute_dtype))
        if self.bias is None:
            return table
        return ops.concatenate(
            [table, ops.expand_dims(ops.cast(self.bias.bias, table.dtype), 1)], axis=1
        )
