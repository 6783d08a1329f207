"""Decoding step by step with a cache equals one pass without."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.peers import to_numpy

T = 4
# JAX compiles anew for every length of the growing layout, which is not meant for it.
LAYOUTS = (
    {"static": T + 1} if keras.backend.backend() == "jax" else {"growing": None, "static": T + 1}
)


def decode_in_steps(model, batch, widths, max_length):
    encoded, source_mask = model.encode(batch["source_ids"])
    cache = model.init_cache(encoded, source_mask, max_length=max_length)
    outputs, start = [], 0
    for width in widths:
        logits, cache = model.decode_step(
            batch["target_ids"][:, start : start + width], cache, start
        )
        outputs.append(to_numpy(logits))
        start += width
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("max_length", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_first": True, "position_encoding": "learned", "share_output": False},
        {"position_encoding": None, "target_vocabulary_size": 13, "activation": "silu"},
        {"dtype": "mixed_bfloat16"},
        {
            "position_encoding": "sinusoidal_fairseq",
            "position_offset": 2,
            "scale_embeddings": False,
            "output_bias": True,
        },
        {"position_encoding": "learned", "normalize_embeddings": True},
    ],
    ids=["paper", "pre-norm", "two vocabularies", "bfloat16", "fairseq", "bart"],
)
def test_cached_equals_uncached(tiny_transformer, random_batch, options, max_length):
    model, batch = tiny_transformer(**options), random_batch()
    expected = to_numpy(model(batch))
    tolerance = 0.1 if "dtype" in options else 1e-5
    np.testing.assert_allclose(
        decode_in_steps(model, batch, (1, 1, 1, 1), max_length), expected, atol=tolerance
    )


@pytest.mark.parametrize("max_length", LAYOUTS.values(), ids=LAYOUTS)
def test_several_tokens_per_step(tiny_transformer, random_batch, max_length):
    model, batch = tiny_transformer(), random_batch()
    expected = to_numpy(model(batch))
    for widths in [(T,), (2, 1, 1)]:
        np.testing.assert_allclose(
            decode_in_steps(model, batch, widths, max_length), expected, atol=1e-5
        )


@pytest.mark.parametrize("max_length", LAYOUTS.values(), ids=LAYOUTS)
def test_beams_of_a_sentence_share_its_source(tiny_transformer, random_batch, max_length):
    """Two rows per sentence with targets of their own; after two tokens one row of each sentence
    replaces the other.
    """
    model, batch = tiny_transformer(), random_batch()
    other = random_batch()["target_ids"]
    targets = np.stack([batch["target_ids"], other], axis=1).reshape(4, T)
    encoded, source_mask = model.encode(batch["source_ids"])
    cache = model.init_cache(encoded, source_mask, rows=4, max_length=max_length)
    _, cache = model.decode_step(targets[:, :2], cache, 0)
    order = np.array([1, 1, 2, 2], dtype="int32")
    found, _ = model.decode_step(targets[order][:, 2:], cache.reorder(order), 2)
    expected = model.predict_on_batch(
        {"source_ids": batch["source_ids"].repeat(2, axis=0), "target_ids": targets[order]}
    )
    np.testing.assert_allclose(to_numpy(found), expected[:, 2:], atol=1e-5)


def test_a_compiled_step_runs_at_every_index(tiny_transformer, random_batch, backend):
    """One trace serves all steps: the index is a tensor and the static cache's shapes stay."""
    model, batch = tiny_transformer(), random_batch()
    traces = []

    def step(ids, cache, index):
        traces.append(1)
        return model.decode_step(ids, cache, index)

    if backend == "tensorflow":
        import tensorflow as tf

        step = tf.function(step)
    elif backend == "jax":
        import jax

        step = jax.jit(step)
    encoded, source_mask = model.encode(batch["source_ids"])
    cache, outputs = model.init_cache(encoded, source_mask, max_length=T), []
    for index in range(T):
        ids = ops.convert_to_tensor(batch["target_ids"][:, index : index + 1])
        logits, cache = step(ids, cache, ops.convert_to_tensor(index, dtype="int32"))
        outputs.append(to_numpy(logits))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), to_numpy(model(batch)), atol=1e-5)
    assert len(traces) == (T if backend == "torch" else 1)


def test_a_cache_is_a_tuple_of_tensors(tiny_transformer, random_batch):
    """Any backend's loop can carry it; using it leaves it as it was."""
    model, batch = tiny_transformer(), random_batch()
    cache = model.init_cache(*model.encode(batch["source_ids"]), max_length=T)
    # On TensorFlow with the projection to the vocabulary.
    expected = 2 * (3 + 2) + 1 + (keras.backend.backend() == "tensorflow")
    leaves = [leaf for leaf in keras.tree.flatten(cache) if leaf is not None]
    assert len(leaves) == expected and all(keras.ops.is_tensor(leaf) for leaf in leaves)
    before = [to_numpy(leaf).copy() for leaf in leaves]
    model.decode_step(batch["target_ids"][:, :1], cache, 0)
    for leaf, values in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(to_numpy(leaf), values)
