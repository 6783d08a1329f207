"""A model comes back from its file as it was, on the same backend and on another."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import kformer
from kformer.models import DualEncoder
from kformer.saving import TrainingState, load_checkpoint, save_checkpoint
from kformer.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    WarmupInverseSqrt,
    enable_lora,
)
from tests.peers import to_numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACKENDS = ("tensorflow", "jax", "torch")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "normalize_first": True,
            "position_encoding": "learned",
            "target_vocabulary_size": 13,
            "share_output": False,
            "dtype": "mixed_bfloat16",
        },
        {
            "position_encoding": "learned",
            "normalize_embeddings": True,
            "output_bias": True,
            "dtype": "bfloat16",
        },
    ],
    ids=["shared", "nothing shared", "bart"],
)
def test_save_and_load(tiny_transformer, random_batch, tmp_path, options):
    model, batch = tiny_transformer(**options), random_batch()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config() and again.get_config()["dtype"] == options.get(
        "dtype", "float32"
    )
    np.testing.assert_array_equal(to_numpy(again(batch)), to_numpy(model(batch)))
    assert (again.pad_id, again.hidden_dim, again.target_vocabulary_size) == (
        model.pad_id,
        model.hidden_dim,
        model.target_vocabulary_size,
    )
    # Search works on it, too.
    cache = again.init_cache(*again.encode(batch["source_ids"]), max_length=4)
    logits, _ = again.decode_step(batch["target_ids"], cache, 0)
    np.testing.assert_allclose(
        to_numpy(logits), to_numpy(model(batch)), atol=0.1 if options else 1e-5
    )


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_frozen_layers_stay_frozen(tiny_transformer, random_batch, tmp_path):
    model = tiny_transformer(dropout=0.1)
    model.get_layer("encoder_layer_0").trainable = False
    model.get_layer("decoder_layer_0").feed_forward.trainable = False
    names = [variable.path for variable in model.trainable_variables]
    assert 0 < len(names) < len(tiny_transformer().trainable_variables)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy())
    batch = random_batch()
    model.train_on_batch(batch, batch["target_ids"])
    model.save(tmp_path / "model.keras")
    assert int(keras.saving.load_model(tmp_path / "model.keras").optimizer.iterations) == 1
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), model.with_dropout(dropout=0)):
        assert [variable.path for variable in copy.trainable_variables] == names
        assert copy.get_config()["frozen_layers"] == [
            "encoder_layer_0",
            "decoder_layer_0/feed_forward",
        ]


def train_norms(model):
    """The user's recipe: all layers are frozen, then the norms inside of them train."""
    for layer in model.layers:
        layer.trainable = False
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.trainable = True


def freeze_a_weight(model):
    model.get_layer("encoder_layer_0").feed_forward.output_projection.bias.trainable = False


def train_norms_and_adapters(model):
    enable_lora(model, 2)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.trainable = True


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("freeze", [train_norms, freeze_a_weight, train_norms_and_adapters])
def test_what_trains_is_the_same_in_copies_and_files(
    tiny_transformer, random_batch, tmp_path, freeze
):
    model, batch = tiny_transformer(dropout=0.1), random_batch()
    total = len(model.trainable_variables)
    freeze(model)
    names = [variable.path for variable in model.trainable_variables]
    assert 0 < len(names) != total
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy())
    model.train_on_batch(batch, batch["target_ids"])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert len(again.optimizer.variables) == len(model.optimizer.variables)
    assert int(again.optimizer.iterations) == 1
    for copy in (again, model.with_dropout(dropout=0)):
        assert [variable.path for variable in copy.trainable_variables] == names


def test_a_trained_model_goes_on_where_it_was(
    tiny_transformer, random_batch, tmp_path, quick_compile
):
    """Weights, optimizer, schedule and dropout: the next losses are those of the run that was not
    interrupted.
    """
    model, batch = (
        tiny_transformer(num_encoder_layers=1, num_decoder_layers=1, dropout=0.3),
        random_batch(),
    )
    labels = np.roll(batch["target_ids"], -1, axis=1)
    model.compile(
        keras.optimizers.Adam(WarmupInverseSqrt(8, warmup_steps=3)),
        MaskedCrossentropy(label_smoothing=0.1),
        metrics=[MaskedAccuracy()],
        **quick_compile,
    )

    def train(model, steps):
        histories = [
            model.fit(batch, labels, batch_size=2, shuffle=False, verbose=0).history
            for _ in range(steps)
        ]
        return [history["loss"][0] for history in histories]

    train(model, 1)
    model.save(tmp_path / "model.keras")
    expected = train(model, 2)
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.loss.pad_id == 0 and again.jit_compile == model.jit_compile
    np.testing.assert_allclose(train(again, 2), expected, rtol=1e-6)
    assert len(set(expected)) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("given", ["globally", "as an option", "to a copy"])
