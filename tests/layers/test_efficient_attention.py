"""Local and linear attention: equal to full attention under a mask and to the sums by hand, cached
and not, in linear memory.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import (
    MultiHeadAttention,
    alibi_bias,
    band_distances,
    distances,
    rotate_positions,
    window_mask,
)
from kformer.layers.linear_attention import linear_attention
from tests.peers import to_numpy

D, N = 16, 2
IS_JAX = keras.backend.backend() == "jax"  # It compiles each operation for each shape.
RANDOM = np.random.default_rng(7)


def draw(length, rows=2):
    return RANDOM.normal(size=(rows, length, D)).astype("float32")


def padding_of(length):
    """The second row is a third shorter."""
    return np.arange(length) < np.array([[length], [length - length // 3]])


def pair_of_layers(**options):
    """A layer of a kind and one of full attention with the same weights."""
    general = {
        name: options.pop(name) for name in ("rotary", "num_key_value_heads") if name in options
    }
    layers = (
        MultiHeadAttention(N, **options, **general, seed=1),
        MultiHeadAttention(N, **general, seed=1),
    )
    for layer in layers:
        layer.build((None, None, D))
    return layers


def picture(mask):
    return ["".join(" 1"[int(value)] for value in row) for row in to_numpy(mask)]


@pytest.mark.any_backend
def test_the_mask_is_that_of_the_drawing():
    assert picture(window_mask(5, 5, 1)) == ["11   ", "111  ", " 111 ", "  111", "   11"]
    assert picture(window_mask(5, 5, 1, dilation=2)) == [
        "1 1  ",
        " 1 1 ",
        "1 1 1",
        " 1 1 ",
        "  1 1",
    ]
    assert picture(window_mask(5, 5, 1, global_tokens=1)) == [
        "11111",
        "111  ",
        "1111 ",
        "1 111",
        "1  11",
    ]
    assert picture(window_mask(3, 5, 1, is_causal=True, offset=2)) == [" 11  ", "  11 ", "   11"]
    assert picture(window_mask(4, 4, 1, global_tokens=2, is_causal=True)) == [
        "1   ",
        "11  ",
        "111 ",
        "1111",
    ]


@pytest.mark.parametrize("is_causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize(
    "dilation, global_tokens", [(1, 0), (3, 0), (1, 2), (2, 3)] if not IS_JAX else [(2, 3)]
)
def test_local_attention_is_full_attention_under_the_mask(dilation, global_tokens, is_causal):
    options = {"dilation": dilation, "global_tokens": global_tokens}
    for length, window in ((13, 2), (2, 5)) if not IS_JAX else ((13, 2),):
        local, full = pair_of_layers(
            kind="local", window=window, **options, rotary={}, num_key_value_heads=1
        )
        x, padding = draw(length), padding_of(length)
        seen = window_mask(length, length, window, **options, is_causal=is_causal)
        extra = RANDOM.random((2, 1, length, length)) < 0.7
        for masks, more in (
            ({"padding_mask": padding}, {}),
            ({"padding_mask": padding}, {"attention_mask": extra}),
            ({"padding_mask": padding}, {"attention_mask": extra[..., :1]}),
        ):
            allowed = to_numpy(seen)[None, None] & more.get("attention_mask", True)
            expected = to_numpy(full(x, attention_mask=allowed, **masks))
            found = to_numpy(local(x, use_causal_mask=is_causal, **masks, **more))
            np.testing.assert_allclose(found, expected, atol=2e-6)
        with_scores, scores = local(
            x, use_causal_mask=is_causal, padding_mask=padding, return_attention_scores=True
        )
        np.testing.assert_allclose(
            to_numpy(with_scores),
            to_numpy(local(x, use_causal_mask=is_causal, padding_mask=padding)),
            atol=2e-6,
        )
        assert scores.shape == (2, N, length, length)


@pytest.mark.parametrize("is_causal", [False, True], ids=["both", "causal"])
def test_a_bias_of_the_band_is_that_of_the_square(is_causal):
    local, full = pair_of_layers(kind="local", window=3, dilation=2)
    x = draw(17)
    band = alibi_bias(N, band_distances(3, 2, is_causal=is_causal))
    square = alibi_bias(N, distances(17, 17))
    expected = full(
        x,
        attention_mask=window_mask(17, 17, 3, dilation=2, is_causal=is_causal),
        attention_bias=square,
    )
    np.testing.assert_allclose(
        to_numpy(local(x, attention_bias=band, use_causal_mask=is_causal)),
        to_numpy(expected),
        atol=2e-6,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "local", "window": 3},
        {"kind": "local", "window": 2, "dilation": 2, "global_tokens": 2},
        {"kind": "linear"},
    ],
    ids=["local", "global", "linear"],
)
@pytest.mark.parametrize("rotary", [None, {}] if not IS_JAX else [{}])
def test_cached_equals_uncached_and_the_cache_does_not_grow(options, rotary):
    layer = MultiHeadAttention(N, **options, rotary=rotary, seed=2)
    x = draw(9, rows=3)
    expected = to_numpy(layer(x, use_causal_mask=True))
    for widths in ((1,) * 9, (4, 1, 4)):
        cache, outputs, start = layer.init_cache(3), [], 0
        sizes = [tuple(leaf.shape) for leaf in keras.tree.flatten(cache)]
        for width in widths:
            found, cache = layer(x[:, start : start + width], cache=cache)
            outputs.append(to_numpy(found))
            start += width
            assert [tuple(leaf.shape) for leaf in keras.tree.flatten(cache)] == sizes
        np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=3e-6)
    order = np.array([2, 0, 0], "int32")
    again, _ = layer(
        x[order][:, :1], cache=layer(x[:, :4], cache=layer.init_cache(3))[1].reorder(order)
    )
    alone, _ = layer(x[order][:, :1], cache=layer(x[order][:, :4], cache=layer.init_cache(3))[1])
    np.testing.assert_allclose(to_numpy(again), to_numpy(alone), atol=1e-6)


@pytest.mark.parametrize("rotary", [None, {"base": 50.0}], ids=["", "rotary"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["both", "causal"])
def test_linear_attention_is_its_formula(is_causal, rotary):
    layer = MultiHeadAttention(N, kind="linear", rotary=rotary, use_bias=False, seed=3)
    for length in (5, 150):
        x, padding = draw(length), padding_of(length)
        found = to_numpy(layer(x, use_causal_mask=is_causal, padding_mask=padding))
        kernel = to_numpy(layer.query_key_value_kernel).astype("float64")
        query, key, value = (
            part.reshape(2, length, N, D // N).swapaxes(1, 2)
            for part in np.split(x @ kernel, 3, axis=-1)
        )
        query, key = (
            np.where(part > 0, part + 1, np.exp(np.minimum(part, 0))) for part in (query, key)
        )
        weights = query @ key.swapaxes(2, 3)
        total = weights
        if rotary:
            turned = (
                rotate_positions(ops.cast(part, "float32"), np.arange(length), **rotary)
                for part in (query, key)
            )
            query, key = map(to_numpy, turned)
            weights = query @ key.swapaxes(2, 3)
        seen = padding[:, None, None] & (np.tri(length, dtype=bool) if is_causal else True)
        context = (weights * seen) @ value / (total * seen).sum(-1, keepdims=True)
        expected = context.swapaxes(1, 2).reshape(2, length, D) @ to_numpy(layer.output_kernel)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    if not rotary:
        output, scores = layer(
            x, use_causal_mask=is_causal, padding_mask=padding, return_attention_scores=True
        )
        np.testing.assert_allclose(to_numpy(scores).sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(to_numpy(scores)[1, :, :, 100:], 0)


def test_linear_attention_with_very_small_features():
    numbers = ops.full((1, 1, 2, 4), -13.0)
    value = ops.reshape(ops.convert_to_tensor([1.0, 3.0]), (1, 1, 2, 1))
    np.testing.assert_allclose(to_numpy(linear_attention(numbers, numbers, value)), 2, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"kind": "local", "window": 2, "global_tokens": 1}, {"kind": "linear"}],
    ids=["local", "linear"],
)
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_a_row_of_padding_alone_gives_zeros_and_nothing_is_nan(options, dtype):
    layer = MultiHeadAttention(N, **options, use_bias=False, dtype=dtype, seed=4)
    x = 30 * draw(6)
    padding = np.stack([np.zeros(6, bool), np.arange(6) < 3])
    for is_causal in (False, True):
        found = to_numpy(layer(x, padding_mask=padding, use_causal_mask=is_causal))
        assert np.isfinite(found).all() and (found[0] == 0).all() and np.abs(found[1]).max() > 0


@pytest.mark.parametrize("global_tokens", [0, 1])
def test_a_padding_mask_of_whole_numbers_is_that_of_booleans(global_tokens):
    layer = MultiHeadAttention(N, kind="local", window=2, global_tokens=global_tokens, seed=4)
    x, padding = draw(6), padding_of(6)
    expected = to_numpy(layer(x, padding_mask=padding))
    found = to_numpy(layer(x, padding_mask=padding.astype("int32")))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(0, 5, D), (2, 0, D)])
def test_no_rows_and_no_tokens(shape):
    x, mask = np.zeros(shape, "float32"), np.ones((shape[0], shape[1], shape[1]), bool)
    for options in ({}, {"dilation": 2}, {"global_tokens": 1}):
        layer = MultiHeadAttention(N, kind="local", window=2, **options)
        assert layer(x).shape == layer(x, attention_mask=mask).shape == shape


@pytest.mark.parametrize(
    "options", [{"kind": "local", "window": 64}, {"kind": "linear"}], ids=["local", "linear"]
)
def test_long_sequences_need_no_square(options):
    """65,536 tokens: the square of their scores would be 17 GB."""
    layer = MultiHeadAttention(1, **options, seed=5)
    x = np.zeros((1, 65_536, 4), "float32")
    x[0, -1] = 1
    found = to_numpy(layer(x, use_causal_mask=True))
    np.testing.assert_allclose(found[0, -2], 0, atol=1e-6)
    assert np.abs(found[0, -1]).max() > 0 and np.isfinite(found).all()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "options, words",
    [
        ({"kind": "sparse"}, "full, local, linear, but 'sparse'"),
        ({"kind": "local"}, "window of local attention must be .* at least 1, but None"),
        ({"kind": "local", "window": 4, "dilation": 0}, "dilation of local attention .*, but 0"),
        ({"window": 4}, "belong to kind='local'"),
    ],
)
def test_options_that_do_not_go_together(options, words):
    with pytest.raises(ValueError, match=words):
        MultiHeadAttention(N, **options)


@pytest.mark.any_backend
def test_inputs_that_a_kind_cannot_have():
    linear = MultiHeadAttention(N, kind="linear")
    with pytest.raises(ValueError, match="takes no attention_mask"):
        linear(draw(4), attention_mask=np.ones((4, 4), bool))
    with pytest.raises(ValueError, match="is self-attention"):
        MultiHeadAttention(N, kind="linear")(draw(4), draw(3))
    local = MultiHeadAttention(N, kind="local", window=2, global_tokens=1)
    with pytest.raises(ValueError, match="global_tokens=1 has no attention_bias"):
        local(draw(4), attention_bias=np.zeros((N, 2, 6), "float32"))
    assert [
        local.get_config()[name] for name in ("kind", "window", "dilation", "global_tokens")
    ] == ["local", 2, 1, 1]
