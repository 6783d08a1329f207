"""`MaskedCrossentropy` against PyTorch's cross-entropy and against its definition in NumPy."""

import keras
import numpy as np
import pytest

from kformer.training import MaskedCrossentropy
from tests.training.gradients import value_and_gradient

VOCABULARY = 11


@pytest.fixture
def batch(rng):
    """Labels of which some are padding (0), and logits."""
    labels = rng.integers(1, VOCABULARY, (4, 6)).astype("int32")
    labels[1, 3:] = labels[3, 1:] = 0
    return labels, rng.normal(0, 3, (4, 6, VOCABULARY)).astype("float32")


def smoothed_losses(labels, logits, smoothing):
    """The definition, in float64: -sum(q log p), q built as a one-hot mixture."""
    logits = logits.astype("float64")
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    q = (1 - smoothing) * np.eye(VOCABULARY)[labels] + smoothing / VOCABULARY
    return -(q * log_p).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("pad_id", [0, 7, -100])
def test_values_and_gradients_are_those_of_torch(batch, smoothing, pad_id):
    torch = pytest.importorskip("torch")
    labels, logits = batch
    labels = np.where(labels == 0, pad_id, labels)
    peer_logits = torch.tensor(logits, requires_grad=True)
    peer = torch.nn.functional.cross_entropy(
        peer_logits.reshape(-1, VOCABULARY),
        torch.tensor(labels).reshape(-1).long(),
        ignore_index=pad_id,
        label_smoothing=smoothing,
    )
    peer.backward()
    loss = MaskedCrossentropy(label_smoothing=smoothing, pad_id=pad_id)
    value, gradient = value_and_gradient(lambda tensor: loss(labels, tensor), logits)
    np.testing.assert_allclose(value, peer.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, peer_logits.grad.numpy(), atol=1e-7)
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(batch, dtype):
    labels, logits = batch
    logits *= 10
    rounded = keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(logits, dtype), "float32"))
    loss = MaskedCrossentropy(label_smoothing=0.1)
    value, gradient = value_and_gradient(lambda tensor: loss(labels, tensor), rounded, dtype)
    expected, expected_gradient = value_and_gradient(lambda tensor: loss(labels, tensor), rounded)
    assert (
        keras.backend.standardize_dtype(loss(labels, keras.ops.cast(logits, dtype)).dtype)
        == "float32"
    )
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    # The gradient itself is handed back in the logits' dtype: 8 bits of a bfloat16.
    np.testing.assert_allclose(gradient, expected_gradient, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 1)])
def test_sample_weights_are_token_weights(batch, rng, shape):
    labels, logits = batch
    weights = rng.uniform(0.1, 2, shape).astype("float32")
    per_token = np.broadcast_to(weights.reshape(4, -1), (4, 6)) * (labels != 0)
    expected = (smoothed_losses(labels, logits, 0.1) * per_token).sum() / per_token.sum()
    value = MaskedCrossentropy(label_smoothing=0.1)(labels, logits, sample_weight=weights)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(value), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(8,), (8, 6)])
def test_the_divergences_of_two_passes_are_weighted_as_their_tokens(batch, rng, shape):
    labels = np.concatenate([batch[0]] * 2)
    logits = np.concatenate([batch[1], batch[1] + rng.normal(0, 1, batch[1].shape)])
    weights = np.concatenate([rng.uniform(0.1, 2, (4, *shape[1:]))] * 2).astype("float32")
    per_token = np.broadcast_to(weights.reshape(8, -1), (8, 6)) * (labels != 0)
    first, second = np.split(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), 2)
    divergences = 0.5 * ((first - second) * np.log(first / second)).sum(-1)
    expected = (smoothed_losses(labels, logits, 0.1) * per_token).sum() / per_token.sum()
    expected += 5 / 2 * (divergences * per_token[:4]).sum() / per_token[:4].sum()
    loss = MaskedCrossentropy(label_smoothing=0.1, consistency=5)
    value = loss.in_training(labels, logits.astype("float32"), sample_weight=weights)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(value), expected, rtol=1e-5)


