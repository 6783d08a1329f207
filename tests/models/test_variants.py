"""Options beyond the paper's model: each decodes with a cache as without, packs, saves, trains and
is refused by formats without it.
"""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.export.checks import check_layers
from kformer.models.config import variants_of
from tests.models.test_packed_rows import LONGEST, batch_of, draw_pairs, logits_of, plain
from tests.models.test_transformer_cache import LAYOUTS, T, decode_in_steps
from tests.peers import to_numpy

VARIANTS = {
    "rope": {"position_encoding": "rope", "rotary_base": 100.0},
    "alibi": {"position_encoding": "alibi"},
    "t5": {
        "position_encoding": "t5",
        "relative_buckets": 4,
        "relative_max_distance": 3,
        "attention_scale": 1.0,
        "scale_output": True,
    },
    "shaw": {"position_encoding": "shaw", "relative_max_distance": 3},
    "rms_norm": {"normalization": "rms_norm", "use_bias": False, "normalize_first": True},
    "gated": {"gated": True, "activation": "gelu_tanh", "final_norm": True},
    "grouped": {"num_key_value_heads": 1, "head_dim": 6},
    "local": {"attention_kind": "local", "attention_window": 2},
    "local alibi": {
        "attention_kind": "local",
        "attention_window": 1,
        "attention_dilation": 2,
        "position_encoding": "alibi",
    },
    "global": {
        "attention_kind": "local",
        "attention_window": 1,
        "global_tokens": 2,
        "position_encoding": "rope",
    },
    "linear": {"attention_kind": "linear", "position_encoding": "rope", "normalize_first": True},
    "ssru": {
        "decoder_autoregression": "ssru",
        "position_encoding": "t5",
        "activation": "gelu_sigmoid",
    },
}
if (
    keras.backend.backend() == "jax"
):  # It compiles each operation for each shape; these have all operations that there are.
    VARIANTS = {
        name: VARIANTS[name] for name in ("t5", "shaw", "grouped", "local alibi", "linear", "ssru")
    }
by_variant = pytest.mark.parametrize("name", VARIANTS)


@pytest.mark.heavy
@pytest.mark.parametrize("max_length", LAYOUTS.values(), ids=LAYOUTS)
@by_variant
def test_cached_equals_uncached(tiny_transformer, random_batch, name, max_length):
    model, batch = tiny_transformer(**VARIANTS[name]), random_batch()
    expected = to_numpy(model(batch))
    for widths in ((1,) * T, (3, 1)) if keras.backend.backend() != "jax" else ((3, 1),):
        np.testing.assert_allclose(
            decode_in_steps(model, batch, widths, max_length), expected, atol=1e-5
        )
    plainer = to_numpy(tiny_transformer()(batch))
    assert np.abs(plainer - expected).max() > 0.01


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [name for name in VARIANTS if "alibi" in name or "t5" in name])
def test_a_call_makes_no_layer(tiny_transformer, random_batch, monkeypatch, name):
    model, batch = tiny_transformer(**VARIANTS[name]), random_batch()
    monkeypatch.setattr("kformer.models.stacks.Distances", None)
    model(batch)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("global", "linear")])
def test_packed_pairs_have_the_logits_that_they_have_alone(tiny_transformer, rng, name):
    model = tiny_transformer(**VARIANTS[name])
    rows = draw_pairs(rng)
    logits = logits_of(model, batch_of(rows)[0])
    alone = logits_of(model, plain(batch_of([[rows[0][1]]], room=LONGEST)[0]))
    np.testing.assert_allclose(logits[0, 4:10], alone[0, :6], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name in ("global", "linear")])
def test_what_cannot_keep_packed_pairs_apart_is_refused(tiny_transformer, rng, name):
    model = tiny_transformer(**VARIANTS[name])
    inputs, labels = batch_of(draw_pairs(rng))
    what = {"global": "global_tokens=2", "linear": "attention_kind='linear'"}[name]
    with pytest.raises(
        ValueError, match=f"A model with {what} cannot keep apart the sequences of packed rows"
    ):
        model(inputs)
    model.compile("sgd", kformer.MaskedCrossentropy())

    class Packed(keras.utils.PyDataset):
        packed = True

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return inputs, labels

    with pytest.raises(ValueError, match=f"A model with {what} cannot"):
        model.fit(Packed())


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@by_variant
def test_saved_trained_and_in_half_precision(
    tiny_transformer, random_batch, tmp_path, quick_compile, name
):
    model, batch = tiny_transformer(**VARIANTS[name], stochastic_depth=0.2), random_batch()
    labels = np.roll(batch["target_ids"], -1, axis=1)
    model.compile(keras.optimizers.SGD(0.3), kformer.MaskedCrossentropy(), **quick_compile)
    before = [to_numpy(weight).copy() for weight in model.trainable_weights]
    # A single key gets all the attention whatever it is, and a bias of T5's may stand for a
    # distance that does not occur.
    losses = model.fit(batch, labels, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    moved = [
        np.abs(to_numpy(weight) - old).max() > 0
        for weight, old in zip(model.trainable_weights, before, strict=True)
    ]
    assert np.mean(moved) > 0.95
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    expected = to_numpy(model(batch))
    np.testing.assert_array_equal(to_numpy(again(batch)), expected)
    half = kformer.Transformer.from_config({**model.get_config(), "dtype": "mixed_bfloat16"})
    half.set_weights(model.get_weights())
    np.testing.assert_allclose(to_numpy(half(batch)), expected, atol=0.15)


@pytest.mark.any_backend
def test_the_papers_model_is_no_variant(tiny_transformer):
    config = tiny_transformer().get_config()
    assert not variants_of(config) and config["gated"] is False


@pytest.mark.any_backend
@by_variant
def test_programs_that_do_not_know_it_refuse_it(tiny_transformer, name):
    model = tiny_transformer(**VARIANTS[name])
    # The fast decoder, CTranslate2 and ONNX know rotary positions, the fast decoder those of Shaw
    # et al., too; Marian and BART do not.
    is_fast = name in ("rope", "shaw") and keras.backend.backend() != "jax"
    assert (why_not_fast(model) is None) == is_fast
    with pytest.raises(ValueError, match="does not know here. Export a SavedModel") as error:
        check_layers(model, "ONNX")
    option, value = list(VARIANTS[name].items())[0]
    assert f"{option}={value!r}" in str(error.value)
    if name == "rope":
        check_layers(model, "ONNX", known=("rope",))
    else:
        with pytest.raises(ValueError, match="does not know here"):
            check_layers(model, "ONNX", known=("rope",))


def test_stochastic_depth_leaves_out_whole_rows():
    layer = kformer.layers.StochasticDepth(0.25, seed=3)
    x = ops.ones((400, 3, 2))
    dropped = ops.convert_to_numpy(layer(x, training=True)).reshape(400, 6)
    assert (dropped == dropped[:, :1]).all() and set(np.round(np.unique(dropped), 4)) == {
        0,
        np.float32(1.3333),
    }
    assert 0.18 < (dropped[:, 0] == 0).mean() < 0.32
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), 1)


def test_depth_grows_from_layer_to_layer(tiny_transformer):
    model = tiny_transformer(stochastic_depth=0.2)
    assert [layer.options.stochastic_depth for layer in model.network.decoder_layers] == [0.1, 0.2]
