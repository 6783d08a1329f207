"""The forward pass of a search against the layers', whose mathematics it repeats."""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding.fast.decoder import FastNetwork
from kformer.decoding.fast.eligibility import has_fast_ops, why_not_fast

SIZES = {
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "max_length": 20,
}
OPTIONS = {
    "the paper's": {},
    "pre-norm, gelu": {"normalize_first": True, "activation": "gelu"},
    "silu, no scaling": {"activation": "silu", "scale_embeddings": False},
    "learned positions": {"position_encoding": "learned"},
    "no positions": {"position_encoding": None},
    "Marian": {"position_encoding": "sinusoidal_halves", "output_bias": True, "activation": "silu"},
    "M2M100": {
        "position_encoding": "sinusoidal_fairseq",
        "position_offset": 2,
        "normalize_first": True,
    },
    "mBART": {
        "position_encoding": "learned",
        "normalize_embeddings": True,
        "normalize_first": True,
        "output_bias": True,
    },
    "rotary": {"position_encoding": "rope", "rotary_base": 50.0},
    "rotary, neighbours": {
        "position_encoding": "rope",
        "rotary_base": 50.0,
        "rotary_interleaved": True,
        "normalize_first": True,
    },
    "two vocabularies": {"target_vocabulary_size": 23},
    "separate tables": {"share_embeddings": False, "share_output": False},
}
pytestmark = pytest.mark.skipif(not has_fast_ops(), reason="this backend compiles the layers")


def transformer(**options):
    """A model with weights of every kind off their initial values, as after training."""
    keras.utils.set_random_seed(1)
    model = kformer.Transformer(31, **{**SIZES, **options})
    rng = np.random.default_rng(2)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(
                ops.convert_to_numpy(weight)
                + 0.3 * rng.standard_normal(weight.shape).astype("float32")
            )
    return model


def sources():
    """Six sentences, two of them short, one nothing but padding, and one with padding in front."""
    ids = np.random.default_rng(3).integers(4, 31, (6, 7)).astype("int32")
    ids[2, 4:], ids[3, 1:], ids[4], ids[0, :2] = 0, 0, 0, 0
    return ops.convert_to_tensor(ids)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_step_equals_the_layers(name, width):
    model = transformer(**OPTIONS[name])
    assert why_not_fast(model) is None
    fast, source_ids = FastNetwork(model, width), sources()
    encoded = fast.encode(source_ids)
    expected, expected_mask = model.encode(source_ids)
    real = ops.convert_to_numpy(expected_mask)
    np.testing.assert_array_equal(ops.convert_to_numpy(encoded.mask), real)
    rows, indices = (ops.convert_to_numpy(part) for part in (encoded.rows, encoded.indices))
    assert len(rows) == real.sum() + 1  # Padding is not computed, but in the first place.
    np.testing.assert_allclose(
        rows[indices].reshape(*real.shape, -1)[real],
        ops.convert_to_numpy(expected)[real],
        atol=2e-5,
    )

    steps, rows = 6, 6 * width
    plain_cache = model.init_cache(expected, expected_mask, rows=rows)
    cache = fast.init_cache(encoded, steps)
    rng = np.random.default_rng(4)
    for step in range(steps):
        ids = ops.convert_to_tensor(rng.integers(0, 23, rows).astype("int32"))
        expected_logits, plain_cache = model.decode_step(ops.expand_dims(ids, 1), plain_cache, step)
        logits, cache = fast.step(ids, cache, step)
        np.testing.assert_allclose(
            ops.convert_to_numpy(logits), ops.convert_to_numpy(expected_logits)[:, 0], atol=5e-5
        )
        # Beams change places within their sentence.
        order = np.concatenate(
            [width * sentence + rng.integers(0, width, width) for sentence in range(rows // width)]
        ).astype("int32")
        order = ops.convert_to_tensor(order)
        plain_cache, cache = plain_cache.reorder(order), cache.reorder(order)
        if step == 3:  # Two sentences are done.
            sentences = np.asarray([1, 2, 5], "int32")
            chosen = ops.convert_to_tensor(
                (sentences[:, None] * width + np.arange(width)).reshape(-1).astype("int32")
            )
            plain_cache, cache = (
                part.select(ops.convert_to_tensor(sentences), chosen)
                for part in (plain_cache, cache)
            )
            rows = 3 * width


def test_models_with_more_to_them_run_by_their_layers():
    class OwnAttention(kformer.layers.MultiHeadAttention):
        pass

    own = transformer()
    own.network.decoder_layers[1].cross_attention.__class__ = OwnAttention
    adapted = transformer()
    adapted.network.encoder_layers[0].feed_forward.intermediate.enable_lora(2)
    half = transformer(dtype="mixed_bfloat16")
    assert [why_not_fast(model) is None for model in (transformer(), own, adapted, half)] == [
        True,
        False,
        False,
        False,
    ]
