"""The fast decoder against the layers, whose mathematics it repeats, for every model option."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding.fast.decoder import FastNetwork, backend_ops
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.decoding.fast.ops import FastOps
from kformer.layers.feed_forward import ACTIVATIONS
from kformer.layers.positional_embedding import POSITION_ENCODINGS
from kformer.models.config import NOT_DEFAULT, RELATIVE_POSITIONS, TransformerConfig

SIZES = {
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "max_length": 20,
}
# Models that the fast decoder runs.
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
    "relative": {"position_encoding": "shaw", "relative_max_distance": 3},
    "relative, shared, no biases": {
        "position_encoding": "shaw",
        "relative_max_distance": 2,
        "relative_shared": True,
        "normalize_first": True,
        "use_bias": False,
    },
    "two vocabularies": {"target_vocabulary_size": 23},
    "separate tables": {"share_embeddings": False, "share_output": False},
    "large epsilon": {"layer_norm_epsilon": 0.3},
    "other padding": {"pad_id": 30},
    "other sizes of the decoder": {"decoder_intermediate_dim": 24, "decoder_num_heads": 2},
    "SSRU, as in Marian": {
        "decoder_autoregression": "ssru",
        "position_encoding": "sinusoidal_fairseq",
        "activation": "gelu_sigmoid",
    },
    "SSRU, pre-norm, rotary, no biases": {
        "decoder_autoregression": "ssru",
        "use_bias": False,
        "normalize_first": True,
        "position_encoding": "rope",
    },
    "other norms of the decoder": {"decoder_normalize_first": True, "decoder_num_heads": 2},
    "other heads of the decoder, rotary": {"decoder_num_heads": 2, "position_encoding": "rope"},
}
# Models that it does not run: the option, and others that it needs.
REFUSED = {
    "activation": {"activation": "gelu_tanh"},
    "gated": {"gated": True},
    "final_norm": {"final_norm": True},
    "normalization": {"normalization": "rms_norm"},
    "head_dim": {"head_dim": 6},
    "num_key_value_heads": {"num_key_value_heads": 2},
    "attention_scale": {"attention_scale": 1.0},
    "attention_kind": {"attention_kind": "linear"},
    "attention_window": {"attention_window": 2, "attention_kind": "local"},
    "attention_dilation": {
        "attention_dilation": 2,
        "attention_kind": "local",
        "attention_window": 2,
    },
    "global_tokens": {"global_tokens": 1, "attention_kind": "local", "attention_window": 2},
    "scale_output": {"scale_output": True},
    "position_encoding": {"position_encoding": "alibi"},
    "t5": {"position_encoding": "t5"},
}
# Options that change no number of a search of given weights, or that come with a refused one.
WITHOUT_EFFECT = {
    *("dropout", "attention_dropout", "activation_dropout", "stochastic_depth"),  # in training
    "zero_start",  # in training
    "seed",  # of the first weights and the dropout
    *("start_id", "end_id"),  # of the search
    "relative_buckets",  # of the positions "t5"
}
pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="this backend compiles the layers"
)


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


def sources(pad_id=0):
    """Six sentences, two of them short, one nothing but padding, and one with padding in front."""
    ids = np.random.default_rng(3).integers(4, 30, (6, 7)).astype("int32")
    ids[2, 4:] = ids[3, 1:] = ids[4] = ids[0, :2] = pad_id
    return ops.convert_to_tensor(ids)


@pytest.mark.heavy
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_step_equals_the_layers(name, width):
    model = transformer(**OPTIONS[name])
    assert why_not_fast(model) is None
    fast, source_ids = FastNetwork(model, width), sources(model.pad_id)
    encoded = fast.encode(source_ids)
    expected, expected_mask = model.encode(source_ids)
    real = ops.convert_to_numpy(expected_mask)
    np.testing.assert_array_equal(ops.convert_to_numpy(encoded.mask), real)
    rows, indices = (ops.convert_to_numpy(part) for part in (encoded.rows, encoded.indices))
    assert len(rows) == real.sum() + 1  # Padding is not computed, but in the first position.
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
        # Beams are reordered within their sentence.
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


@pytest.mark.parametrize("name", OPTIONS)
def test_the_attention_to_the_source_equals_the_layers(name):
    model = transformer(**OPTIONS[name])
    source_ids = sources(model.pad_id)
    target_ids = np.random.default_rng(5).integers(4, 23, (6, 5)).astype("int32")
    target_ids = ops.convert_to_tensor(target_ids)
    found = FastNetwork(model, 1).source_attention(source_ids, target_ids)
    inspected = model.inspect({"source_ids": source_ids, "target_ids": target_ids})
    expected = ops.stack(inspected["cross_attention_scores"], axis=1)
    found, expected = (ops.convert_to_numpy(part) for part in (found, expected))
    has_source = ops.convert_to_numpy(ops.any(source_ids != model.pad_id, axis=1))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found[has_source], expected[has_source], atol=2e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused(name):
    option, value = next(iter(REFUSED[name].items()))
    assert f"{option}={value!r}" in why_not_fast(transformer(**REFUSED[name]))


@pytest.mark.parametrize(
    "field", dataclasses.fields(TransformerConfig), ids=lambda field: field.name
)
def test_every_option_is_compared_or_refused(field):
    """An option that is new has to be listed in this file."""
    name, sizes = field.name, {**SIZES, "vocabulary_size": 31}
    compared = any(
        {**sizes, **options}.get(name, field.default) != field.default
        for options in OPTIONS.values()
    )
    assert compared + (name in WITHOUT_EFFECT) + (name in REFUSED) >= 1
    assert not (compared and name in WITHOUT_EFFECT)
    if field.metadata.get("variant") is NOT_DEFAULT:
        assert name in REFUSED and not compared


def test_every_encoding_and_activation_is_compared_or_refused():
    def values(models):
        return {options.get("position_encoding", "sinusoidal") for options in models.values()}

    assert values(OPTIONS) | values(REFUSED) == {*POSITION_ENCODINGS, *RELATIVE_POSITIONS}
    models = (*OPTIONS.values(), *REFUSED.values())
    assert {options.get("activation", "relu") for options in models} == {*ACTIVATIONS}


def test_every_operation_is_implemented():
    """Each backend has all abstract methods; the forms of an export inherit TensorFlow's."""
    assert len(FastOps.__abstractmethods__) >= 12
    assert not type(backend_ops()).__abstractmethods__
