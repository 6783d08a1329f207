"""Token embeddings with positions."""

import math
from typing import Unpack

import keras
import numpy as np
from keras import ops

from kformer.layers.counter_hash import derive_seed, settled_seed
from kformer.layers.dropout import Dropout
from kformer.layers.initializers import seeded
from kformer.layers.inputs import LayerArguments, ReadsLists, check_rank, of_list
from kformer.layers.masks import causal_mask, segment_mask
from kformer.layers.normalization import normalize
from kformer.layers.products import product
from kformer.utils.backend import nan_unless
from kformer.utils.checks import check_choice

# The order of sines and cosines in each kind of fixed positions.
_LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal_halves": "halves",
    "sinusoidal_fairseq": "fairseq",
}
POSITION_ENCODINGS = (*_LAYOUTS, "learned", None)


def sinusoidal_positions(positions, hidden_dim, base=10000.0, layout="interleaved"):
    """Returns the fixed position vectors of the paper, computed anew in each call, for any length.

        PE[p, 2k]     = sin(p / base^(2k / D))
        PE[p, 2k + 1] = cos(p / base^(2k / D))

    The first dimensions oscillate fastest (wavelength 2 pi), the last ones slowest. An odd D drops
    the last cosine.

    Args:
        positions: integer tensor of any shape.
        hidden_dim: int. D.
        base: float, default 10000.0. The ratio of the longest wavelength to the shortest.
        layout: str, default "interleaved". `"interleaved"`: as above and in the paper. `"halves"`:
            first all sines, then all cosines, as in MarianMT of the library transformers.
            `"fairseq"`: halves with the frequencies `base^(-k / (D/2 - 1))` of tensor2tensor,
            fairseq and Marian itself (an odd D ends with 0).

    Returns:
        float32 tensor `[..., D]`.

    References:
        Vaswani et al. 2017, "Attention is all you need", section 3.5.
    """
    if layout == "fairseq":
        exponents = np.arange(hidden_dim // 2, dtype="float64") / max(hidden_dim // 2 - 1, 1)
    else:
        exponents = np.arange(0, hidden_dim, 2, dtype="float64") / hidden_dim
    frequencies = ops.convert_to_tensor((base**-exponents).astype("float32"))
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies  # [..., ceil(D / 2)]
    sines, cosines = ops.sin(angles), ops.cos(angles)
    if layout == "interleaved":
        pairs = ops.stack([sines, cosines], axis=-1)  # [..., ceil(D / 2), 2]
        vectors = ops.reshape(pairs, (*ops.shape(angles)[:-1], 2 * len(exponents)))
    else:
        vectors = ops.concatenate([sines, cosines], axis=-1)
        if hidden_dim > 2 * len(exponents):
            vectors = ops.concatenate([vectors, ops.zeros_like(vectors[..., :1])], axis=-1)
    return vectors if hidden_dim % 2 == 0 else vectors[..., :hidden_dim]


def segment_positions(segments):
    """Returns positions that restart with every segment, for rows of several packed sequences.

        segments       [[1, 1, 1, 2, 2, 0, 0]]
        positions      [[0, 1, 2, 0, 1, 0, 0]]

    Args:
        segments: integer tensor `[B, T]`. The segment of each token; 0 is padding.

    Returns:
        int32 tensor `[B, T]`: the number of earlier tokens in a token's segment; 0 for padding.
    """
    segments = of_list(segments)
    length = ops.shape(segments)[1]
    causal = causal_mask(length, length, offset=-1)
    earlier = ops.cast(ops.logical_and(segment_mask(segments, segments), causal), "int32")
    return ops.where(ops.not_equal(segments, 0), ops.sum(earlier, axis=-1), 0)


class PositionMixin:
    """A mixin for layers that add positions: their options and the table of learned positions."""

    def _set_positions(self, position_encoding, max_length, position_offset):
        check_choice("position_encoding", position_encoding, POSITION_ENCODINGS)
        if position_encoding == "learned" and not max_length:
            raise ValueError("Learned positions need max_length, the length of their table.")
        if position_encoding == "learned" and position_offset:
            raise ValueError(
                f"Learned positions begin at 0, so position_offset={position_offset} is for "
                "fixed positions alone."
            )
        self.position_encoding, self.max_length = position_encoding, max_length
        self.position_offset = position_offset

    def _build_positions(self, hidden_dim):
        if self.position_encoding == "learned":
            seed, shape = derive_seed(self.seed, "positions"), (self.max_length, hidden_dim)
            initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5, seed=seed)
            self.position_embeddings = self.add_weight(
                shape=shape, initializer=initializer, name="position_embeddings"
            )

    def _add_positions(self, hidden, start_index, positions=None):
        """Returns hidden states `[B, T, D]` plus their position vectors, if there are any."""
        if self.position_encoding is None:
            return hidden
        length, hidden_dim = ops.shape(hidden)[1], hidden.shape[-1]
        vectors = self.position_vectors(length, hidden_dim, start_index, positions)
        return hidden + ops.cast(vectors, self.compute_dtype)

    def position_vectors(self, length, hidden_dim, start_index, positions=None):
        """Returns position vectors `[T, D]`, or `[B, T, D]` for explicit positions."""
        is_known = positions is None and isinstance(length, int) and isinstance(start_index, int)
        if positions is None:
            first = start_index + self.position_offset
            end = first + length if is_known else 0
            if self.position_encoding == "learned" and end > self.max_length:
                raise ValueError(
                    f"A sequence of {end} tokens is longer than the {self.max_length} learned "
                    "positions; shorten it, or build the layer with a larger max_length."
                )
            positions = ops.arange(length, dtype="int32") + ops.cast(first, "int32")
        elif self.position_offset:
            positions = positions + self.position_offset
        if self.position_encoding != "learned":
            layout = _LAYOUTS[self.position_encoding]
            return sinusoidal_positions(positions, hidden_dim, layout=layout)
        if is_known:
            return ops.take(self.position_embeddings, positions, axis=0)
        # A compiled step cannot raise an error, so positions beyond the table give NaN.
        indices = ops.clip(positions, 0, self.max_length - 1)
        is_inside = ops.expand_dims(ops.less(positions, self.max_length), -1)
        return ops.take(self.position_embeddings, indices, axis=0) + nan_unless(is_inside)


