"""Token-weighted metrics: independent of the split into batches, exact over very many tokens, saved
with a model.
"""

import keras
import numpy as np
import pytest

from kformer.training import (
    LatestValue,
    MaskedAccuracy,
    MaskedCrossentropy,
    NegativeLogLikelihood,
    Perplexity,
)

METRICS = (NegativeLogLikelihood, Perplexity, MaskedAccuracy)
VOCABULARY = 9


@pytest.fixture
def batch(rng):
    labels = rng.integers(1, VOCABULARY, (6, 5)).astype("int32")
    labels[1, 2:] = labels[4, 1:] = 0
    return labels, rng.normal(0, 2, (6, 5, VOCABULARY)).astype("float32")


def expected_values(labels, logits, weights=1.0):
    logits = logits.astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    weights = (labels != 0) * weights
    mean = (nll * weights).sum() / weights.sum()
    return mean, np.exp(mean), ((logits.argmax(-1) == labels) * weights).sum() / weights.sum()


def test_values_over_real_tokens(batch):
    for metric_class, expected in zip(METRICS, expected_values(*batch), strict=True):
        metric = metric_class()
        metric.update_state(*batch)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)
        metric.reset_state()
        assert float(metric.result()) == (1.0 if metric_class is Perplexity else 0.0)


def test_the_split_into_batches_does_not_matter(batch):
    labels, logits = batch
    for metric_class, expected in zip(METRICS, expected_values(*batch), strict=True):
        metric = metric_class()
        for rows in (slice(0, 1), slice(1, 2), slice(2, 6)):
            metric.update_state(labels[rows], logits[rows])
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (6, 5)])
def test_sample_weights_are_token_weights(batch, rng, shape):
    weights = rng.uniform(0.1, 2, shape).astype("float32")
    for metric_class, expected in zip(
        METRICS, expected_values(*batch, weights.reshape(6, -1)), strict=True
    ):
        metric = metric_class()
        metric.update_state(*batch, sample_weight=weights)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


def test_padding_is_what_pad_id_says(batch):
    labels, logits = batch
    for metric_class, expected in zip(METRICS, expected_values(*batch), strict=True):
        for pad_id, mark in ((-7, -7), (None, -1), (0, 0)):
            metric = metric_class(pad_id=pad_id)
            metric.update_state(np.where(labels == 0, mark, labels), logits)
            np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


def test_small_batches_still_count_after_a_hundred_million_tokens():
    """After 10^8 tokens that were right come 600 that are wrong, three at a time."""
    assert np.float32(1e8) + np.float32(3) == np.float32(
        1e8
    )  # where a plain float32 sum stands still
    metric = MaskedAccuracy()
    logits = np.eye(4, dtype="float32")[[[1]]]
    metric.update_state([[1]], logits, sample_weight=[1e8])
    for _ in range(200):
        metric.update_state([[2]], logits, sample_weight=[3.0])
    np.testing.assert_allclose(float(metric.result()), 1e8 / (1e8 + 600), atol=1e-7)


def test_a_label_outside_the_vocabulary_shows(batch):
    labels, logits = batch
    labels[0, 0] = VOCABULARY
    for metric_class in (NegativeLogLikelihood, Perplexity):
        metric = metric_class()
        metric.update_state(labels, logits)
        assert np.isnan(float(metric.result()))


def test_in_evaluate_under_each_policy(policy, rng):
    """What `evaluate` reports over batches of unequal token counts is the mean over all tokens."""
    ids = rng.integers(1, VOCABULARY, (20, 5)).astype("int32")
    labels = np.where(np.arange(5) < rng.integers(1, 6, (20, 1)), ids, 0)
    model = keras.Sequential(
        [keras.layers.Embedding(VOCABULARY, 8), keras.layers.Dense(VOCABULARY)]
    )
    model.compile(
        "adam", loss=MaskedCrossentropy(), metrics=[metric_class() for metric_class in METRICS]
    )
    logits = keras.ops.convert_to_numpy(keras.ops.cast(model(ids), "float32"))
    values = model.evaluate(ids, labels, batch_size=8, verbose=0, return_dict=True)
    expected = expected_values(labels, logits)
    tolerance = 1e-5 if policy == "float32" else 3e-3
    np.testing.assert_allclose(
        [values[name] for name in ("nll", "perplexity")], expected[:2], rtol=tolerance
    )
    np.testing.assert_allclose(
        values["accuracy"], expected[2], atol=1e-6 if policy == "float32" else 0.05
    )


def test_latest_value_is_not_averaged():
    metric = LatestValue(name="batch_loss")
    for value in (3.0, 1.5):
        metric.update_state(keras.ops.convert_to_tensor(value))
        result = metric.result()
        assert float(result) == value
    metric.update_state(9.0)
    assert float(result) == 1.5  # what was read stays what it was


@pytest.mark.any_backend
def test_configuration_survives_serialisation():
    for metric_class in METRICS:
        metric = metric_class(name="mine", pad_id=3)
        saved = keras.metrics.serialize(metric)
        copy = keras.metrics.deserialize(saved)
        assert type(copy) is metric_class and copy.name == "mine" and copy.pad_id == 3
        assert saved["registered_name"] == f"kformer>{metric_class.__name__}"
    assert keras.metrics.deserialize(keras.metrics.serialize(LatestValue("x"))).name == "x"
    assert [metric_class().name for metric_class in METRICS] == ["nll", "perplexity", "accuracy"]
