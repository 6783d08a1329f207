"""The projection of hidden states to the vocabulary."""

import keras
from keras import ops

from kformer.layers import OutputBias
from kformer.layers.inputs import part_arguments
from kformer.layers.shapes import linear


class TokenOutput:
    """Projects hidden states to logits, by the embedding's table or a matrix of its own.

    It is a plain object; `kformer.models.network.Network` explains why.

    Args:
        config: `kformer.models.config.GeneratorConfig`.
        vocabulary_size: int. V.
        embedding: `PositionalEmbedding`, whose table is the projection with `share_output`.
        policy: Keras dtype policy. The policy of the layers.
        bias: bool, default False. Whether logits have a bias.
        scale: float or `None`, default `None`. Hidden states are multiplied by it before the
            projection.
    """

    def __init__(self, config, vocabulary_size, embedding, policy, bias=False, scale=None):
        self.embedding, self._scale = embedding, scale
        self.projection = None
        if not config.share_output:
            part = part_arguments("output_projection", config.seed, policy)
            initializer = keras.initializers.RandomNormal(
                stddev=config.hidden_dim**-0.5, seed=part.pop("seed")
            )
            self.projection = keras.layers.Dense(
                vocabulary_size, use_bias=False, kernel_initializer=initializer, **part
            )
        self.bias = OutputBias(dtype=policy, name="output_bias") if bias else None

    def project(self, x, kernel=None, bias=()):
        """Computes logits.

        Args:
            x: float tensor `[..., D]`. Hidden states.
            kernel: float tensor `[D, V]` or `None`, default `None`. The result of `kernel()`.
            bias: float tensor `[V]` or empty tuple, default `()`. The result of `bias_of()`.

        Returns:
            Float tensor `[..., V]`.
        """
        x = x if self._scale is None else x * self._scale
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
        """Returns the vectors whose product with the matrix `table()` is the logits.

        Args:
            x: float tensor `[..., D]`. Hidden states.

        Returns:
            The scaled hidden states, float tensor `[..., D]`; with an output bias `[..., D + 1]`,
            where the last number is 1.
        """
        x = x if self._scale is None else x * self._scale
        if self.bias is None:
            return x
        return ops.concatenate([x, ops.ones_like(x[..., :1])], axis=-1)

    def kernel(self, tokens=None):
        """Returns the projection as a matrix, computed once for all steps of a search.

        Args:
            tokens: int array `[C]` or `None`, default `None`. The tokens of the logits; `None` for
                all.

        Returns:
            Float tensor `[D, C]`. For all tokens it is `[D, V]` on TensorFlow, where a product with
            a transposed table takes longer, and `None` on other backends.
        """
        if keras.backend.backend() != "tensorflow" and tokens is None:
            return None
        if self.projection is not None:
            kernel = ops.convert_to_tensor(self.projection.kernel)
            kernel = ops.cast(kernel, self.projection.compute_dtype)
            return kernel if tokens is None else ops.take(kernel, tokens, axis=1)
        table = ops.convert_to_tensor(self.embedding.embeddings)
        table = table if tokens is None else ops.take(table, tokens, axis=0)
        return ops.transpose(ops.cast(table, self.embedding.compute_dtype))

    def bias_of(self, tokens):
        """Returns the bias `[C]` of some tokens; `()` without a bias, or if `tokens` is `None`."""
        if tokens is None or self.bias is None:
            return ()
        return ops.cast(ops.take(self.bias.bias, tokens, axis=0), self.bias.compute_dtype)

    def table(self):
        """Returns the projection in the compute dtype, `[V, D]`; with a bias `[V, D + 1]`."""
        if self.projection is None:
            table = ops.cast(self.embedding.embeddings, self.embedding.compute_dtype)
        else:
            table = ops.transpose(ops.cast(self.projection.kernel, self.projection.compute_dtype))
        if self.bias is None:
            return table
        bias = ops.expand_dims(ops.cast(self.bias.bias, table.dtype), 1)
        return ops.concatenate([table, bias], axis=1)
