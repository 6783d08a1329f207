import math

import keras
import numpy as np
import pytest
from keras import ops

from kformer.layers import PositionalEmbedding, sinusoidal_positions


def sinusoid(position, dimension, hidden_dim):
    """One number of the paper's table, from its formula."""
    angle = position / 10000 ** (2 * (dimension // 2) / hidden_dim)
    return math.sin(angle) if dimension % 2 == 0 else math.cos(angle)


def sinusoid_table(length, hidden_dim):
    return np.array(
        [[sinusoid(p, d, hidden_dim) for d in range(hidden_dim)] for p in range(length)]
    )


def to_numpy(x):
    return np.asarray(ops.convert_to_numpy(x), dtype="float32")


@pytest.mark.parametrize("hidden_dim", [8, 7, 2, 1])
def test_sinusoid_is_the_papers(hidden_dim):
    positions = to_numpy(sinusoidal_positions(ops.arange(50), hidden_dim))
    assert positions.shape == (50, hidden_dim)
    np.testing.assert_allclose(positions, sinusoid_table(50, hidden_dim), atol=5e-6)


def test_sinusoid_far_out_is_accurate():
    positions = to_numpy(sinusoidal_positions(ops.convert_to_tensor([[1000, 5000]]), 6))
    expected = [[[sinusoid(p, d, 6) for d in range(6)] for p in (1000, 5000)]]
    np.testing.assert_allclose(positions, expected, atol=1e-3)


@pytest.mark.parametrize("distance", [1, 7, 30])
def test_a_later_position_is_a_rotation_of_an_earlier_one(distance):
    """Pair by pair, by an angle of the distance alone; so the product of two positions is one of
    their distance.
    """
    table = to_numpy(sinusoidal_positions(ops.arange(80), 8))
    expected = np.zeros((8, 8))
    for pair in range(4):
        angle = distance / 10000 ** (pair / 4)
        block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        expected[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
    np.testing.assert_allclose(table[:-distance] @ expected.T, table[distance:], atol=1e-5)
    products = (table[:-distance] * table[distance:]).sum(-1)
    np.testing.assert_allclose(products, products[0], atol=1e-5)


@pytest.mark.parametrize("hidden_dim", [8, 7])
def test_tokens_are_scaled_and_positions_added(hidden_dim):
    layer = PositionalEmbedding(11, hidden_dim)
    ids = np.array([[5, 1, 5], [0, 10, 2]], dtype="int32")
    hidden = to_numpy(layer(ids))
    table = to_numpy(layer.embeddings)
    np.testing.assert_allclose(
        hidden, table[ids] * math.sqrt(hidden_dim) + sinusoid_table(3, hidden_dim), atol=1e-5
    )


def test_no_positions():
    layer = PositionalEmbedding(11, 8, position_encoding=None)
    hidden = to_numpy(layer(np.array([[5, 1, 5]])))
    np.testing.assert_allclose(
        hidden, to_numpy(layer.embeddings)[[[5, 1, 5]]] * math.sqrt(8), atol=1e-6
    )


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", None])
def test_one_token_at_a_time_equals_all_at_once(position_encoding, rng):
    layer = PositionalEmbedding(11, 7, position_encoding=position_encoding, max_length=9)
    ids = rng.integers(0, 11, (2, 6)).astype("int32")
    full = to_numpy(layer(ids))
    steps = [layer(ids[:, step : step + 1], start_index=step) for step in range(3)]
    rest = layer(ids[:, 3:], start_index=ops.convert_to_tensor(3))
    np.testing.assert_allclose(
        np.concatenate([*map(to_numpy, steps), to_numpy(rest)], axis=1), full, atol=1e-6
    )


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_explicit_positions(position_encoding):
    layer = PositionalEmbedding(11, 8, position_encoding=position_encoding, max_length=9)
    # Two sequences packed into one row begin both at position 0.
    packed = to_numpy(layer(np.array([[5, 6, 7, 5, 6]]), positions=np.array([[0, 1, 2, 0, 1]])))
    alone = to_numpy(layer(np.array([[5, 6, 7]])))
    np.testing.assert_allclose(packed, np.concatenate([alone, alone[:, :2]], axis=1), atol=1e-6)


def test_learned_positions():
    layer = PositionalEmbedding(11, 8, position_encoding="learned", max_length=4)
    ids = np.array([[5, 6, 7, 8]])
    hidden = to_numpy(layer(ids))
    assert tuple(layer.position_embeddings.shape) == (4, 8) and len(layer.trainable_weights) == 2
    expected = to_numpy(layer.embeddings)[ids] * math.sqrt(8) + to_numpy(layer.position_embeddings)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)


def test_learned_positions_of_a_length_that_only_a_compiled_step_knows():
    layer = PositionalEmbedding(11, 8, position_encoding="learned", max_length=4)
    ids = np.array([[5, 6, 7, 8, 9]])
    known = to_numpy(layer(ids[:, :4]))
    if keras.backend.backend() == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        shape = tf.TensorSpec((1, None), "int32")
        compiled = tf.function(layer, input_signature=[shape], jit_compile=True)
        found = to_numpy(compiled(tf.cast(ids, "int32")))
    else:
        positions = layer.position_vectors(5, 8, ops.convert_to_tensor(0))
        found = to_numpy(layer.embeddings)[ids] * math.sqrt(8) + to_numpy(positions)
    np.testing.assert_allclose(found[:, :4], known, atol=1e-6)
    assert np.isnan(found[:, 4]).all()


def test_a_sequence_longer_than_the_learned_positions_is_refused():
    layer = PositionalEmbedding(11, 8, position_encoding="learned", max_length=4)
    with pytest.raises(ValueError, match="5 tokens is longer than the 4 learned positions"):
        layer(np.array([[1, 2, 3, 4, 5]]))
    with pytest.raises(ValueError, match="6 tokens is longer than the 4 learned positions"):
        layer(np.array([[1, 2]]), start_index=4)


def test_pretrained_vectors(rng):
    vectors = rng.normal(size=(11, 8)).astype("float32")
    layer = PositionalEmbedding(11, 8, position_encoding=None, pretrained=vectors)
    np.testing.assert_allclose(
        to_numpy(layer(np.array([[3, 4]])))[0], vectors[[3, 4]] * math.sqrt(8), rtol=1e-5
    )
    assert "pretrained" not in layer.get_config()


def test_reverse_projects_on_the_same_table(rng):
    layer = PositionalEmbedding(11, 8)
    layer(np.array([[1]]))
    hidden = rng.normal(size=(2, 3, 8)).astype("float32")
    logits = to_numpy(layer(hidden, reverse=True))
    np.testing.assert_allclose(logits, hidden @ to_numpy(layer.embeddings).T, atol=1e-5)
    assert len(layer.trainable_weights) == 1


def test_initial_scale():
    """Scaled token vectors, and logits of a state of unit variance, have about unit variance."""
    layer = PositionalEmbedding(500, 64, position_encoding=None)
    hidden = to_numpy(layer(np.arange(500)[None]))
    assert 0.95 < hidden.std() < 1.05
    logits = to_numpy(
        layer(np.random.default_rng(1).normal(size=(1, 20, 64)).astype("float32"), reverse=True)
    )
    assert 0.9 < logits.std() < 1.1


def test_implicit_mask():
    ids = ops.convert_to_tensor([[5, 6, 1], [5, 1, 1]], dtype="int32")
    mask = PositionalEmbedding(11, 8, pad_id=1).compute_mask(ids)
    assert to_numpy(mask).tolist() == [[1, 1, 0], [1, 0, 0]]
    assert PositionalEmbedding(11, 8).compute_mask(ids) is None
    # Keras makes inputs, and arrays of floats, of float32 unless told otherwise.
    numbers = ops.cast(ids, "float32")
    mask = PositionalEmbedding(11, 8, pad_id=1).compute_mask(numbers)
    assert to_numpy(mask).tolist() == [[1, 1, 0], [1, 0, 0]]
    hidden = PositionalEmbedding(11, 8, pad_id=1)(ids)
    assert to_numpy(keras.src.backend.get_keras_mask(hidden)).tolist() == [[1, 1, 0], [1, 0, 0]]


def test_dropout_acts_in_training_alone():
    layer = PositionalEmbedding(11, 64, dropout=0.5, seed=3)
    ids = np.array([[5, 6, 7, 8]])
    whole = to_numpy(layer(ids))
    np.testing.assert_array_equal(to_numpy(layer(ids)), whole)
    dropped = to_numpy(layer(ids, training=True))
    assert 0.3 < (dropped == 0).mean() < 0.7
    np.testing.assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0], rtol=1e-5)


