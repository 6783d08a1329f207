"""Several models that translate together as one SavedModel."""

import pathlib

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.export import SavedModelTranslator
from kformer.saving import load_run, save_run
from kformer_cli.main import main

FROZEN = pathlib.Path(__file__).parents[2] / "frozen_run"
SOURCES = ["half past four", "noon", "", "a quarter to nine in the evening", "seven o'clock"]
# JAX makes it in the same process as PyTorch does.
pytestmark = pytest.mark.skipif(keras.backend.backend() == "jax", reason="PyTorch stands for it")


@pytest.fixture
def runs(tmp_path, rng):
    """A run, and another of its vocabulary with other weights."""
    model, tokenizer, config = load_run(FROZEN)
    for weight in model.trainable_variables:
        value = ops.convert_to_numpy(weight)
        noise = rng.normal(size=value.shape) * value.std() * 0.3
        weight.assign((value + noise).astype("float32"))
    return [str(FROZEN), str(save_run(tmp_path / "other", model, tokenizer, config))]


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [None, pytest.param("int8", marks=pytest.mark.slow)])
def test_it_translates_as_in_python(runs, tmp_path, dtype, backend):
    if dtype is not None and backend != "tensorflow":
        pytest.skip("one is enough to show that several models reach the process that exports")
    together = kformer.Translator.load(runs)
    command = ["export", runs[0], "--ensemble", runs[1], "--output", str(tmp_path / "both")]
    assert main([*command, *(["--dtype", dtype] if dtype else [])]) == 0
    found = SavedModelTranslator(tmp_path / "both").translate(SOURCES)
    alone = [each.score for each in kformer.Translator.load(runs[0]).translate(SOURCES)]
    expected = together.translate(SOURCES)
    scores, wanted = (np.array([each.score for each in part]) for part in (found, expected))
    assert np.abs(alone - wanted).max() > 1e-2, "the second model counts"
    if dtype is None:
        assert [each.text for each in found] == [each.text for each in expected]
        np.testing.assert_allclose(scores, wanted, atol=1e-3)
    else:
        # Rounded, they are nearer to the ensemble than its first model is.
        assert np.abs(scores - wanted).mean() < 0.5 * np.abs(alone - wanted).mean()


def test_what_an_ensemble_cannot_have(runs, tmp_path):
    together = kformer.Translator.load(runs)
    for name in ("attention", "alignment"):
        with pytest.raises(ValueError, match=f"has no signature {name}"):
            together.export(tmp_path / "both", signatures=["serving_default", name])
    with pytest.raises(ValueError, match="cannot be exported as onnx: take one of its models"):
        together.export(tmp_path / "both", "onnx")
    assert not (tmp_path / "both").exists()