@keras.saving.register_keras_serializable(package="kformer")
class PositionalEmbedding(PositionMixin, ReadsLists):
    """Embeds ids: token vectors times sqrt(D) plus position vectors, then dropout.

    With `reverse` the layer is the output projection: it multiplies hidden states with the token
    vectors.

    Args:
        vocabulary_size: int. V.
        hidden_dim: int. D.
        position_encoding: str or `None`, default "sinusoidal". `"sinusoidal"` (fixed, any length),
            `"learned"` (a table of `max_length` vectors) or `None`; `"sinusoidal_fairseq"` has the
            fixed vectors of fairseq and Marian, and `"sinusoidal_halves"` those that the library
            transformers has in their place.
        max_length: int or `None`, default `None`. The number of learned positions, which
            `"learned"` requires; other positions ignore it.
        position_offset: int, default 0. The position of a sequence's first token, for fixed
            positions; fairseq's models count from 2.
        scale: bool, default True. Whether token vectors are multiplied by sqrt(D), as in the paper.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate on the sum.
        pretrained: float array `[V, D]` or `None`, default `None`. The initial token vectors, in
            place of the initializer. They are not part of the configuration; a saved model has them
            among its weights. The layer multiplies by sqrt(D), so scale vectors of another source
            to a standard deviation of about 1 / sqrt(D).
        pad_id: int or `None`, default `None`. If given, the layer sets an implicit Keras mask,
            `ids != pad_id`, on its output.
        zero_id: int or `None`, default `None`. The id whose vector training leaves zero.
        embeddings_initializer: Keras initializer, its name or `None`, default `None`. The
            initializer of the token table; `None` for a normal distribution with the standard
            deviation 1 / sqrt(D). Then the scaled vectors have unit variance, and so have the
            logits of a shared projection.
        seed: int or `None`, default `None`. The seed of the initializers and the dropout; `None`
            for a random seed.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: integer tensor `[B, T]`, ids; with `reverse`, float tensor `[B, T, D]`, hidden
            states.
        reverse: bool, default False. Whether to project hidden states to logits by the token
            vectors, without scaling and positions.
        start_index: int or scalar tensor, default 0. The position of the first id: the number of
            tokens in a cache.
        positions: integer tensor `[B, T]` or `None`, default `None`. Explicit positions in place of
            `start_index`, for packed rows (`segment_positions`). Beyond the table of learned
            positions the result is NaN.
        training: bool, default `None`.

    Returns:
        Float tensor `[B, T, D]`; with `reverse`, logits `[B, T, V]`.

    Raises:
        ValueError: an option is unknown or out of range, `pretrained` has another shape, or a
            sequence is longer than the table of learned positions.

    Example:
    ```python
    embedding = kformer.layers.PositionalEmbedding(8000, 512)
    hidden = embedding(ops.array([[5, 6, 7]]))
    logits = embedding(hidden, reverse=True)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", sections 3.4 and 3.5.
        Press and Wolf 2017, "Using the output embedding to improve language models" (the shared
        table).
    """

    saved_arguments = (
        "vocabulary_size hidden_dim position_encoding max_length position_offset scale dropout "
        "pad_id zero_id embeddings_initializer seed"
    ).split()

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        *,
        position_encoding="sinusoidal",
        max_length=None,
        position_offset=0,
        scale=True,
        dropout=0.0,
        pretrained=None,
        pad_id=None,
        zero_id=None,
        embeddings_initializer=None,
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        self._set_positions(position_encoding, max_length, position_offset)
        if pretrained is not None and np.shape(pretrained) != (vocabulary_size, hidden_dim):
            raise ValueError(
                f"The pretrained token vectors have the shape {np.shape(pretrained)}, but the "
                f"vocabulary and hidden size ask for {(vocabulary_size, hidden_dim)}."
            )
        self.vocabulary_size, self.hidden_dim, self.scale = vocabulary_size, hidden_dim, scale
        self.pad_id, self.zero_id, self.seed = pad_id, zero_id, settled_seed(seed)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self._pretrained = pretrained
        # Ids must not be cast to a float dtype.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.embedding_dropout = Dropout(dropout, **self._part("embedding_dropout", "embedding"))
        self.dropout = self.embedding_dropout.rate

    def build(self, input_shape=None):
        initializer = seeded(self.embeddings_initializer, self.seed, "tokens")
        if self._pretrained is not None:
            vectors, self._pretrained = np.asarray(self._pretrained), None

            def initializer(shape, dtype=None):
                return ops.convert_to_tensor(vectors, dtype=dtype)

        shape = (self.vocabulary_size, self.hidden_dim)
        self.embeddings = self.add_weight(
            shape=shape,
            initializer=initializer,
            constraint=None if self.zero_id is None else _ZeroRow(self.zero_id),
            name="embeddings",
        )
        self._build_positions(self.hidden_dim)
        self.embedding_dropout.build()
        self.built = True

    def __call__(self, inputs, *args, **kwargs):
        inputs = of_list(inputs)
        if not (args[0] if args else kwargs.get("reverse")):
            check_rank(f"The input of the layer '{self.name}'", inputs, "[B, T]")
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, reverse=False, start_index=0, positions=None, training=None):
        if reverse:
            # Compilers fold the transposition into the product. (On TensorFlow the gradient of an
            # einsum here takes twice as long.)
            table = ops.transpose(ops.cast(self.embeddings, self.compute_dtype))
            return product(ops.cast(inputs, self.compute_dtype), table)
        ids = ops.convert_to_tensor(inputs)
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = ops.cast(ids, "int32")
        hidden = ops.take(ops.cast(self.embeddings, self.compute_dtype), ids, axis=0)
        if self.scale:
            hidden = hidden * math.sqrt(self.hidden_dim)
        hidden = self._add_positions(hidden, start_index, positions)
        return self.embedding_dropout(hidden, training=training)

    def compute_mask(self, inputs, mask=None):
        is_ids = len(inputs.shape) == 2  # Hidden states, which `reverse` takes, have a third axis.
        return ops.not_equal(inputs, self.pad_id) if self.pad_id is not None and is_ids else None

    def compute_output_spec(
        self, inputs, reverse=False, start_index=0, positions=None, training=None
    ):
        size = self.vocabulary_size if reverse else self.hidden_dim
        return keras.KerasTensor((*inputs.shape[:2], size), dtype=self.compute_dtype)


