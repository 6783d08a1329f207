"""The SSRU against a loop in NumPy, token by token."""

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import SSRU, DecoderLayer, linear_recurrence
from tests.gradients import value_and_gradients
from tests.peers import to_numpy

B, D = 2, 8


def looped(decay, update):
    """The recurrence in float64."""
    state, states = np.zeros((len(update), update.shape[2])), []
    for t in range(update.shape[1]):
        state = decay[:, t].astype("float64") * state + update[:, t]
        states.append(state)
    return np.stack(states, axis=1)


def decays(rng, length):
    """Gates of all sizes, 0 and 1 among them."""
    decay = 1 / (1 + np.exp(-8 * rng.normal(size=(B, length, D))))
    decay[0, ::3, 0], decay[1, ::4, 1] = 0, 1
    return decay.astype("float32")


# Shorter than a chunk, a chunk, one more, chunks in full, several doublings.
@pytest.mark.parametrize("length", [1, 8, 9, 70])
def test_values_and_gradients_of_the_recurrence(rng, length):
    decay, update, slope = decays(rng, length), *rng.normal(size=(2, B, length, D))
    variables = [keras.Variable(array.astype("float32")) for array in (decay, update)]

    def loss():
        states = linear_recurrence(*(variable * 1.0 for variable in variables))
        return ops.sum(states * ops.convert_to_tensor(slope, "float32"))

    states = looped(decay, update)
    value, found = value_and_gradients(loss, variables)
    assert value == pytest.approx((states * slope).sum(), rel=1e-4, abs=1e-4)
    later = np.concatenate([decay[:, 1:], np.zeros_like(decay[:, :1])], axis=1)
    of_update = looped(later[:, ::-1], slope[:, ::-1])[:, ::-1]
    before = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
    for ours, expected in zip(found, (of_update * before, of_update), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only its shapes are unknown")
def test_an_unknown_length(rng):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, None, D])] * 2)
    def run(decay, update):
        with tf.GradientTape() as tape:
            tape.watch([decay, update])
            states = linear_recurrence(decay, update)
            total = tf.reduce_sum(tf.square(states))
        return states, tape.gradient(total, update)

    for length in (1, 8, 35):
        decay, update = decays(rng, length), rng.normal(size=(B, length, D)).astype("float32")
        states, slope = run(decay, update)
        expected = looped(decay, update)
        np.testing.assert_allclose(states, expected, atol=1e-5)
        later = np.concatenate([decay[:, 1:], np.zeros_like(decay[:, :1])], axis=1)
        expected = looped(later[:, ::-1], 2 * expected[:, ::-1])[:, ::-1]
        np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def layer(randomize):
    layer = SSRU(seed=1)
    layer.build((None, None, D))
    return randomize(layer)


def expected_of(layer, x):
    kernel, bias = to_numpy(layer.cell_forget_kernel), to_numpy(layer.forget_bias)
    forget = 1 / (1 + np.exp(-(x @ kernel[:, D:] + bias)))
    return np.maximum(looped(forget, (1 - forget) * (x @ kernel[:, :D])), 0)


def test_the_layer_is_the_formula_and_a_step_continues_it(layer, rng):
    x = rng.normal(size=(B, 11, D)).astype("float32")
    expected = expected_of(layer, x)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)
    cache, outputs, start = layer.init_cache(B), [], 0
    for width in (1, 1, 3, 6):
        output, cache = layer(x[:, start : start + width], cache=cache)
        outputs.append(to_numpy(output))
        start += width
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-6)
    assert cache.state.shape == (B, D)
    rows = np.array([1, 1], "int32")
    np.testing.assert_array_equal(
        to_numpy(cache.reorder(rows).state), to_numpy(cache.state)[[1, 1]]
    )


def test_a_start_forgets_and_padding_keeps_the_state(layer, rng):
    x = rng.normal(size=(B, 11, D)).astype("float32")
    starts = np.zeros((B, 11), bool)
    starts[:, [0, 4]] = True
    packed = to_numpy(layer(x, sequence_starts=starts))
    for part in (x[:, :4], x[:, 4:]):
        begin = 0 if part.shape[1] == 4 else 4
        alone = expected_of(layer, part)
        np.testing.assert_allclose(packed[:, begin : begin + part.shape[1]], alone, atol=1e-6)
    real = np.ones((B, 11), bool)
    real[:, [0, 1, 5]] = False
    kept = to_numpy(layer(x, padding_mask=real))[:, real[0]]
    np.testing.assert_allclose(kept, expected_of(layer, x[:, real[0]]), atol=1e-6)


def test_dtypes_and_configuration(layer, rng):
    x = rng.normal(size=(B, 11, D)).astype("float32")
    again = SSRU.from_config({**layer.get_config(), "dtype": "mixed_bfloat16"})
    again.build((None, None, D))
    again.set_weights(layer.get_weights())
    output = again(x)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    np.testing.assert_allclose(to_numpy(output), expected_of(layer, x), atol=0.05)
    assert again.get_config() == {**layer.get_config(), "dtype": again.get_config()["dtype"]}
    assert len(SSRU(use_bias=False)(x).shape) == 3


@pytest.mark.any_backend
def test_a_decoder_layer_refuses_masks_of_pairs():
    layer = DecoderLayer(16, 2, autoregression="ssru")
    x = ops.ones((B, 4, D))
    assert layer(x, x).shape == (B, 4, D)
    scores = layer(x, x, return_attention_scores=True)[1]
    assert scores[0] is None and scores[1].shape == (B, 2, 4, 4)
    for options in (
        {"attention_mask": ops.ones((4, 4), "bool")},
        {"use_causal_mask": False},
        {"left_padding": ops.zeros((B,), "int32")},
    ):
        with pytest.raises(ValueError, match="An SSRU reads one token after the other"):
            layer(x, x, **options)
    with pytest.raises(ValueError, match="sequence_starts is for an SSRU"):
        DecoderLayer(16, 2)(x, x, sequence_starts=ops.ones((B, 4), "bool"))
    with pytest.raises(ValueError, match="padding_mask must have the shape"):
        layer(x, x, padding_mask=ops.ones((B, 3), "bool"))
    with pytest.raises(ValueError, match="autoregression must be"):
        DecoderLayer(16, 2, autoregression="gru")
