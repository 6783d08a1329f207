"""Token embeddings with positions."""

import math

import keras
import numpy as np
from keras import ops

from kformer.layers.counter_hash import derive_seed, drawn_seed
from kformer.layers.dropout import Dropout
from kformer.layers.initializers import seeded

POSITION_ENCODINGS = ("sinusoidal", "learned", None)


def sinusoidal_positions(positions, hidden_dim, base=10000.0):
    """The fixed position vectors of the paper, computed where they are needed, for any length.

        PE[p, 2k]     = sin(p / base^(2k / D))
        PE[p, 2k + 1] = cos(p / base^(2k / D))

    The first dimensions turn fastest (wavelength 2 pi), the last ones slowest. An odd D drops the last cosine.

    Args:
        positions: integer tensor of any shape.
        hidden_dim: D.
        base: ratio of the slowest to the fastest wavelength.

    Returns:
        float32 tensor `[..., D]`.

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.5.
    """
    exponents = np.arange(0, hidden_dim, 2, dtype="float64") / hidden_dim
    frequencies = ops.convert_to_tensor((base**-exponents).astype("float32"))
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies  # [..., ceil(D / 2)]
    interleaved = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # [..., ceil(D / 2), 2]
    interleaved = ops.reshape(interleaved, (*ops.shape(angles)[:-1], 2 * len(exponents)))
    return interleaved if hidden_dim % 2 == 0 else interleaved[..., :hidden_dim]