def test_every_token_counts_the_same_whatever_its_row(batch):
    labels, logits = batch
    losses = smoothed_losses(labels, logits, 0.0)
    row_means = [losses[i][labels[i] != 0].mean() for i in range(4)]
    value = float(MaskedCrossentropy()(labels, logits))
    np.testing.assert_allclose(value, losses[labels != 0].mean(), rtol=1e-6)
    assert abs(value - np.mean(row_means)) > 1e-3


def test_a_batch_without_real_tokens_has_loss_and_gradient_zero(batch):
    labels, logits = np.full((4, 6), 0), batch[1]
    value, gradient = value_and_gradient(
        lambda tensor: MaskedCrossentropy(0.1)(labels, tensor), logits
    )
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_padding_has_no_gradient_and_no_influence(batch):
    labels, logits = batch
    value, gradient = value_and_gradient(
        lambda tensor: MaskedCrossentropy(0.1)(labels, tensor), logits
    )
    np.testing.assert_array_equal(gradient[labels == 0], 0)
    logits[labels == 0] = 1e4
    assert (
        value_and_gradient(lambda tensor: MaskedCrossentropy(0.1)(labels, tensor), logits)[0]
        == value
    )


def test_negative_labels_are_padding_too(batch):
    labels, logits = batch
    expected = float(MaskedCrossentropy()(labels, logits))
    assert float(MaskedCrossentropy()(np.where(labels == 0, -1, labels), logits)) == expected


def test_a_label_outside_the_vocabulary_makes_the_loss_nan(batch):
    labels, logits = batch
    for wrong in (VOCABULARY, VOCABULARY + 1000):
        labels[0, 0] = wrong
        assert np.isnan(float(MaskedCrossentropy()(labels, logits)))


def test_huge_logits_stay_finite():
    logits = np.array([[[6e4, -6e4, 0.0]]], "float32")
    for dtype in ("float32", "float16"):
        value, gradient = value_and_gradient(
            lambda x: MaskedCrossentropy(0.1)([[1]], x), logits, dtype
        )
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_works_for_a_vocabulary_axis_behind_any_labels(batch):
    labels, logits = batch
    expected = float(MaskedCrossentropy(0.1)(labels, logits))
    np.testing.assert_allclose(
        float(MaskedCrossentropy(0.1)(labels.ravel(), logits.reshape(-1, 11))), expected, 1e-6
    )


def test_trains_a_compiled_model_with_sample_weights(policy, rng):
    model = keras.Sequential(
        [keras.layers.Embedding(VOCABULARY, 16), keras.layers.Dense(VOCABULARY)]
    )
    model.compile(keras.optimizers.Adam(0.05), loss=MaskedCrossentropy())
    ids = rng.integers(1, VOCABULARY, (32, 6)).astype("int32")
    history = model.fit(
        ids, ids, sample_weight=np.ones(32, "float32"), epochs=25, batch_size=32, verbose=0
    ).history
    assert history["loss"][0] > 2 and history["loss"][-1] < 0.2


def test_configuration_survives_serialisation():
    loss = MaskedCrossentropy(label_smoothing=0.2, pad_id=5, name="mine")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(copy) is MaskedCrossentropy
    weights = {"consistency": 0.0, "teacher_weight": 0.8, "alignment_weight": 0.05}
    config = {"label_smoothing": 0.2, "pad_id": 5, **weights, "name": "mine"}
    assert copy.get_config() == config == loss.get_config()
    assert keras.losses.serialize(loss)["registered_name"] == "kformer>MaskedCrossentropy"


@pytest.mark.any_backend
def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="label_smoothing must be in .* 1.0 was given"):
        MaskedCrossentropy(label_smoothing=1.0)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) need logits .* \(2, 4, 5\)"):
        MaskedCrossentropy()(np.ones((2, 3), "int32"), np.ones((2, 4, 5), "float32"))
    with pytest.raises(ValueError, match=r"one sample weight .* \(2, 3, 1\)"):
        MaskedCrossentropy()(
            np.ones((2, 3), "int32"), np.ones((2, 3, 5), "float32"), np.ones((2, 3, 1))
        )
