"""Minimum Bayes risk: its utility is sacreBLEU's chrF, and the best of the samples is chosen."""

import pathlib

import numpy as np
import pytest
import sacrebleu

import kformer
from kformer.translating.minimum_risk import expected_chrf

pytestmark = pytest.mark.any_backend(quickest="torch")
FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


def sacrebleu_chrf(texts):
    """The mean chrF of each text against all."""
    pairs = [[sacrebleu.sentence_chrf(one, [other]).score for other in texts] for one in texts]
    return np.mean(pairs, axis=1)


@pytest.mark.parametrize("alphabet", ["ab ", "abcdefgh  ", "一二三点半 "])
def test_the_utility_is_that_of_sacrebleu(rng, alphabet):
    for _ in range(10):
        texts = ["".join(rng.choice([*alphabet], rng.integers(0, 30))) for _ in range(7)]
        texts += ["", "a", texts[0]]
        np.testing.assert_allclose(expected_chrf(texts), sacrebleu_chrf(texts), atol=1e-9)


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN)


TEXTS = ["half past four in the afternoon", "", "twenty to six", "seven seven seven"]
SAMPLES = {"temperature": 3.0, "seed": 5, "max_length": 12}


def test_the_sample_that_is_most_like_the_others(translator):
    samples = translator.translate(TEXTS, sampling=True, n_best=8, **SAMPLES)
    found = translator.translate(TEXTS, mbr=8, **SAMPLES)
    for all_, best in zip(samples, found, strict=True):
        texts = [hypothesis.text for hypothesis in all_.hypotheses]
        utilities = sacrebleu_chrf(texts)
        (hypothesis,) = best.hypotheses
        assert hypothesis.rank == pytest.approx(utilities.max(), abs=1e-6)
        assert hypothesis.text in [
            text
            for text, utility in zip(texts, utilities, strict=True)
            if utility > hypothesis.rank - 1e-6
        ]
    # It need not be the first sample, and does not depend on what is translated beside it.
    assert [all_.text for all_ in samples] != [best.text for best in found]
    assert translator(TEXTS[2:], mbr=8, first_index=2, **SAMPLES) == [
        best.text for best in found[2:]
    ]
    assert translator(TEXTS[2], mbr=8, first_index=2, **SAMPLES) == found[2].text


def test_several_of_the_best_are_different_texts(translator):
    (found,) = translator.translate(TEXTS[:1], mbr=16, n_best=16, **{**SAMPLES, "temperature": 2.0})
    texts = [hypothesis.text for hypothesis in found.hypotheses]
    distinct = len(set(texts))
    assert 1 < distinct < 16 and len(set(texts[:distinct])) == distinct
    ranks = [hypothesis.rank for hypothesis in found.hypotheses[:distinct]]
    assert ranks == sorted(ranks, reverse=True)


def test_arguments_that_do_not_fit_together(translator):
    with pytest.raises(ValueError, match="mbr.* 1"):
        translator(TEXTS, mbr=1)
    with pytest.raises(ValueError, match="4 samples cannot give the 5 best: raise mbr to 5"):
        translator(TEXTS, mbr=4, n_best=5)
    with pytest.raises(ValueError, match="leave one out"):
        translator(TEXTS, mbr=4, alternatives=2)
