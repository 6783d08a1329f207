"""Small models and sentences for tests of search."""

import keras
import numpy as np

import kformer
from kformer.decoding import SearchOptions, SearchResult, decoder_for, search
from tests.decoding.toys import compiled

PAD, START, END, VOCABULARY = 0, 2, 3, 17
# Tight limits, so that some hypotheses reach them.
LIMITS = {"max_length": 12, "length_ratio": 1.5, "length_offset": 4}
BEAM = SearchOptions(beam_size=4, n_best=4, **LIMITS)
SPECIAL = type("Special", (), {"pad_id": PAD, "start_id": START, "end_id": END})


def transformer(seed=2, **overrides):
    """A small Transformer whose outputs have many lengths: the end token's logit grows with the
    position, along one axis.
    """
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "num_heads": 2,
        "max_length": 32,
        "share_output": False,
    }
    model = kformer.Transformer(VOCABULARY, **{**sizes, **overrides})
    rng, axis = np.random.default_rng(seed), 4
    for weight in model.trainable_weights:
        shape = tuple(weight.shape)
        if weight.path.startswith("output_projection"):
            values = rng.normal(size=shape) * 3 / shape[0] ** 0.5
            values[axis], values[axis, END] = 0, 6
        elif weight.name.endswith("kernel"):
            values = rng.normal(size=shape) * 0.7 / shape[0] ** 0.5
        elif weight.name == "gamma":
            values = 1 + 0.2 * rng.normal(size=shape)
        elif "embeddings" in weight.name:
            values = rng.normal(size=shape) / shape[1] ** 0.5
            values[:, axis] = 0
        else:
            values = 0.1 * rng.normal(size=shape)
            if weight.path.endswith("decoder_layer_1/feed_forward_norm/beta"):
                values[axis] -= 0.5
        weight.assign(values.astype("float32"))
    return model


def sentences(count, length=8, seed=0):
    """Source ids `[count, length]`; the first is full, the others have random lengths."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, VOCABULARY, (count, length))
    lengths = np.append(length, rng.integers(1, length + 1, max(count - 1, 0)))[:count]
    return np.where(np.arange(length) < lengths[:, None], ids, PAD).astype("int32")


def limits_of(source_ids, options=BEAM):
    return options.limits((source_ids != PAD).sum(axis=1)).astype("int32")


def assert_same(result, expected, atol=1e-4):
    """Two results are equal, up to padding at the end."""
    length = min(result.ids.shape[2], expected.ids.shape[2])
    np.testing.assert_array_equal(result.ids[..., :length], expected.ids[..., :length])
    assert (result.ids[..., length:] == PAD).all() and (expected.ids[..., length:] == PAD).all()
    np.testing.assert_allclose(result.scores, expected.scores, atol=atol)
    np.testing.assert_allclose(result.ranks, expected.ranks, atol=atol)


def rows_of(result, rows):
    return SearchResult(*(part[rows] for part in result))


def search_once(model, options, source_ids, ops=None, **arguments):
    """`search`, not traced where that takes longer than the search; compiled on JAX."""
    limits = limits_of(source_ids, options)

    @compiled
    def run(*arrays):
        decoder, steps = decoder_for(model, ops), int(limits.max()) + 1
        return search(decoder, *arrays, options=options, steps=steps, **arguments)[0]

    arrays = (
        keras.ops.convert_to_tensor(array)
        for array in (source_ids, limits, np.arange(len(source_ids), dtype="int32"))
    )
    return SearchResult(*map(keras.ops.convert_to_numpy, run(*arrays)))
