"""Several models that translate together."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import Scorer, Searcher, SearchOptions
from kformer.models import Ensemble
from kformer.saving.run_directory import update_config
from tests.decoding.small_models import BEAM, END, LIMITS, assert_same, sentences, transformer

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"


@pytest.fixture(scope="module")
def models():
    return [
        transformer(),
        transformer(seed=5),
        transformer(seed=7, num_decoder_layers=1, hidden_dim=12, share_output=True),
    ]


@pytest.fixture(scope="module")
def source_ids():
    return sentences(6)


@pytest.mark.parametrize(
    "options",
    [
        BEAM,
        SearchOptions(beam_size=1, **LIMITS),
        SearchOptions(beam_size=1, repetition_penalty=1.6, **LIMITS),
        SearchOptions(sampling=True, repetition_penalty=1.6, seed=1, **LIMITS),
    ],
    ids=["beam", "greedy", "greedy_penalised", "samples_penalised"],
)
def test_an_ensemble_of_one_model_twice_equals_the_model(models, source_ids, options):
    alone = Searcher(models[0], options)(source_ids)
    assert_same(Searcher(Ensemble([models[0], models[0]]), options)(source_ids), alone)


def test_greedy_tokens_and_scores_are_those_of_the_mean_probability(models, source_ids):
    """By whole passes without a cache, one token at a time, in NumPy."""
    found = Searcher(Ensemble(models), SearchOptions(beam_size=1, **LIMITS))(source_ids)
    limits = SearchOptions(beam_size=1, **LIMITS).limits((source_ids != 0).sum(axis=1))
    # Padding behind a token has no effect on it, and one shape is compiled once.
    target_ids = np.zeros((len(limits), max(limits) + 1), "int32")
    target_ids[:, 0] = 2
    said, totals = [[] for _ in limits], np.zeros(len(limits))
    for step in range(max(limits) + 1):
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        logits = np.array(
            [ops.convert_to_numpy(model(inputs, training=False))[:, step] for model in models],
            "float64",
        )
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = (shares / shares.sum(axis=-1, keepdims=True)).mean(axis=0)
        allowed = probabilities.copy()
        allowed[:, [0, 2]] = 0
        for row, limit in enumerate(limits):
            if len(said[row]) == step and END not in said[row]:
                token = END if step == limit else int(allowed[row].argmax())
                totals[row] += np.log(probabilities[row, token])
                said[row].append(token)
                target_ids[row, step + 1 : step + 2] = token
    assert [[token for token in ids.tolist() if token] for ids in found.ids[:, 0]] == said
    np.testing.assert_allclose(found.scores[:, 0], totals, atol=1e-4)


def test_scores_of_a_search_are_those_of_the_scorer(models, source_ids):
    ensemble = Ensemble(models)
    found = Searcher(ensemble, dataclasses.replace(BEAM, n_best=1))(source_ids)
    lengths = (found.ids[:, 0] != 0).sum(axis=1)
    np.testing.assert_allclose(
        Scorer(ensemble)(source_ids, found.ids[:, 0], lengths), found.scores[:, 0], atol=1e-4
    )


@pytest.mark.any_backend
def test_models_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="needs a model at least"):
        Ensemble([])
    with pytest.raises(ValueError, match="need one vocabulary, but their end_id is 3, 4"):
        Ensemble([transformer(), transformer(end_id=4)])


def test_runs_translate_together(tmp_path):
    shutil.copytree(FROZEN, tmp_path / "other")
    update_config(tmp_path / "other", {"confidence": {"temperature": 2.0}})
    translator = kformer.Translator.load([tmp_path / "other", FROZEN])
    assert "confidence" not in translator.config
    texts = ["half past four", "seven o'clock"]
    assert translator(texts) == kformer.Translator.load([FROZEN])(texts)
    for refused, argument in (
        (translator.save, tmp_path / "run"),
        (lambda path: translator.export(path, "ctranslate2"), tmp_path / "saved"),
        (translator.attention, "a"),
    ):
        with pytest.raises(ValueError, match="An ensemble cannot be"):
            refused(argument)
    assert not (tmp_path / "run").exists() and not (tmp_path / "saved").exists()
    model = kformer.Translator.load(FROZEN).model
    tokenizer = kformer.Tokenizer.train(
        texts=[pair.source for pair in kformer.examples.generate_pairs(200)],
        vocabulary_size=330,
        model_type="unigram",
    )
    kformer.Translator(model, tokenizer).save(tmp_path / "third")
    with pytest.raises(ValueError, match="third has another tokenizer than"):
        kformer.Translator.load([FROZEN, tmp_path / "third"])
