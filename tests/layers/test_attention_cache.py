"""Attention with a cache equals attention without."""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import KeyValueCache, MultiHeadAttention, StaticKeyValueCache
from tests.peers import to_numpy

B, T, S, D, N = 2, 4, 5, 8, 2
H = D // N

# JAX compiles anew for every length of the growing layout, which is not meant for it: there one
# test of it is enough.
layouts = pytest.mark.parametrize(
    "layout", ["static"] if keras.backend.backend() == "jax" else ["growing", "static"]
)


def empty_cache(layout, rows=B, dtype="float32"):
    if layout == "growing":
        return KeyValueCache.empty(rows, N, H, dtype)
    return StaticKeyValueCache.empty(rows, N, H, dtype, max_length=T + 2)


@pytest.fixture
def layer(randomize):
    layer = MultiHeadAttention(N)
    layer.build((B, T, D))
    return randomize(layer)


@pytest.fixture
def cross_layer(randomize):
    layer = MultiHeadAttention(N)
    layer.build((B, T, D), (B, S, D))
    return randomize(layer)


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


def run(layer, x, cache, widths, **arguments):
    """The outputs of calls with so many tokens each, joined, and the last cache."""
    outputs, start = [], 0
    for width in widths:
        output, cache = layer(x[:, start : start + width], cache=cache, **arguments)
        outputs.append(to_numpy(output))
        start += width
    return np.concatenate(outputs, axis=1), cache


@pytest.mark.parametrize(
    ("layout", "widths"), [("growing", (2, 1, 1)), ("static", (1, 1, 1, 1)), ("static", (2, 1, 1))]
)
def test_steps_of_any_width_equal_the_causal_whole(layer, x, layout, widths):
    expected = to_numpy(layer(x, use_causal_mask=True))
    found, cache = run(layer, x, empty_cache(layout), widths)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert int(cache.length) == T
    key, value = cache.view()
    assert tuple(key.shape) == tuple(value.shape) == (B, N, T if layout == "growing" else T + 2, H)


@layouts
def test_scores_of_a_step(layer, x, layout):
    _, expected = layer(x, use_causal_mask=True, return_attention_scores=True)
    _, cache = run(layer, x, empty_cache(layout), (2,))
    _, scores, _ = layer(x[:, 2:], cache=cache, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(scores)[..., :T], to_numpy(expected)[:, :, 2:], atol=1e-5)
    assert (to_numpy(scores)[..., T:] == 0).all()


@layouts
def test_padding_of_the_cached_tokens(layer, x, layout):
    """A prefix that was padded on the left: the mask speaks of all the cache's slots."""
    padding = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], bool)
    expected = to_numpy(layer(x, use_causal_mask=True, padding_mask=padding))
    slots = np.concatenate([padding, np.ones((B, 2), bool)], axis=1)
    cache, outputs = empty_cache(layout), []
    for start, end in [(0, 2), (2, 4)]:
        keys = slots[:, :end] if layout == "growing" else slots
        output, cache = layer(x[:, start:end], cache=cache, padding_mask=keys)
        outputs.append(to_numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@layouts
def test_reordered_rows(layer, x, layout):
    _, cache = run(layer, x, empty_cache(layout), (2,))
    output, cache = layer(
        x[[1, 1], 2:], cache=cache.reorder(ops.convert_to_tensor([1, 1], dtype="int32"))
    )
    expected = to_numpy(layer(x[[1, 1]], use_causal_mask=True))
    np.testing.assert_allclose(to_numpy(output), expected[:, 2:], atol=1e-5)


@layouts
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("mixed_bfloat16", 3e-2), ("mixed_float16", 4e-3)]
)
def test_cache_in_half_precision(x, layout, dtype, tolerance):
    layer = MultiHeadAttention(N, seed=1, dtype=dtype)
    expected = to_numpy(layer(x, use_causal_mask=True))
    found, cache = run(layer, x, empty_cache(layout, dtype=layer.compute_dtype), (2, 2))
    assert layer.compute_dtype in str(cache.key.dtype)
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_the_first_token_attends_to_itself_without_a_warning(layer, x, recwarn):
    """Keras warns of a softmax over one element; a search begins with one."""
    _, scores, _ = layer(x[:, :1], cache=empty_cache("growing"), return_attention_scores=True)
    np.testing.assert_array_equal(to_numpy(scores), np.ones((B, N, 1, 1)))
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


def test_static_cache_starts_empty_and_fills_up():
    cache = StaticKeyValueCache.empty(1, 1, 1, "float32", max_length=4)
    assert int(cache.length) == 0
    cache = cache.append(ops.ones((1, 1, 3, 1)), 2 * ops.ones((1, 1, 3, 1)))
    assert int(cache.length) == 3
    assert to_numpy(cache.key).ravel().tolist() == [1, 1, 1, 0] and to_numpy(
        cache.value
    ).ravel().tolist() == [2, 2, 2, 0]
    assert to_numpy(cache.causal_mask(2)).tolist() == [
        [True, True, False, False],
        [True, True, True, False],
    ]


def test_growing_cache_needs_no_mask_for_one_token():
    cache = KeyValueCache.empty(1, 1, 1, "float32").append(
        ops.ones((1, 1, 3, 1)), ops.ones((1, 1, 3, 1))
    )
    assert cache.causal_mask(1) is None
    assert to_numpy(cache.causal_mask(2)).tolist() == [[True, True, False], [True, True, True]]


@pytest.mark.parametrize("fused", [True, False])
def test_beams_share_the_keys_of_their_sentence(cross_layer, rng, fused):
    """A cache of B rows under a query of B K rows gives what B K rows of repeated values give."""
    beams, steps = 3, 2
    cross_layer.fused = fused
    query = rng.normal(size=(B * beams, steps, D)).astype("float32")
    value = rng.normal(size=(B, S, D)).astype("float32")
    padding = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)
    cache = cross_layer.compute_cache(value)
    assert tuple(cache.key.shape) == (B, N, S, H)
    output, scores, cache = cross_layer(
        query, cache=cache, padding_mask=padding, return_attention_scores=True
    )
    without_scores, cache = cross_layer(query, cache=cache, padding_mask=padding)
    expected = cross_layer(
        query,
        value.repeat(beams, axis=0),
        padding_mask=padding.repeat(beams, axis=0),
        return_attention_scores=True,
    )
    np.testing.assert_allclose(to_numpy(output), to_numpy(expected[0]), atol=1e-5)
    np.testing.assert_allclose(to_numpy(without_scores), to_numpy(expected[0]), atol=1e-5)
    np.testing.assert_allclose(to_numpy(scores), to_numpy(expected[1]), atol=1e-5)
    assert cache.reorder(ops.convert_to_tensor([2, 1, 0, 5, 4, 3])) is cache


def test_keys_and_values_are_computed_once(cross_layer, x, rng):
    value = rng.normal(size=(B, S, D)).astype("float32")
    expected = to_numpy(cross_layer(x, value))
    cache = cross_layer.compute_cache(value)
    cross_layer.key_value_kernel.assign(np.zeros(cross_layer.key_value_kernel.shape))
    found, _ = run(cross_layer, x, cache, (1,) * T)
    np.testing.assert_allclose(found, expected, atol=1e-5)
