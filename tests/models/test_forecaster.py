"""Forecasting: free-running equals feeding back by hand, and a sine is learnt."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from kformer.models import Forecaster
from tests.peers import to_numpy, torch_decoder, torch_encoder

SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.0,
}
OPTIONS = {
    "sinusoidal": {},
    "learned": {"position_encoding": "learned", "max_length": 12},
    "rope": {"position_encoding": "rope"},
    "alibi": {"position_encoding": "alibi", "normalize_first": False},
    "local": {"attention_kind": "local", "attention_window": 2, "position_encoding": "t5"},
    "linear": {"attention_kind": "linear"},
}
if (
    keras.backend.backend() == "jax"
):  # It compiles each operation for each shape; these have all operations that there are.
    OPTIONS = {kind: OPTIONS[kind] for kind in ("learned", "local")}


@pytest.fixture
def forecaster(randomize):
    return lambda *sizes, **options: randomize(
        Forecaster(*(sizes or (3, 2)), **{**SIZES, **options})
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_forecast_feeds_on_itself(forecaster, rng, kind):
    model = forecaster(**OPTIONS[kind])
    past = rng.normal(size=(2, 6, 3)).astype("float32")
    values = past[:, -1:, :2]
    for _ in range(5):
        found = to_numpy(
            model({"past": ops.convert_to_tensor(past), "previous": ops.convert_to_tensor(values)})
        )
        values = np.concatenate([values, found[:, -1:]], axis=1)
    found = model.forecast(past, 5)
    assert found.shape == (2, 5, 2) and found.dtype == "float32"
    np.testing.assert_allclose(found, values[:, 1:], atol=1e-4)


def test_it_is_pytorchs(forecaster, rng):
    model = forecaster(normalize_first=False)
    past, previous = (
        rng.normal(size=(2, length, features)).astype("float32")
        for length, features in ((6, 3), (4, 2))
    )
    network = model.network
    memory, x = (
        to_numpy(part)
        for part in (network.past_embedding(past), network.future_embedding(previous))
    )
    encoder, decoder = (
        torch_encoder(network.encoder.layers, None, 8).eval(),
        torch_decoder(network.decoder.layers, None, 8).eval(),
    )
    with torch.no_grad():
        hidden = decoder(
            torch.tensor(x),
            encoder(torch.tensor(memory)),
            tgt_mask=torch.tensor(np.triu(np.ones((4, 4), bool), 1)),
        ).numpy()
    expected = hidden @ to_numpy(network.output.kernel) + to_numpy(network.output.bias)
    np.testing.assert_allclose(
        to_numpy(model({"past": past, "previous": previous})), expected, atol=2e-5
    )


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_sine_is_learnt_and_saved(tmp_path):
    rng = np.random.default_rng(0)
    phases = rng.uniform(0, 2 * np.pi, (64, 1))
    series = np.sin(phases + 0.5 * np.arange(24))[..., None].astype("float32")
    past, future = series[:, :16], series[:, 16:]
    model = Forecaster(1, **{**SIZES, "num_decoder_layers": 1, "hidden_dim": 16}, seed=1)
    model.compile(keras.optimizers.Adam(0.01), "mean_squared_error")
    inputs = model.teacher_forcing(past, future)
    np.testing.assert_array_equal(inputs["previous"], series[:, 15:23])
    model.fit(inputs, future, epochs=50, batch_size=64, verbose=0)
    error = np.mean((model.forecast(past, 8) - future) ** 2)
    persistence = np.mean((past[:, -1:] - future) ** 2)
    assert error < 0.6 * persistence
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    again.get_layer("past_embedding").trainable = False
    copy = Forecaster.from_config(again.get_config())
    assert not copy.get_layer("past_embedding").trainable
    np.testing.assert_allclose(again.forecast(past, 8), model.forecast(past, 8), atol=1e-6)
    # What was compiled reads the weights of the moment.
    again.network.output.bias.assign([1.0])
    assert np.abs(again.forecast(past, 8) - model.forecast(past, 8)).max() > 0.1


@pytest.mark.any_backend
def test_errors(forecaster):
    model = forecaster(**OPTIONS["learned"])
    with pytest.raises(ValueError, match=r"\[B, S, 3\], but \[1, 4, 2\] was given"):
        model.forecast(np.zeros((1, 4, 2)), 3)
    with pytest.raises(ValueError, match="13 steps is longer than the 12 learned positions"):
        model.forecast(np.zeros((1, 4, 3)), 13)
    with pytest.raises(ValueError, match="past of 13 steps is longer than the 12"):
        model.forecast(np.zeros((1, 13, 3)), 2)
    with pytest.raises(ValueError, match="past of no steps"):
        model.forecast(np.zeros((1, 0, 3)), 2)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, but 0"):
        model.forecast(np.zeros((1, 4, 3)), 0)
    with pytest.raises(ValueError, match="3 features, of which no 4"):
        Forecaster(3, 4)
