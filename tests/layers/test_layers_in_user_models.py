"""The layers in a functional model of somebody's own: any sizes, saved and loaded without custom
objects, and trained.
"""

import keras
import numpy as np
import pytest

from kformer.layers import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    MultiHeadAttention,
    OutputBias,
    PositionalEmbedding,
)
from tests.peers import to_numpy

V, D, N, F = 11, 8, 2, 16


def sequence_model():
    """All layers in one model, with an implicit mask; the lengths are unknown."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embedding = PositionalEmbedding(V, D, dropout=0.1, pad_id=0)
    encoded = EncoderLayer(F, N, dropout=0.1)(embedding(source))
    decoded = DecoderLayer(F, N, normalize_first=True, attention_dropout=0.1)(
        embedding(target), encoded
    )
    attended = MultiHeadAttention(N)(decoded, encoded)
    hidden = FeedForward(F, activation="gelu")(Dropout(0.1)(decoded + attended))
    return keras.Model([source, target], embedding(hidden, reverse=True))


def draw(rng, rows=2, source_length=5, target_length=4):
    source, target = (
        rng.integers(1, V, (rows, length)).astype("int32")
        for length in (source_length, target_length)
    )
    source[0, -2:] = 0
    target[0, -1:] = 0
    return [source, target]


def test_save_and_load(tmp_path, rng, randomize):
    model = randomize(sequence_model())
    inputs = draw(rng)
    expected = to_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(inputs)), expected, atol=1e-6)
    assert [weight.path.split("/")[-1] for weight in again.weights] == [
        weight.path.split("/")[-1] for weight in model.weights
    ]


def test_registered_names_are_frozen():
    for layer_class in (
        DecoderLayer,
        Dropout,
        EncoderLayer,
        FeedForward,
        MultiHeadAttention,
        PositionalEmbedding,
    ):
        assert keras.saving.get_registered_name(layer_class) == f"kformer>{layer_class.__name__}"


def test_batch_and_lengths_unknown_to_the_graph(rng, randomize):
    model = randomize(sequence_model())
    assert model.output_shape == (None, None, V)
    for sizes in (
        [(2, 5, 4)] if keras.backend.backend() == "jax" else [(2, 5, 4), (1, 3, 6)]
    ):  # JAX compiles for each anyway
        inputs = draw(rng, *sizes)
        np.testing.assert_allclose(
            model.predict(inputs, verbose=0), to_numpy(model(inputs)), atol=1e-5
        )


def test_implicit_mask_reaches_every_attention(rng, randomize):
    """What the vector of the padding token is changes nothing at real target positions."""
    model = randomize(sequence_model())
    source, target = draw(rng)
    before = to_numpy(model([source, target]))
    (table,) = (weight for weight in model.trainable_weights if weight.name == "embeddings")
    vectors = to_numpy(table).copy()
    vectors[0] = 3.0
    table.assign(vectors)
    after = to_numpy(model([source, target]))
    real = target != 0
    # The column of the padding token itself is its vector's product with the state.
    np.testing.assert_allclose(after[real][:, 1:], before[real][:, 1:], atol=1e-5)
    assert np.abs(after[~real] - before[~real]).max() > 1e-2


def test_masks_pass_the_embedding_of_features(rng, randomize):
    x = keras.Input((None, 3))
    hidden = EncoderLayer(F, N)(FeatureEmbedding(D)(keras.layers.Masking()(x)))
    hidden = keras.layers.GlobalAveragePooling1D()(OutputBias()(hidden))
    model = randomize(keras.Model(x, hidden))
    steps = rng.random((1, 4, 3)).astype("float32")
    padded = np.concatenate([steps, np.zeros((1, 3, 3), "float32")], axis=1)
    np.testing.assert_allclose(to_numpy(model(padded)), to_numpy(model(steps)), atol=1e-5)


def test_a_layer_for_each_of_several_sequences(rng):
    layer, x = EncoderLayer(F, N), keras.Input((3, 5, D))
    model = keras.Model(x, keras.layers.TimeDistributed(layer)(x))
    inputs = rng.random((2, 3, 5, D)).astype("float32")
    expected = np.stack([to_numpy(layer(inputs[:, i])) for i in range(3)], axis=1)
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5)
    assert MultiHeadAttention(N).compute_output_shape((2, 4, D), (2, 5, D)) == (2, 4, D)
    shapes = {"x_shape": (2, 4, D), "encoded_shape": (2, 5, D)}
    assert DecoderLayer(F, N).compute_output_shape(**shapes) == (2, 4, D)
    assert PositionalEmbedding(V, D).compute_output_shape([2, 4]) == (2, 4, D)
    assert OutputBias().compute_output_shape((2, 4, D)) == (2, 4, D)


@pytest.mark.heavy
def test_quantized_layers_are_saved(tmp_path, rng):
    x = keras.Input((None, D))
    hidden = DecoderLayer(F, N, gated=True)(EncoderLayer(F, N)(x), x)
    model, inputs = keras.Model(x, FeedForward(F)(hidden)), rng.random((2, 5, D)).astype("float32")
    before = to_numpy(model(inputs))
    model.quantize("int8")
    expected = to_numpy(model(inputs))
    assert 0 < np.abs(expected - before).max() < 0.2
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(inputs)), expected)


def test_training(rng, backend):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = sequence_model()
    inputs = draw(rng, rows=8)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=backend == "jax",
    )
    before = {weight.path: to_numpy(weight) for weight in model.trainable_weights}
    losses = model.fit(inputs, inputs[1], batch_size=8, epochs=12, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0] - 0.2
    unmoved = [
        weight.path
        for weight in model.trainable_weights
        if (to_numpy(weight) == before[weight.path]).all()
    ]
    assert not unmoved
