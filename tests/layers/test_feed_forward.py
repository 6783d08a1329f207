import keras
import numpy as np
import pytest
import torch

from kformer.layers import FeedForward
from tests.peers import to_numpy

B, T, D, F = 2, 4, 8, 16


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_agrees_with_pytorch(randomize, x, activation):
    layer = FeedForward(F, activation=activation)
    layer.build((B, T, D))
    randomize(layer)
    linear = torch.nn.functional.linear
    first, second = (
        [torch.tensor(to_numpy(dense.kernel).T), torch.tensor(to_numpy(dense.bias))]
        for dense in (layer.intermediate, layer.output_projection)
    )
    expected = linear(
        getattr(torch.nn.functional, activation)(linear(torch.tensor(x), *first)), *second
    )
    np.testing.assert_allclose(to_numpy(layer(x)), expected.numpy(), atol=2e-6)


def test_the_sigmoid_form_of_gelu(x):
    layer = FeedForward(F, activation="gelu_sigmoid", seed=0)
    layer(x)
    hidden = x @ to_numpy(layer.intermediate.kernel)
    expected = hidden / (1 + np.exp(-1.702 * hidden)) @ to_numpy(layer.output_projection.kernel)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)


def test_each_position_alone(x):
    layer = FeedForward(F, seed=0)
    whole = to_numpy(layer(x))
    np.testing.assert_allclose(to_numpy(layer(x[:, 2:3])), whole[:, 2:3], atol=1e-6)


def test_without_bias(x):
    layer = FeedForward(F, use_bias=False, seed=0)
    layer(x)
    assert [tuple(weight.shape) for weight in layer.weights] == [(D, F), (F, D)]
    expected = np.maximum(x @ to_numpy(layer.intermediate.kernel), 0) @ to_numpy(
        layer.output_projection.kernel
    )
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-6)


def test_dropout_in_training_alone(x):
    layer = FeedForward(F, dropout=0.5, seed=0)
    plain = to_numpy(layer(x))
    np.testing.assert_array_equal(to_numpy(layer(x)), plain)
    assert np.abs(to_numpy(layer(x, training=True)) - plain).max() > 1e-2


def test_compute_dtype(x, policy):
    layer = FeedForward(F, activation="gelu", seed=0)
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    expected = to_numpy(FeedForward(F, activation="gelu", seed=0, dtype="float32")(x))
    np.testing.assert_allclose(to_numpy(output), expected, atol=3e-2)


def test_two_kernels_from_one_seed_differ():
    layer = FeedForward(D, seed=0)
    layer.build((B, T, D))
    assert (
        np.abs(to_numpy(layer.intermediate.kernel) - to_numpy(layer.output_projection.kernel)).max()
        > 1e-2
    )


def test_config_round_trip(x):
    layer = FeedForward(
        F,
        activation="silu",
        dropout=0.1,
        use_bias=False,
        kernel_initializer="he_normal",
        seed=2,
        name="f",
    )
    again = FeedForward.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    np.testing.assert_allclose(to_numpy(again(x)), to_numpy(layer(x)))


def test_initializers_of_the_user(x):
    """A function is called as it is. An initializer's own seed decides; no two parts are equal."""
    layer = FeedForward(D, kernel_initializer=lambda shape, dtype=None: np.ones(shape, "float32"))
    layer(x)
    assert (to_numpy(layer.intermediate.kernel) == 1).all()
    kernels = []
    for seed in (42, 42, 43):
        layer = FeedForward(D, kernel_initializer=keras.initializers.GlorotUniform(seed=seed))
        layer(x)
        kernels.append([to_numpy(part.kernel) for part in layer._layers[1:]])
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0][0] != kernels[2][0]).all() and (kernels[0][0] != kernels[0][1]).all()


def test_unknown_activation():
    with pytest.raises(
        ValueError, match="one of relu, gelu, gelu_tanh, gelu_sigmoid, silu, but 'swiglu'"
    ):
        FeedForward(F, activation="swiglu")