def test_the_loss_of_mixed_float16_is_scaled_and_its_scale_is_saved(
    tiny_transformer, random_batch, tmp_path, quick_compile, given
):
    """Wherever the precision comes from, and whatever the global one is later."""
    keras.config.set_dtype_policy("mixed_float16" if given == "globally" else "float32")
    model = tiny_transformer(**({"dtype": "mixed_float16"} if given == "as an option" else {}))
    model = model.with_precision("mixed_float16") if given == "to a copy" else model
    batch = random_batch()
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), **quick_compile)
    model.train_on_batch(batch, batch["target_ids"])
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
    save_checkpoint(tmp_path, model, TrainingState(1))
    keras.config.set_dtype_policy("float32" if given == "globally" else "mixed_float16")
    again, _ = load_checkpoint(tmp_path)  # It compares the optimizer's state.
    losses = [float(each.train_on_batch(batch, batch["target_ids"])) for each in (model, again)]
    assert int(again.optimizer.iterations) == 2 and losses[0] == losses[1]
    other = tiny_transformer(dtype="float32")
    other.compile("adam", MaskedCrossentropy())
    assert not isinstance(other.optimizer, keras.optimizers.LossScaleOptimizer)


def test_other_models_scale_the_loss_of_mixed_float16(tmp_path, rng, quick_compile):
    sizes = {"hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2, "dtype": "mixed_float16"}
    forecaster = kformer.Forecaster(1, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    series = rng.normal(size=(2, 9, 1)).astype("float32")
    pairs = DualEncoder(kformer.TransformerEncoder(11, num_layers=1, head="embedding", **sizes))
    ids = rng.integers(4, 11, (2, 5)).astype("int32")
    for model, inputs, labels in (
        (forecaster, forecaster.teacher_forcing(series[:, :5], series[:, 5:]), series[:, 5:]),
        (pairs, {"source_ids": ids, "target_ids": ids}, np.zeros((2, 2, 8))),
    ):
        model.compile(keras.optimizers.Adam(0.01), "mean_squared_error", **quick_compile)
        assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
        model.train_on_batch(inputs, labels)
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        # After one step the scale or the count of steps is another than at first.
        for saved, loaded in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
            np.testing.assert_array_equal(to_numpy(saved), to_numpy(loaded))


@pytest.mark.any_backend
def test_a_model_is_not_quantized_in_place(tiny_transformer):
    with pytest.raises(ValueError, match=r"kformer.Translator\(model, tokenizer, dtype='int8'\)"):
        tiny_transformer(share_output=False).quantize("int8")


def test_weights_alone(tiny_transformer, random_batch, tmp_path):
    model, other, batch = tiny_transformer(), tiny_transformer(seed=7), random_batch()
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(to_numpy(other(batch)), to_numpy(model(batch)))


def test_the_file_says_no_more_than_it_must(tiny_transformer, tmp_path):
    """Keyword arguments under a registered name: no graph of layers, which would bind old files to
    today's code.
    """
    model = tiny_transformer()
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        saved = json.loads(archive.read("config.json"))
    assert (
        saved["registered_name"] == "kformer>Transformer" and saved["class_name"] == "Transformer"
    )
    config = dict(saved["config"])
    assert {
        name: config[name]
        for name in ("vocabulary_size", "hidden_dim", "num_heads", "pad_id", "dtype")
    } == {
        "vocabulary_size": 11,
        "hidden_dim": 8,
        "num_heads": 2,
        "pad_id": 0,
        "dtype": "float32",
    }
    assert all(isinstance(value, (int, float, str, bool, type(None))) for value in config.values())


_OTHER_BACKEND = """
import sys
import keras, numpy as np
import kformer
folder, backend = sys.argv[1:]
assert keras.backend.backend() == backend
model = keras.saving.load_model(f"{folder}/model.keras")
with np.load(f"{folder}/batch.npz") as batch:
    logits = model.predict_on_batch(dict(batch))
np.save(f"{folder}/{backend}.npy", logits)
model.save(f"{folder}/{backend}.keras")
"""


@pytest.mark.heavy
@pytest.mark.any_backend
def test_every_backend_reads_and_writes_the_same_model(
    tiny_transformer, random_batch, tmp_path, backend
):
    """A model saved here gives the same logits on the other two backends; what they save gives them
    here again, and goes on training.
    """
    model, batch = tiny_transformer(normalize_first=True, activation="gelu"), random_batch()
    model.compile("adam", MaskedCrossentropy())
    expected = to_numpy(model(batch))
    model.save(tmp_path / "model.keras")
    loss = float(model.train_on_batch(batch, batch["target_ids"]))
    np.savez(tmp_path / "batch.npz", **batch)
    others = [name for name in BACKENDS if name != backend]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _OTHER_BACKEND, str(tmp_path), name],
            cwd=ROOT,
            env={**os.environ, "KERAS_BACKEND": name},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in others
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    for name in others:
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, atol=1e-4)
        again = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(to_numpy(again(batch)), expected, atol=1e-5)
        # PyTorch has optimizers of its own, and names them in the file.
        assert type(again.optimizer) is type(model.optimizer)
        assert float(again.train_on_batch(batch, batch["target_ids"])) == pytest.approx(loss)
