import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import Dropout, FeedForward
from tests.gradients import gradients
from tests.peers import to_numpy

UINT32 = np.uint32


def mix(x):
    """MurmurHash3's finaliser, on unsigned numbers."""
    x = np.asarray(x, UINT32)
    x = (x ^ (x >> UINT32(16))) * UINT32(0x85EBCA6B)
    x = (x ^ (x >> UINT32(13))) * UINT32(0xC2B2AE35)
    return x ^ (x >> UINT32(16))


def reference_mask(rows, columns, rate, seed, step):
    """Which elements are kept, written anew in NumPy's unsigned arithmetic."""
    with np.errstate(over="ignore"):
        golden = UINT32(0x9E3779B9)
        key = UINT32((seed * 0x9E3779B9 + 1) % 2**32)
        key = mix([key ^ mix([UINT32(step) + golden])[0]])[0]
        row_hash = mix(mix(np.arange(rows)) ^ key)
        column_hash = mix(np.arange((columns + 1) // 2, dtype=UINT32) + golden)
        words = (row_hash[:, None] + column_hash[None]) * UINT32(0x85EBCA6B)
        words = (words ^ (words >> UINT32(15))) * UINT32(0xC2B2AE35)
    numbers = np.concatenate([words & UINT32(0xFFFF), words >> UINT32(16)], axis=1)[:, :columns]
    return numbers >= round(rate * 65536)


def draw(layer, *shape):
    """The layer's next mask: which of the elements of a tensor of ones it keeps."""
    return to_numpy(layer(np.ones(shape, "float32"), training=True)) != 0


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_masks_are_the_same_on_every_backend(seed):
    """They equal an independent computation, bit for bit, so the backends equal each other."""
    layer = Dropout(0.3, seed=seed)
    for step in range(3):
        np.testing.assert_array_equal(draw(layer, 6, 17), reference_mask(6, 17, 0.3, seed, step))
    np.testing.assert_array_equal(
        draw(layer, 2, 3, 17), reference_mask(6, 17, 0.3, seed, 3).reshape(2, 3, 17)
    )


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_rate_and_mean(rate):
    layer = Dropout(rate, seed=1)
    x = np.full((512, 256), 3.0, "float32")
    dropped = to_numpy(layer(x, training=True))
    share = (dropped == 0).mean()
    sigma = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(share - rate) < 4 * sigma
    np.testing.assert_allclose(dropped[dropped != 0], 3 / (1 - rate), rtol=1e-4)
    assert abs(dropped.mean() - 3) < 4 * 3 * sigma / (1 - rate)


@pytest.mark.parametrize("shape", [(5,), (6, 17), (2, 3, 4, 5)])
def test_any_shape(shape):
    layer = Dropout(0.5, seed=2)
    masks = np.array([draw(layer, *shape) for _ in range(8)])
    assert masks.shape == (8, *shape)
    assert abs(masks.mean() - 0.5) < 4 * 0.5 / np.sqrt(masks.size)


def correlations(samples, rate):
    """The correlation of each pair of rows in units of its standard deviation: about standard
    normal if independent.
    """
    standard = (samples - (1 - rate)) / np.sqrt(rate * (1 - rate))
    products = standard @ standard.T / np.sqrt(samples.shape[1])
    return products[np.triu_indices(len(samples), 1)]


def assert_independent(samples, rate):
    """Pairs of rows: the squares of their correlations add up to chi-square's expectation, and no
    pair stands out.
    """
    scores = correlations(samples.astype("float64"), rate)
    assert abs((scores**2).mean() - 1) < 0.05
    assert abs(scores.mean()) < 0.05
    # The largest of about 10^5 standard normal numbers lies near 4.4; skewed masks have somewhat
    # longer tails.
    assert np.abs(scores).max() < 6.5


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rows_columns_steps_and_seeds_are_independent(rate):
    layer = Dropout(rate, seed=3)
    mask = draw(layer, 512, 500)
    assert_independent(mask, rate)
    assert_independent(mask.T, rate)
    assert (
        len({row.tobytes() for row in mask}) == 512
        and len({column.tobytes() for column in mask.T}) == 500
    )
    # The reference has been shown to draw the same masks; drawing hundreds of steps from it is
    # quicker.
    assert_independent(
        np.array([reference_mask(40, 50, rate, 3, step).ravel() for step in range(400)]), rate
    )
    assert_independent(
        np.array([reference_mask(40, 50, rate, seed, 3).ravel() for seed in range(400)]), rate
    )


def test_halves_of_a_word_and_neighbours_are_independent():
    """A 32-bit word decides columns c and c + C / 2; the four outcomes of such pairs are as
    frequent as they must be.
    """
    rate = 0.3
    mask = reference_mask(2000, 200, rate, 5, 1)
    for first, second in (
        (mask[:, :100], mask[:, 100:]),
        (mask[:, :-1], mask[:, 1:]),
        (mask[:-1], mask[1:]),
    ):
        counts = np.array([[(a & b).sum() for b in (second, ~second)] for a in (first, ~first)])
        expected = first.size * np.outer([1 - rate, rate], [1 - rate, rate])
        # Three degrees of freedom: beyond 22 once in 15,000 times.
        assert ((counts - expected) ** 2 / expected).sum() < 22


def test_layers_of_one_seeded_block_differ():
    first, second = (FeedForward(64, dropout=0.5, seed=seed).activation_dropout for seed in (0, 1))
    first.build(), second.build()
    share = (draw(first, 40, 50) == draw(second, 40, 50)).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(2000)


def test_a_saved_model_goes_on_with_the_sequence(tmp_path):
    x = keras.Input((16,))
    model = keras.Model(
        x, Dropout(0.5)(x)
    )  # no seed given: the one drawn is part of the configuration
    ones = np.ones((4, 16), "float32")
    for _ in range(3):
        model(ones, training=True)
    model.save(tmp_path / "model.keras")
    expected = [to_numpy(model(ones, training=True)) for _ in range(2)]
    keras.utils.set_random_seed(99)
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.layers[-1].step) == 3
    for numbers in expected:
        np.testing.assert_array_equal(to_numpy(again(ones, training=True)), numbers)
    assert (expected[0] != expected[1]).any()


@pytest.mark.parametrize("rates", [(0.0, 0.5), (0.5, 0.0)])
def test_weights_are_those_of_a_model_with_another_rate(tmp_path, rates):
    x = keras.Input((6,))
    saved, other = (keras.Model(x, keras.layers.Dense(2)(Dropout(rate)(x))) for rate in rates)
    saved(np.ones((1, 6), "float32"), training=True)
    saved.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    kernels = [to_numpy(model.layers[-1].kernel) for model in (saved, other)]
    np.testing.assert_array_equal(*kernels)


def test_fit_counts_steps(backend):
    """The counter moves inside a compiled training step, and not in evaluation."""
    x = keras.Input((None, 6))
    layer = Dropout(0.5, seed=0)
    model = keras.Model(x, keras.layers.Dense(1)(layer(x)))
    model.compile("sgd", "mse", jit_compile=backend == "jax")
    inputs, labels = np.ones((6, 3, 6)), np.ones((6, 3, 1))
    model.fit(inputs, labels, batch_size=2, epochs=2, verbose=0)
    assert int(layer.step) == 6
    model.evaluate(inputs, labels, batch_size=2, verbose=0)
    model.predict(inputs, verbose=0)
    assert int(layer.step) == 6


def test_without_training_nothing_happens(rng):
    layer = Dropout(0.9, seed=0)
    x = rng.normal(size=(3, 4)).astype("float32")
    np.testing.assert_array_equal(to_numpy(layer(x)), x)
    np.testing.assert_array_equal(to_numpy(layer(x, training=False)), x)
    assert int(layer.step) == 0


def test_rate_0_has_no_weights(rng):
    layer = Dropout(0.0)
    x = rng.normal(size=(3, 4)).astype("float32")
    np.testing.assert_array_equal(to_numpy(layer(x, training=True)), x)
    assert layer.weights == []


def test_the_counter_is_not_trained():
    layer = Dropout(0.1)
    layer.build()
    assert layer.trainable_weights == [] and [weight.name for weight in layer.weights] == ["step"]


def test_dtype(policy):
    layer = Dropout(0.1, seed=4)
    dropped = layer(np.ones((64, 64), "float32"), training=True)
    assert keras.backend.standardize_dtype(dropped.dtype) == layer.compute_dtype
    kept = to_numpy(dropped)[to_numpy(dropped) != 0]
    np.testing.assert_allclose(kept, 1 / 0.9, rtol=5e-3)
    np.testing.assert_array_equal(to_numpy(dropped) != 0, reference_mask(64, 64, 0.1, 4, 0))


def test_the_scale_is_not_rounded_to_16_bits(policy):
    layer = Dropout(0.1, seed=4)
    x = ops.cast(np.linspace(1, 2, 64 * 64, dtype="float32").reshape(64, 64), layer.compute_dtype)
    dropped = to_numpy(layer(x, training=True))
    expected = ops.cast(to_numpy(x) * np.float32(65536 / (65536 - 6554)), layer.compute_dtype)
    expected = to_numpy(expected) * reference_mask(64, 64, 0.1, 4, 0)
    np.testing.assert_array_equal(dropped, expected)


@pytest.mark.parametrize("rate", [1e-7, 1 - 1e-7])
def test_rates_near_the_limits_stay_finite(rate):
    dropped = to_numpy(Dropout(rate, seed=0)(np.ones((8, 8), "float32"), training=True))
    assert np.isfinite(dropped).all()


def test_unknown_sizes_in_a_graph(backend):
    layer = Dropout(0.5, seed=0)
    layer.build()

    def run(x):
        return layer(x, training=True)

    if backend == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, input_signature=[tf.TensorSpec((None, None, None))])
    for step, shape in enumerate([(2, 3, 17), (1, 5, 6)]):
        expected = reference_mask(shape[0] * shape[1], shape[2], 0.5, 0, step).reshape(shape)
        np.testing.assert_array_equal(to_numpy(run(np.ones(shape, "float32"))) != 0, expected)


def test_gradient_passes_the_kept_elements():
    layer = Dropout(0.5, seed=0)
    layer.build()
    x = keras.Variable(np.ones((6, 17), "float32"))
    (gradient,) = gradients(lambda: ops.sum(layer(x.value, training=True)), [x])
    np.testing.assert_allclose(gradient, 2.0 * reference_mask(6, 17, 0.5, 0, 0))


def test_config_round_trip():
    layer = Dropout(0.25, name="d")
    assert Dropout.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match=f"must be in .0, 1., but {rate}"):
        Dropout(rate)
