"""Positions as distances between queries and keys: RoPE, ALiBi and T5's relative bias.

None of them adds anything to the embeddings. Shape letters: B batch, N heads, T queries, S keys, H
head size. A distance is the key's position minus the query's, so it is negative for earlier keys.
"""

import math
from typing import Unpack

import keras
import numpy as np
from keras import ops

from kformer.layers.counter_hash import settled_seed
from kformer.layers.initializers import seeded
from kformer.layers.inputs import LayerArguments, ReadsLists, of_list


def rotate_positions(x, positions, base=10_000.0, interleaved=False):
    """Rotary position embedding (RoPE): rotates pairs of numbers by angles that depend on position.

    The pair i of H / 2 is rotated by `position * base^(-2 i / H)`, so the product of a query at m
    and a key at n depends on m - n alone. The first pairs rotate fastest (high frequencies), the
    last ones slowest.

    Args:
        x: float tensor `[B, N, T, H]`, queries or keys. H must be even.
        positions: integer tensor `[T]` or `[B, T]`.
        base: float, default 10000.0. With a larger base the slow pairs rotate more slowly.
        interleaved: bool, default False. `True` pairs neighbouring numbers, as in the paper;
            `False` pairs the number i with i + H / 2, as the published models of the Llama family
            do. A model trained from scratch learns equally well with both.

    Returns:
        Tensor like `x`. The angles are computed in float32, whatever the dtype.

    Raises:
        ValueError: H is odd.

    References:
        Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equations
        15 and 34.
    """
    x = of_list(x)
    size = x.shape[-1]
    check_rotary_size(size)
    cosines, sines = _rotations(positions, size, base)
    if len(cosines.shape) == 3:
        cosines, sines = ops.expand_dims(cosines, 1), ops.expand_dims(sines, 1)  # [B, 1, T, H / 2]
    if interleaved:
        pairs = ops.reshape(ops.cast(x, "float32"), (*ops.shape(x)[:-1], size // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    rotated = first * cosines - second * sines, first * sines + second * cosines
    if interleaved:
        rotated = ops.reshape(ops.stack(rotated, axis=-1), ops.shape(x))
    else:
        rotated = ops.concatenate(rotated, axis=-1)
    return ops.cast(rotated, x.dtype)


def _rotations(positions, size, base):
    """Cosines and sines of each pair's angle, float32 `[..., T, H / 2]`."""
    frequencies = ops.convert_to_tensor(rotary_frequencies(size, base).astype("float32"))
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
    return ops.cos(angles), ops.sin(angles)


def rotary_frequencies(size, base):
    """The angle of one position for each pair of a head's numbers.

    Args:
        size: int. H.
        base: float. As in `rotate_positions`.

    Returns:
        float64 array `[H / 2]`.
    """
    return base ** (-np.arange(0, size, 2) / size)


def rotary_factors(positions, size, base=10_000.0, interleaved=False):
    """The rotation of `rotate_positions` as two products: `x * cosines + swapped x * sines`.

    In the swapped x the two numbers of each pair are exchanged.

    Args:
        positions: integer tensor `[T]`.
        size: int. H.
        base: float, default 10000.0. As in `rotate_positions`.
        interleaved: bool, default False. As in `rotate_positions`.

    Returns:
        Two float32 tensors `[T, H]`, cosines and sines; of a pair's two sines the first is
        negative.
    """
    cosines, sines = _rotations(positions, size, base)
    pairs = ((cosines, cosines), (-sines, sines))
    if interleaved:
        return tuple(ops.reshape(ops.stack(pair, axis=-1), (-1, size)) for pair in pairs)
    return tuple(ops.concatenate(pair, axis=-1) for pair in pairs)


def check_rotary_size(head_dim):
    """Checks that a head can be rotated by `rotate_positions`.

    Args:
        head_dim: int. The size of the head.

    Raises:
        ValueError: the size is odd.
    """
    if head_dim % 2:
        raise ValueError(
            "Rotary positions rotate pairs of numbers, so the head size must be even, but it is "
            f"{head_dim}: change it, or position_encoding."
        )


def distances(query_length, key_length, offset=0):
    """Distances from queries to keys.

        distances(2, 4, offset=2)   -2 -1  0  1
                                    -3 -2 -1  0

    Args:
        query_length: int or scalar tensor. T.
        key_length: int or scalar tensor. S.
        offset: int or scalar tensor, default 0. The position of the first query among the keys:
            the number of tokens in a cache.

    Returns:
        int32 tensor `[T, S]`.
    """
    query_positions = ops.arange(query_length, dtype="int32") + ops.cast(offset, "int32")
    key_positions = ops.arange(key_length, dtype="int32")
    return ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)


def band_distances(window, dilation=1, is_causal=False):
    """Distances from the queries of a block to the keys that `LocalAttention` compares them with.

        band_distances(2, is_causal=True)   -2 -1  0  1
                                            -3 -2 -1  0

    Args:
        window: int. W, the steps that a query sees in each direction; a block has as many tokens.
        dilation: int, default 1. The length of a step.
        is_causal: bool, default False. Whether the block after a query's own is omitted.

    Returns:
        int32 tensor `[W, 3 W]`, causal `[W, 2 W]`.
    """
    return dilation * distances(window, (2 if is_causal else 3) * window, offset=window)


@keras.saving.register_keras_serializable(package="kformer")
class Distances(ReadsLists):
    """`distances` between the tokens of a sequence, as a layer that reads the length from a batch.

    Args:
        window: int or `None`, default `None`. If given, the layer returns `band_distances`.
        dilation: int, default 1. As in `band_distances`.
        is_causal: bool, default False. As in `band_distances`.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: tensor `[B, T, ...]`.

    Returns:
        int32 tensor `[T, T]`; with a window that of `band_distances`.
    """

    saved_arguments = ("window", "dilation", "is_causal")

    def __init__(self, window=None, dilation=1, is_causal=False, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        self.window, self.dilation, self.is_causal = window, dilation, is_causal

    def call(self, inputs):
        if self.window is not None:
            return band_distances(self.window, self.dilation, self.is_causal)
        length = ops.shape(inputs)[1]
        return distances(length, length)

    def compute_mask(self, inputs, mask=None):
        return None  # The outputs have no axis of the batch, which a mask has.

    def compute_output_spec(self, inputs):
        shape = (inputs.shape[1], inputs.shape[1])
        if self.window is not None:
            shape = (self.window, (2 if self.is_causal else 3) * self.window)
        return keras.KerasTensor(shape, dtype="int32")


def alibi_slopes(num_heads):
    """The slopes with which each head's scores fall with the distance.

    They are `2^(-8 h / N)` for the heads h = 1 ... N where N is a power of two. For another N, the
    slopes of the next lower power of two are followed by every other slope of twice as many heads,
    as in the authors' code.

    Args:
        num_heads: int. N.

    Returns:
        float32 array `[N]`.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes += [2 ** (-4 * head / power) for head in range(1, 2 * (num_heads - power) + 1, 2)]
    return np.array(slopes, "float32")


def alibi_bias(num_heads, distance):
    """ALiBi: the bias that is added to the scores, `-slope * |distance|`.

    In a decoder the keys after the query are masked; in an encoder both directions count alike.

    Args:
        num_heads: int. N.
        distance: int32 tensor `[T, S]`, from `distances`.

    Returns:
        float32 tensor `[N, T, S]`.

    References:
        Press et al. 2022, "Train short, test long: attention with linear biases enables input
        length extrapolation", section 3.
    """
    slopes = ops.convert_to_tensor(alibi_slopes(num_heads)[:, None, None])
    # In this order: the distances may be symbolic.
    return ops.cast(ops.abs(distance), "float32") * -slopes


def relative_buckets(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """The bucket of each distance, as in T5: far distances share ever wider buckets.

    Args:
        distance: int32 tensor of any shape.
        num_buckets: int, default 32. The buckets of both directions together.
        max_distance: int, default 128. From it on, all distances share the last bucket.
        bidirectional: bool, default True. Whether keys after the query have buckets of their own
            (an encoder), or count as distance 0 (a decoder).

    Returns:
        int32 tensor of that shape, in `[0, num_buckets)`.

    Raises:
        ValueError: there are too few buckets, or `max_distance` is too small for them.

    References:
        Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text
        Transformer", section 2.1.
    """
    distance = of_list(distance)
    buckets = num_buckets // 2 if bidirectional else num_buckets
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"There must be at least {4 if bidirectional else 2} buckets and a max_distance "
            f"above the {exact} that have one each, but "
            f"num_buckets={num_buckets} and max_distance={max_distance} were given."
        )

    # A table, since backends differ in the last bit of a logarithm, which decides the bucket
    # where its value is whole.
    table = list(range(exact))
    for apart in range(exact, max_distance + 1):
        share = math.log(apart / exact) / math.log(max_distance / exact)
        table.append(min(exact + int(share * (buckets - exact)), buckets - 1))
    apart = ops.abs(distance) if bidirectional else ops.maximum(-distance, 0)
    table = ops.convert_to_tensor(np.array(table, "int32"))
    bucket = ops.take(table, ops.minimum(apart, max_distance), axis=0)
    return bucket + buckets * ops.cast(distance > 0, "int32") if bidirectional else bucket


@keras.saving.register_keras_serializable(package="kformer")
class RelativePositionBias(ReadsLists):
    """T5's relative bias: a learned number per head and bucket of distances, added to the scores.

    The layers of a stack share one.

    Args:
        num_heads: int. N.
        num_buckets: int, default 32. As in `relative_buckets`.
        max_distance: int, default 128. As in `relative_buckets`.
        bidirectional: bool, default True. As in `relative_buckets`.
        initializer: Keras initializer or its name, default "glorot_uniform". Of the table,
            `[num_buckets, N]`.
        seed: int or `None`, default `None`. For the initializer; `None` for a random one.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        distance: int32 tensor `[T, S]`, from `distances`.

    Returns:
        Float tensor `[N, T, S]`.

    Raises:
        ValueError: there are too few buckets, or `max_distance` is too small for them.

    Example:
    ```python
    bias = kformer.layers.RelativePositionBias(num_heads=8)
    bias(kformer.layers.distances(5, 7)).shape  # (8, 5, 7)
    ```

    References:
        Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text
        Transformer", section 2.1.
    """

    saved_arguments = "num_heads num_buckets max_distance bidirectional initializer seed".split()

    def __init__(
        self,
        num_heads,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        *,
        initializer="glorot_uniform",
        seed=None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        # Raises for options that contradict each other.
        relative_buckets(np.zeros((), "int32"), num_buckets, max_distance, bidirectional)
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.initializer = keras.initializers.get(initializer)
        self.seed = settled_seed(seed)

    def build(self, input_shape=None):
        initializer = seeded(self.initializer, self.seed, "table")
        shape = (self.num_buckets, self.num_heads)
        self.table = self.add_weight(shape=shape, initializer=initializer, name="table")
        self.built = True

    def call(self, distance):
        options = (self.num_buckets, self.max_distance, self.bidirectional)
        table = ops.cast(self.table, self.compute_dtype)
        biases = ops.take(table, relative_buckets(distance, *options), axis=0)
        return ops.transpose(biases, (2, 0, 1))

    def compute_output_spec(self, distance):
        return keras.KerasTensor((self.num_heads, *distance.shape), dtype=self.compute_dtype)