def test_compute_dtype(policy):
    layer = PositionalEmbedding(300, 8, position_encoding="learned", max_length=300)
    ids = np.array([[257, 259, 299]])  # bfloat16 cannot tell these numbers apart
    hidden = layer(ids, start_index=260)
    assert keras.backend.standardize_dtype(hidden.dtype) == layer.compute_dtype
    table, positions = to_numpy(layer.embeddings), to_numpy(layer.position_embeddings)
    np.testing.assert_allclose(
        to_numpy(hidden), table[ids] * math.sqrt(8) + positions[None, 260:263], atol=5e-2
    )
    logits = layer(hidden, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype


def test_positions_beyond_256_stay_apart_in_half_precision():
    """The sinusoid is computed in float32; bfloat16 would merge neighbouring positions."""
    layer = PositionalEmbedding(4, 8, dtype="mixed_bfloat16")
    hidden = to_numpy(layer(np.ones((1, 4), "int32"), start_index=1000))
    expected = to_numpy(layer.embeddings)[1] * math.sqrt(8) + [
        [sinusoid(p, d, 8) for d in range(8)] for p in range(1000, 1004)
    ]
    np.testing.assert_allclose(hidden[0], expected, atol=3e-2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64"])
def test_ids_of_any_integer_dtype(dtype):
    layer = PositionalEmbedding(11, 8, pad_id=0)
    ids = np.array([[5, 10, 0]])
    np.testing.assert_array_equal(to_numpy(layer(ids.astype(dtype))), to_numpy(layer(ids)))


def test_ids_of_a_float_dtype_are_read_as_ids():
    layer = PositionalEmbedding(11, 8)
    np.testing.assert_array_equal(
        to_numpy(layer(np.array([[5.0, 6.0]]))), to_numpy(layer(np.array([[5, 6]])))
    )


def test_lengths_unknown_when_the_graph_is_built():
    ids = keras.Input((None,), dtype="int32")
    layer = PositionalEmbedding(11, 7)
    model = keras.Model(ids, layer(layer(ids), reverse=True))
    assert model.output_shape == (None, None, 11)
    for shape in [(2, 3), (1, 5)]:
        batch = np.ones(shape, "int32")
        np.testing.assert_allclose(
            model.predict(batch, verbose=0), to_numpy(layer(layer(batch), reverse=True)), atol=1e-5
        )


def test_config_round_trip():
    layer = PositionalEmbedding(
        11,
        8,
        position_encoding="learned",
        max_length=5,
        dropout=0.1,
        pad_id=1,
        embeddings_initializer="ones",
        seed=4,
        name="e",
    )
    config = layer.get_config()
    again = PositionalEmbedding.from_config(config)
    assert again.get_config() == config
    np.testing.assert_allclose(
        to_numpy(again(np.array([[2]]))) - to_numpy(layer(np.array([[2]]))), 0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position_encoding": "rotary"}, "must be one of .*rotary"),
        ({"position_encoding": "learned"}, "max_length"),
        ({"pretrained": np.zeros((8, 11))}, r"\(8, 11\).*\(11, 8\)"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding(11, 8, **arguments)


def test_ids_may_be_a_list():
    layer = PositionalEmbedding(10, 4, seed=1)
    ids = [[5, 6, 0]]
    expected = ops.convert_to_numpy(layer(np.array(ids)))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(ids)), expected)
