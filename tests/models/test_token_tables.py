"""A model with further tokens: the logits of the old ones, and the rows of the new ones."""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from tests.peers import to_numpy

SIZES = {"hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32, "max_length": 16}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "seed": 3}
VARIANTS = {
    "joint": {},
    "dropout": {"dropout": 0.2},
    "projection": {"share_output": False},
    "tables": {"share_embeddings": False},
    "sides": {"target_vocabulary_size": 30},
    "sides and projection": {"target_vocabulary_size": 30, "share_output": False},
    "bias": {"output_bias": True, "decoder_autoregression": "ssru"},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"lora": True},
}


def new_model(lora=False, **options):
    model = kformer.Transformer(40, **SIZES, **options)
    if lora:
        kformer.training.enable_lora(model, 2)
    generator = np.random.default_rng(5)
    for weight in model.weights:  # Adapters and biases begin at zero.
        value = to_numpy(weight.value)
        is_number = not keras.backend.is_int_dtype(weight.dtype)
        change = generator.normal(0, 0.1, value.shape) if is_number else 7
        weight.assign(value.astype("float32") + change)
    return model


def logits(model, source_ids, target_ids):
    inputs = {"source_ids": np.array(source_ids), "target_ids": np.array(target_ids)}
    return to_numpy(ops.cast(model(inputs, training=False), "float32"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_old_tokens_have_their_logits(variant):
    model = new_model(**VARIANTS[variant])
    sizes = (52, 33) if "sides" in variant else (52, 52)
    larger = model.with_more_tokens(*sizes, seed=1)
    assert (larger.vocabulary_size, larger.target_vocabulary_size) == sizes
    old = model.target_vocabulary_size
    ids = [[4, 29, 7, 0], [9, 1, 2, 3]], [[2, 5, 6], [2, 28, 8]]
    found, expected = logits(larger, *ids), logits(model, *ids)
    assert found.shape[-1] == sizes[1]
    np.testing.assert_allclose(found[..., :old], expected, atol=1e-5)
    changed = {
        weight.path
        for weight, other in zip(larger.weights, model.weights, strict=True)
        if weight.shape != other.shape
    }
    for weight, other in zip(larger.weights, model.weights, strict=True):
        assert weight.path == other.path and weight.dtype == other.dtype
        if weight.path not in changed:  # The steps of dropout, too.
            np.testing.assert_array_equal(*(to_numpy(each.value) for each in (weight, other)))
    assert all("embedding" in path or "output" in path for path in changed)
    assert (larger.lora, larger.config.output_bias) == (model.lora, model.config.output_bias)
    assert logits(larger, [[51, 40]], [[2, sizes[1] - 1]]).shape == (1, 2, sizes[1])


@pytest.mark.any_backend
def test_new_rows_are_like_the_old_ones():
    model = kformer.Transformer(400, **SIZES)
    table = model.network.source_embedding.embeddings
    table.assign(to_numpy(table.value) + np.arange(16))
    first, again, other = (
        to_numpy(model.with_more_tokens(4000, seed=seed).network.source_embedding.embeddings.value)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[:400], to_numpy(table.value))
    assert np.abs(first[400:] - other[400:]).min() > 0
    np.testing.assert_allclose(first[400:].mean(0), first[:400].mean(0), atol=0.05)
    np.testing.assert_allclose(2 * first[400:].std(0), first[:400].std(0), rtol=0.1)


@pytest.mark.any_backend
def test_sizes_that_do_not_fit():
    model = kformer.Transformer(40, **SIZES)
    with pytest.raises(ValueError, match="has 40 source tokens, more than 39"):
        model.with_more_tokens(39)
    with pytest.raises(ValueError, match="share one table of tokens: give one size, not 41 and 42"):
        model.with_more_tokens(41, 42)
