"""Penalties on repetition in a SavedModel: what Python finds, with ops that every server has."""

import pathlib

import numpy as np
import pytest

import kformer
from kformer.export import SavedModelTranslator
from tests.export.saved_model import test_export
from tests.export.saved_model.test_models import padded, randomized, run

FROZEN_RUN = pathlib.Path(__file__).resolve().parents[2] / "frozen_run"
PENALTIES = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "way", [{"beam_size": 1}, {"beam_size": 4}, {"mode": "huggingface"}], ids=str
)
def test_the_same_text_as_the_translator(tmp_path, way, backend):
    if backend == "jax" or (backend == "torch" and way != {"beam_size": 4}):
        pytest.skip("one is enough to show that the options reach the process that exports")
    translator = kformer.Translator.load(FROZEN_RUN)
    pairs = kformer.examples.generate_pairs(60, seed=6, split="test", categories="time")
    texts = [pair.source for pair in pairs] + ["", "seven seven seven seven seven seven"]
    expected = translator.translate(texts, n_best=way.get("beam_size", 4), **way, **PENALTIES)
    plain = translator.translate(texts, n_best=way.get("beam_size", 4), **way)
    hypotheses = (
        [[each.text for each in row.hypotheses] for row in rows] for rows in (expected, plain)
    )
    assert sum(one != other for one, other in zip(*hypotheses, strict=True)) >= 10
    signatures = ["serving_default", "n_best"]
    saved = translator.export(tmp_path / "saved", signatures=signatures, **way, **PENALTIES)
    test_export.test_only_ops_that_a_server_has(tmp_path / "saved")
    found = SavedModelTranslator(saved).translate(texts, n_best=way.get("beam_size", 4))
    for one, other in zip(found, expected, strict=True):
        assert [each.text for each in one.hypotheses] == [each.text for each in other.hypotheses]
        scores = [[each.score for each in result.hypotheses] for result in (one, other)]
        np.testing.assert_allclose(*scores, atol=1e-3)


def test_a_single_text_compiled_by_xla(tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("TensorFlow computes a SavedModel, whatever backend exports it")
    translator = kformer.Translator.load(FROZEN_RUN)
    saved = translator.export(
        tmp_path / "saved", single=True, signatures=["serving_default"], **PENALTIES
    )
    module = SavedModelTranslator(saved, warm_up=8)
    for text in ("half past four in the afternoon", "seven seven seven"):
        assert module([text]) == translator([text], **PENALTIES)


def test_the_prompt_of_a_language_model_counts(tmp_path, rng, backend):
    if backend != "tensorflow":
        pytest.skip("TensorFlow computes a SavedModel, whatever backend exports it")
    sizes = {"num_layers": 2, "hidden_dim": 16, "num_heads": 2, "max_length": 32}
    model = randomized(kformer.TransformerDecoder(15, intermediate_dim=32, **sizes), rng)
    prompts = [[5, 6, 7, 5, 6], [], [9], [4, 4, 8, 4, 4, 8, 11, 9, 4]]
    for way in ({"beam_size": 1}, {"beam_size": 3}):
        options = {**way, **PENALTIES, "max_new_tokens": 9}
        expected = model.generate(prompts, **options)
        path = kformer.export.export_model(model, tmp_path / str(way["beam_size"]), **options)
        found = run(path, "token_ids", token_ids=padded(prompts))["continuation"]
        assert [[token for token in row if token] for row in found.tolist()] == expected
        assert expected != model.generate(prompts, **{**way, "max_new_tokens": 9})