class _ZeroRow(keras.constraints.Constraint):
    """Sets a row of a table to zero."""

    def __init__(self, row):
        self.row = row

    def __call__(self, table):
        table = ops.convert_to_tensor(table)
        is_row = ops.equal(ops.arange(table.shape[0]), self.row)
        return ops.where(is_row[:, None], ops.zeros_like(table), table)


@keras.saving.register_keras_serializable(package="kformer")
class NormalizedPositions(PositionMixin, ReadsLists):
    """Adds positions, then applies a layer norm and dropout: the layer after BART's token vectors.

    Both sides of BART and mBART share the token vectors, but each side has its own positions and
    its own norm.

    Args:
        position_encoding: str or `None`, default "learned". As in `PositionalEmbedding`.
        max_length: int or `None`, default `None`. As in `PositionalEmbedding`.
        position_offset: int, default 0. The position of the first token, for fixed positions.
        layer_norm_epsilon: float, default 1e-5. The number that is added to the variance.
        dropout: float in `[0, 1)`, default 0.0. The dropout rate after the norm.
        seed: int or `None`, default `None`. The seed of the initializer and the dropout; `None` for
            a random seed.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `[B, T, D]`. Token vectors.
        start_index: int or scalar tensor, default 0. The number of tokens before the first one.
        positions: integer tensor `[B, T]` or `None`, default `None`. Explicit positions in place of
            `start_index`, for packed rows.
        training: bool, default `None`.

    Returns:
        Float tensor `[B, T, D]`.

    Raises:
        ValueError: an option is unknown or out of range, or a sequence is longer than the table of
            learned positions.

    References:
        Lewis et al. 2020, "BART: denoising sequence-to-sequence pre-training"; Liu et al. 2020,
        "Multilingual denoising pre-training for neural machine translation" (mBART).
    """

    input_axes = "[B, T, D]"
    saved_arguments = (
        "position_encoding max_length position_offset layer_norm_epsilon dropout seed".split()
    )

    def __init__(
        self,
        *,
        position_encoding="learned",
        max_length=None,
        position_offset=0,
        layer_norm_epsilon=1e-5,
        dropout=0.0,
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        self._set_positions(position_encoding, max_length, position_offset)
        self.seed, self.layer_norm_epsilon = settled_seed(seed), layer_norm_epsilon
        self.norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.position_dropout = Dropout(dropout, **self._part("position_dropout", "positions"))
        self.dropout = self.position_dropout.rate

    def build(self, input_shape):
        self._build_positions(input_shape[-1])
        self.norm.build(input_shape)
        self.position_dropout.build()
        self.built = True

    def call(self, inputs, start_index=0, positions=None, training=None):
        hidden = self._add_positions(inputs, start_index, positions)
        return self.position_dropout(normalize(self.norm, hidden), training=training)
