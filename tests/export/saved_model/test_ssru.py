"""A model with an SSRU decoder as a SavedModel: in float32, bfloat16 and int8, and by XLA."""

import keras
import numpy as np
import pytest

import kformer
from kformer.export import SavedModelTranslator
from tests.export.saved_model.test_export import FROZEN_RUN, run_bare

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="from other backends it is made by this one"
    ),
]

TEXTS = ["noon", "half past four in the afternoon", "", "twenty to six"]


@pytest.fixture(scope="module")
def translator():
    tokenizer = kformer.Tokenizer.load(FROZEN_RUN / "tokenizer")
    sizes = {"hidden_dim": 32, "intermediate_dim": 64, "num_heads": 4, "max_length": 24}
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    keras.utils.set_random_seed(1)
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "decoder_autoregression": "ssru"}
    model = kformer.Transformer(tokenizer.vocabulary_size, **sizes, **ids, **layers)
    return kformer.Translator(model, tokenizer)


def test_float32(translator, tmp_path):
    options = {"single": True, "signatures": ["serving_default", "attention"]}
    folder = translator.export(tmp_path / "exact", beam_size=2, max_length=20, **options)
    outputs = run_bare(folder, TEXTS[:1])
    assert sorted(outputs) == ["attention", "serving_default", "single"]
    model = SavedModelTranslator(folder)
    found = translator.translate(TEXTS, beam_size=2, max_length=20)
    assert model(TEXTS) == [result.text for result in found]
    scores = outputs["serving_default"]["score"].astype(float)
    np.testing.assert_allclose(scores, [found[0].score], atol=1e-4)
    np.testing.assert_allclose(outputs["single"]["score"].astype(float), scores, atol=1e-4)
    weights = outputs["attention"]["attention"].astype(float)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.slow), "int8"])
def test_smaller_matrices(translator, tmp_path, dtype):
    names = ["serving_default", *(["attention"] if dtype == "int8" else [])]
    options = {"beam_size": 2, "max_length": 20, "dtype": dtype}
    outputs = run_bare(translator.export(tmp_path / dtype, **options, signatures=names), TEXTS)
    found = translator.translate(TEXTS, beam_size=2, max_length=20)
    scores = outputs["serving_default"]["score"].astype(float)
    np.testing.assert_allclose(scores, [result.score for result in found], rtol=0.03)
    if dtype == "int8":
        weights = outputs["attention"]["attention"].astype(float)
        assert np.isfinite(weights).all() and weights.shape[:3] == (4, 1, 4)
