"""Grouped-query attention, rotary positions, biases and scales of attention: equal to what others
compute, cached and not.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import (
    KeyValueCache,
    MultiHeadAttention,
    StaticKeyValueCache,
    alibi_bias,
    distances,
)

RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(2, 7, 32)).astype("float32")


def numpy_of(x):
    return ops.convert_to_numpy(x)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


@pytest.mark.parametrize("groups", [1, 2])
def test_rotary_grouped_attention_is_that_of_llama(groups):
    transformers = pytest.importorskip("transformers")
    import torch
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=groups,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    peer = LlamaAttention(config, layer_idx=0).eval()
    layer = MultiHeadAttention(4, num_key_value_heads=groups, rotary={}, use_bias=False)
    layer.build(X.shape)
    kernels = [getattr(peer, f"{name}_proj").weight.detach().numpy().T for name in "qkv"]
    layer.query_key_value_kernel.assign(np.concatenate(kernels, axis=1))
    layer.output_kernel.assign(peer.o_proj.weight.detach().numpy().T)
    x = torch.tensor(X)
    mask = torch.full((7, 7), -1e30).triu(1)[None, None]
    with torch.no_grad():
        expected = peer(
            x, LlamaRotaryEmbedding(config)(x, torch.arange(7)[None]), attention_mask=mask
        )[0].numpy()
    np.testing.assert_allclose(numpy_of(layer(X, use_causal_mask=True)), expected, atol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_heads_that_share_keys_are_heads_with_equal_keys(fused):
    shared, full = (
        MultiHeadAttention(4, num_key_value_heads=groups, fused=fused, seed=1)
        for groups in (2, None)
    )
    for layer in (shared, full):
        layer.build(X.shape, X.shape)
    kernel = numpy_of(shared.key_value_kernel).reshape(32, 2, 2, 8)
    full.key_value_kernel.assign(np.repeat(kernel, 2, axis=2).reshape(32, 64))
    for name in ("query_kernel", "output_kernel"):
        getattr(full, name).assign(getattr(shared, name))
    value = RANDOM.normal(size=(2, 5, 32)).astype("float32")
    padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    np.testing.assert_allclose(
        numpy_of(shared(X, value, padding_mask=padding)),
        numpy_of(full(X, value, padding_mask=padding)),
        atol=1e-5,
    )
    _, scores = shared(X, value, padding_mask=padding, return_attention_scores=True)
    assert scores.shape == (2, 4, 7, 5) and shared.count_params() < full.count_params()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_cached_attention_is_uncached_attention(static, interleaved):
    layer = MultiHeadAttention(
        4, num_key_value_heads=2, rotary={"base": 500.0, "interleaved": interleaved}, seed=2
    )
    whole = numpy_of(layer(X, use_causal_mask=True))
    size = (2, 2, 8, "float32")
    cache = StaticKeyValueCache.empty(*size, 9) if static else KeyValueCache.empty(*size)
    parts = []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        part, cache = layer(X[:, begin:end], cache=cache)
        parts.append(numpy_of(part))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5)
    moved = numpy_of(
        MultiHeadAttention.from_config({**layer.get_config(), "rotary": None})(
            X, use_causal_mask=True
        )
    )
    assert np.abs(moved - whole).max() > 1e-3


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_is_added_to_the_scaled_scores(fused, causal):
    layer = MultiHeadAttention(4, fused=fused, scale=0.2, use_bias=False, seed=3)
    bias = alibi_bias(4, distances(7, 7))
    found = numpy_of(layer(X, attention_bias=bias, use_causal_mask=causal))
    heads = (
        (X @ numpy_of(layer.query_key_value_kernel)).reshape(2, 7, 3, 4, 8).transpose(2, 0, 3, 1, 4)
    )
    scores = 0.2 * heads[0] @ heads[1].transpose(0, 1, 3, 2) + numpy_of(bias)
    scores = np.where(np.tril(np.ones((7, 7), bool)), scores, -np.inf) if causal else scores
    context = (softmax(scores) @ heads[2]).transpose(0, 2, 1, 3).reshape(2, 7, 32)
    np.testing.assert_allclose(found, context @ numpy_of(layer.output_kernel), atol=1e-5)


def test_a_query_without_keys_gets_nothing_under_a_bias():
    layer = MultiHeadAttention(4, seed=3)
    padding = np.array([[False] * 7, [True] * 7])
    found = numpy_of(layer(X, attention_bias=alibi_bias(4, distances(7, 7)), padding_mask=padding))
    assert not found[0].any() and np.isfinite(found).all() and found[1].any()


def test_the_options_are_kept_in_a_saved_model(tmp_path):
    inputs = keras.Input((None, 32))
    layer = MultiHeadAttention(4, num_key_value_heads=1, rotary={"interleaved": True}, scale=0.3)
    model = keras.Model(inputs, layer(inputs, use_causal_mask=True))
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy_of(copy(X)), numpy_of(model(X)), atol=1e-6)


@pytest.mark.any_backend
def test_options_that_cannot_be():
    with pytest.raises(
        ValueError, match="num_key_value_heads must divide num_heads, .* but 4 / 3 is not"
    ):
        MultiHeadAttention(4, num_key_value_heads=3)
    with pytest.raises(
        ValueError, match="rotary has the entries base and interleaved, but theta was given"
    ):
        MultiHeadAttention(4, rotary={"theta": 1.0})
    with pytest.raises(ValueError, match="head size must be even, but it is 3"):
        MultiHeadAttention(4, head_dim=3, rotary={}).build((1, 2, 12))