@keras.saving.register_keras_serializable(package="kformer")
class PositionalEmbedding(keras.layers.Layer):
    """Token embedding times sqrt(D), plus positions, then dropout; reversed, the output projection of the same table.

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        position_encoding: `"sinusoidal"` (fixed, any length), `"learned"` (a table of `max_length` vectors) or `None`.
        max_length: number of learned positions; needed for them alone.
        dropout: dropout rate on the sum.
        pretrained: array `[V, D]` to start the token vectors from, in place of the initializer. It is not part of the
            configuration; a saved model has the vectors among its weights. Since the layer multiplies by sqrt(D), vectors
            of another source are best scaled to a standard deviation of about 1 / sqrt(D).
        pad_id: if given, the layer sets an implicit Keras mask, `ids != pad_id`, on its output.
        embeddings_initializer: initializer of the token table; `None` draws from a normal distribution with the standard
            deviation 1 / sqrt(D), which makes the scaled vectors, and the logits of a shared projection, of unit variance.
        seed: int, for the initializers and the dropout.

    Call arguments:
        inputs: integer ids `[B, T]`; with `reverse`, hidden states `[B, T, D]`.
        reverse: bool; project hidden states on the token vectors (no scaling, no positions).
        start_index: int or scalar tensor, the position of the first id: with a cache, the number of tokens before it.
        positions: integer tensor `[B, T]` of explicit positions, for packed rows; in place of `start_index`.
        training: bool.

    Returns:
        Float tensor `[B, T, D]`; with `reverse`, logits `[B, T, V]`.

    Example:
        >>> embedding = kformer.layers.PositionalEmbedding(8000, 512)
        >>> hidden = embedding(keras.ops.array([[5, 6, 7]]))
        >>> logits = embedding(hidden, reverse=True)

    References:
        Vaswani et al. 2017, "Attention is all you need", sections 3.4 and 3.5.
        Press and Wolf 2017, "Using the output embedding to improve language models" (the shared table).
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        *,
        position_encoding="sinusoidal",
        max_length=None,
        dropout=0.0,
        pretrained=None,
        pad_id=None,
        embeddings_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if position_encoding not in POSITION_ENCODINGS:
            raise ValueError(
                f"Unknown position encoding {position_encoding!r}: choose 'sinusoidal', 'learned' or None (no positions)."
            )
        if position_encoding == "learned" and not max_length:
            raise ValueError("Learned positions need max_length, the number of positions in the table.")
        if pretrained is not None and np.shape(pretrained) != (vocabulary_size, hidden_dim):
            raise ValueError(
                f"The pretrained token vectors have the shape {np.shape(pretrained)}, but the vocabulary and hidden size ask "
                f"for {(vocabulary_size, hidden_dim)}."
            )
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.position_encoding = position_encoding
        self.max_length = max_length
        self.pad_id = pad_id
        self.seed = drawn_seed(seed)
        self.embeddings_initializer = keras.initializers.get(
            keras.initializers.RandomNormal(stddev=hidden_dim**-0.5) if embeddings_initializer is None else embeddings_initializer
        )
        self._pretrained = pretrained
        self.supports_masking = True
        # Ids must not be cast to a float dtype.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.embedding_dropout = Dropout(
            dropout, seed=derive_seed(self.seed, "embedding"), dtype=self.dtype_policy, name="embedding_dropout"
        )

    def build(self, input_shape=None):
        initializer = seeded(self.embeddings_initializer, derive_seed(self.seed, "tokens"))
        if self._pretrained is not None:
            vectors, self._pretrained = np.asarray(self._pretrained), None

            def initializer(shape, dtype=None):
                return ops.convert_to_tensor(vectors, dtype=dtype)

        self.embeddings = self.add_weight(
            shape=(self.vocabulary_size, self.hidden_dim), initializer=initializer, name="embeddings"
        )
        if self.position_encoding == "learned":
            self.position_embeddings = self.add_weight(
                shape=(self.max_length, self.hidden_dim),
                initializer=keras.initializers.RandomNormal(
                    stddev=self.hidden_dim**-0.5, seed=derive_seed(self.seed, "positions")
                ),
                name="position_embeddings",
            )
        self.embedding_dropout.build()
        self.built = True

    def call(self, inputs, reverse=False, start_index=0, positions=None, training=None):
        if reverse:
            # The compilers fold the transposition into the product. (The gradient of an einsum here takes twice as long on TensorFlow.)
            table = ops.transpose(ops.cast(self.embeddings, self.compute_dtype))
            return ops.matmul(ops.cast(inputs, self.compute_dtype), table)
        ids = ops.convert_to_tensor(inputs)
        if "int" not in keras.backend.standardize_dtype(ids.dtype):
            ids = ops.cast(ids, "int32")
        hidden = ops.take(ops.cast(self.embeddings, self.compute_dtype), ids, axis=0) * math.sqrt(self.hidden_dim)
        if self.position_encoding is not None:
            hidden = hidden + ops.cast(self._position_vectors(ids, start_index, positions), self.compute_dtype)
        return self.embedding_dropout(hidden, training=training)

    def _position_vectors(self, ids, start_index, positions):
        """`[T, D]`, or `[B, T, D]` for explicit positions."""
        length = ops.shape(ids)[1]
        if positions is None:
            positions = ops.arange(length, dtype="int32") + ops.cast(start_index, "int32")
            end = start_index + length if isinstance(start_index, int) and isinstance(length, int) else 0
            if self.position_encoding == "learned" and end > self.max_length:
                raise ValueError(
                    f"A sequence of {end} tokens is longer than the {self.max_length} learned positions; shorten it, or build "
                    "the layer with a larger max_length."
                )
        if self.position_encoding == "sinusoidal":
            return sinusoidal_positions(positions, self.hidden_dim)
        return ops.take(self.position_embeddings, positions, axis=0)

    def compute_mask(self, inputs, mask=None):
        is_ids = "int" in keras.backend.standardize_dtype(inputs.dtype)
        return ops.not_equal(inputs, self.pad_id) if self.pad_id is not None and is_ids else None

    def compute_output_spec(self, inputs, reverse=False, start_index=0, positions=None, training=None):
        size = self.vocabulary_size if reverse else self.hidden_dim
        return keras.KerasTensor((*inputs.shape[:2], size), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "position_encoding": self.position_encoding,
            "max_length": self.max_length,
            "dropout": self.embedding_dropout.rate,
            "pad_id": self.pad_id,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "seed": self.seed,
        }
