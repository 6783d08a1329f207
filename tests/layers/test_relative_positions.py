"""RoPE, ALiBi and T5's relative bias: their mathematics, and the numbers of those who published
them.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import (
    MultiHeadAttention,
    RelativePositionBias,
    alibi_bias,
    alibi_slopes,
    distances,
    relative_buckets,
    rotate_positions,
)

RANDOM = np.random.default_rng(5)


def rotated(x, positions, **settings):
    return ops.convert_to_numpy(
        rotate_positions(ops.convert_to_tensor(x), ops.convert_to_tensor(positions), **settings)
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_is_the_papers_matrix(interleaved):
    size, positions = 8, np.array([0, 1, 5, 300])
    x = RANDOM.normal(size=(2, 3, 4, size)).astype("float32")
    expected = np.empty(x.shape)
    for index, position in enumerate(positions):
        matrix = np.zeros((size, size))
        for pair in range(size // 2):
            angle = position * 10_000 ** (-2 * pair / size)
            places = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
            matrix[np.ix_(places, places)] = [
                [np.cos(angle), -np.sin(angle)],
                [np.sin(angle), np.cos(angle)],
            ]
        expected[:, :, index] = x[:, :, index] @ matrix.T
    found = rotated(x, positions, interleaved=interleaved)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    rows = rotated(x, np.stack([positions, positions[::-1]]), interleaved=interleaved)
    np.testing.assert_allclose(rows[0], found[0], atol=1e-6)
    assert np.abs(rows[1] - found[1]).max() > 0.1


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_score_depends_on_the_distance_alone(interleaved):
    query, key = (
        np.repeat(RANDOM.normal(size=(1, 1, 1, 16)), 6, axis=2).astype("float32") for _ in range(2)
    )
    places = np.array([0, 1, 7, 50, 90, 200])
    for distance in (-13, 0, 4):
        pairs = rotated(query, places + 20, interleaved=interleaved) * rotated(
            key, places + 20 + distance, interleaved=interleaved
        )
        scores = pairs.sum(-1)[0, 0]
        np.testing.assert_allclose(scores, scores[0], atol=1e-4)
    assert (
        len({round(float(score), 3) for score in (rotated(query, places) * key).sum(-1)[0, 0]}) == 6
    )
    np.testing.assert_allclose(
        np.linalg.norm(rotated(query, places), axis=-1), np.linalg.norm(query, axis=-1), rtol=1e-5
    )


def test_rotations_are_those_of_llama():
    transformers = pytest.importorskip("transformers")
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    x = RANDOM.normal(size=(2, 4, 9, 32)).astype("float32")
    positions = np.arange(9) + 100
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=256
    )
    cosines, sines = LlamaRotaryEmbedding(config)(torch.tensor(x), torch.tensor(positions)[None])
    expected, _ = apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cosines, sines)
    np.testing.assert_allclose(rotated(x, positions), expected.numpy(), atol=1e-5)


def test_half_precision_is_turned_in_float32():
    x = RANDOM.normal(size=(1, 1, 1, 64)).astype("float32")
    exact = rotated(x, np.array([2047]))
    found = rotate_positions(ops.cast(x, "bfloat16"), np.array([2047]))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(found, "float32")), exact, atol=0.03)


@pytest.mark.any_backend
def test_an_odd_head_size_cannot_be_turned():
    with pytest.raises(ValueError, match="the head size must be even, but it is 5"):
        rotate_positions(np.zeros((1, 1, 2, 5), "float32"), np.arange(2))


def test_slopes_and_biases_of_alibi():
    # The paper's numbers for 8 heads; those between for 16.
    np.testing.assert_array_equal(
        alibi_slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    )
    np.testing.assert_allclose(alibi_slopes(16), 2.0 ** (-0.5 * np.arange(1, 17)), rtol=1e-6)
    bias = ops.convert_to_numpy(alibi_bias(8, distances(3, 5, offset=2)))
    assert bias.shape == (8, 3, 5)
    for head, query, key in ((0, 0, 0), (0, 2, 4), (3, 1, 0), (7, 0, 4)):
        assert bias[head, query, key] == -(2.0 ** -(head + 1)) * abs(key - query - 2)


@pytest.mark.parametrize("num_heads", [8, 12])
def test_biases_are_those_of_bloom(num_heads):
    pytest.importorskip("transformers")
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    # Its bias grows with the key's position; that differs from the paper's by a number for each
    # query, which a softmax does not see.
    expected = (
        build_alibi_tensor(torch.ones(1, 6), num_heads, torch.float32).reshape(num_heads, 6).numpy()
    )
    bias = ops.convert_to_numpy(alibi_bias(num_heads, distances(1, 6, offset=5)))[:, 0]
    np.testing.assert_allclose(bias - bias[:, :1], expected - expected[:, :1], rtol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("sizes", [(32, 128), (32, 256), (16, 64), (8, 20)])
def test_buckets_are_those_of_t5(bidirectional, sizes):
    pytest.importorskip("transformers")
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-400, 401).astype("int32")
    settings = {"bidirectional": bidirectional, "num_buckets": sizes[0], "max_distance": sizes[1]}
    expected = T5Attention._relative_position_bucket(torch.tensor(distance), **settings).numpy()
    found = ops.convert_to_numpy(
        relative_buckets(ops.convert_to_tensor(distance), *sizes, bidirectional)
    )
    np.testing.assert_array_equal(found, expected)


def test_the_relative_bias_of_a_later_query_is_a_row_of_the_whole():
    layer = RelativePositionBias(4, bidirectional=False, seed=1)
    whole = ops.convert_to_numpy(layer(distances(40, 40)))
    assert whole.shape == (4, 40, 40)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(layer(distances(1, 31, offset=30)))[:, 0], whole[:, 30, :31]
    )
    np.testing.assert_array_equal(whole[:, 9, 3], ops.convert_to_numpy(layer.table)[6])
    copy = RelativePositionBias.from_config(layer.get_config())
    copy.build((40, 40))  # As Keras's tests of layers do.
    np.testing.assert_array_equal(ops.convert_to_numpy(copy(distances(40, 40))), whole)


@pytest.mark.any_backend
def test_too_few_buckets():
    with pytest.raises(
        ValueError, match="at least 4 buckets .* but num_buckets=2 and max_distance=128 were given"
    ):
        RelativePositionBias(4, num_buckets=2)


@pytest.mark.parametrize("shared", [False, True])
def test_relative_vectors_are_those_of_shaw_et_al(shared):
    heads, size, length, most = 2, 3, 6, 2
    relative = {"max_distance": most, "shared": shared}
    layer = MultiHeadAttention(heads, size, relative_positions=relative, use_bias=False)
    x = RANDOM.normal(size=(2, length, heads * size)).astype("float32")
    output, weights = layer(ops.convert_to_tensor(x), return_attention_scores=True)
    kernel = ops.convert_to_numpy(layer.query_key_value_kernel)
    query, key, value = (
        part.reshape(2, length, heads, size) for part in np.split(x @ kernel, 3, axis=-1)
    )
    tables = [ops.convert_to_numpy(t) for t in (layer.relative_keys, layer.relative_values)]
    assert tables[0].shape == (2 * most + 1, size) and (tables[0] is tables[1]) <= shared
    assert len(layer.weights) == (3 if shared else 4)
    expected = np.zeros((2, length, heads, size))
    for row, i, head in np.ndindex(2, length, heads):
        places = [min(max(j - i, -most), most) + most for j in range(length)]
        scores = (key[row, :, head] + tables[0][places]) @ query[row, i, head] / size**0.5
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        np.testing.assert_allclose(ops.convert_to_numpy(weights)[row, head, i], shares, atol=1e-5)
        expected[row, i, head] = shares @ (value[row, :, head] + tables[1][places])
    expected = expected.reshape(2, length, -1) @ ops.convert_to_numpy(layer.output_kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-5)


def test_relative_vectors_belong_to_full_attention():
    with pytest.raises(ValueError, match="relative_positions belong to kind='full'"):
        MultiHeadAttention(2, kind="linear", relative_positions={"max_distance": 3})
    with pytest.raises(ValueError, match="max_distance"):
        MultiHeadAttention(2, relative_positions={"max_distance": 0})
