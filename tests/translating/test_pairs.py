"""Alignments by attention, and confidence, against NumPy by hand and torch.nn."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.data import alignment_error_rate
from kformer.translating.confidence import calibration_error
from kformer.translating.pairs import counted_labels
from kformer.translating.word_alignment import AlignmentSource, stored_source
from tests.translating.conftest import FROZEN

# Each function is compiled for each shape on JAX, so one test is enough there.
QUICKEST = pytest.mark.any_backend(quickest="torch")


@QUICKEST
def test_alignments_are_the_largest_weights_between_words(translator, texts):
    """Against the map of one translation, whose tokens are joined to words by hand."""
    sources, targets = (side[:6] for side in texts)
    translator.config["alignment"] = {"layer": 0, "head": 1, "after": False}
    found, checked = translator.align(sources, targets, batch_size=4), 0
    for source, target, alignment in zip(sources, targets, found, strict=True):
        shown = translator.attention(source, target)
        # Tokens of English words: a space sign begins a word; the end token is none.
        begins = [token.startswith("\u2581") for token in shown.source_tokens[:-1]]
        numbers = np.cumsum(begins) - 1
        expected, rows = [], []
        for row, token in enumerate(shown.target_tokens[:-1]):
            rows.append(row)  # A space sign alone belongs to the character after it.
            surface = token.removeprefix("\u2581")
            if len(surface) > 1:
                break  # A byte, or a piece of several words: the words before are enough.
            if surface:
                weights = shown.weights[0, 1, rows][:, : len(numbers)].mean(axis=0)
                expected.append((int(np.bincount(numbers, weights).argmax()), len(expected)))
                rows = []
        checked += len(expected)
        assert sorted(expected) == [pair for pair in alignment if pair[1] < len(expected)]
    assert checked > 10


@QUICKEST
def test_empty_texts_and_errors(translator):
    assert translator.align(["", "noon", ""], ["", "", "正午"]) == [[], [], []]
    sure = translator.confidence(["noon", ""], ["", ""])
    assert [each.words for each in sure] == [[], []] and all(0 <= each.mean <= 1 for each in sure)
    assert translator.align([], []) == [] and translator.confidence([], []) == []
    with pytest.raises(ValueError, match="differ in length"):
        translator.align(["noon"], [])
    with pytest.raises(ValueError, match="no token"):
        translator.calibrate([], [])
    with pytest.raises(ValueError, match="the alignments"):
        translator.calibrate(["noon"], ["正午"], alignments=[])


@QUICKEST
def test_the_attention_with_the_fewest_errors_is_chosen(translator, texts):
    sources, targets = (side[:16] for side in texts)
    layers = len(translator.model.network.decoder_layers)
    assert stored_source(translator) == AlignmentSource(layers - 1, None, False)
    translator.config["alignment"] = {"layer": layers - 1, "head": 1, "after": True}
    gold = translator.align(sources, targets)
    found = translator.calibrate(sources, targets, alignments=gold)["alignment"]
    assert found == {"layer": layers - 1, "head": 1, "after": True, "error": 0.0}
    assert translator.align(sources, targets) == gold
    chosen = translator.calibrate(sources, targets)["alignment"]
    again = translator.align(sources, targets)
    error = alignment_error_rate(again, kformer.data.align_words(sources, targets))
    assert chosen["error"] == pytest.approx(error, abs=1e-4)


def logits_of(translator, source, target):
    labels = translator.tokenizer.tokenize(target, side="target", special_tokens=True)
    row = translator.tokenizer.tokenize(source, special_tokens=True)
    inputs = {"source_ids": [row], "target_ids": [[translator.model.start_id, *labels[:-1]]]}
    inputs = {name: np.array(ids) for name, ids in inputs.items()}
    logits = translator.model(inputs, training=False)[0]
    return ops.convert_to_numpy(ops.cast(logits, "float32")).astype("float64"), np.array(labels)


@QUICKEST
def test_confidence_is_the_probability_at_the_temperature(translator, texts):
    """Against torch.nn, and the product over the tokens of a word by hand."""
    import torch

    source, target = texts[0][0], texts[1][0]
    translator.config["confidence"] = {"temperature": 1.7}
    (found,) = translator.confidence([source], [target])
    logits, labels = logits_of(translator, source, target)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    losses = loss(torch.tensor(logits / 1.7), torch.tensor(labels)).numpy()
    assert found.score == pytest.approx(-losses.sum(), abs=1e-4)
    assert found.mean == pytest.approx(math.exp(-losses.mean()), abs=1e-5)
    assert len(found.words) == len(found.word_probabilities) == len(target)
    assert max(found.word_probabilities) <= 1
    del translator.config["confidence"]
    plain = translator.confidence(*texts, batch_size=7)
    scores = translator.score(*texts)
    np.testing.assert_allclose([each.score for each in plain], scores, atol=1e-4)


@pytest.mark.heavy
@QUICKEST
def test_the_temperature_makes_the_text_most_probable(translator, texts):
    sources, targets = texts
    found = translator.calibrate(sources, targets)["confidence"]
    parts = [logits_of(translator, *pair) for pair in zip(sources, targets, strict=True)]
    logits, labels = (np.concatenate(part) for part in zip(*parts, strict=True))

    def loss(temperature):
        scaled = logits / temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        probabilities = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
        return -np.log(probabilities[range(len(labels)), labels]).mean(), probabilities

    best = loss(found["temperature"])[0]
    assert (
        best <= loss(found["temperature"] * 1.01)[0]
        and best <= loss(found["temperature"] / 1.01)[0]
    )
    assert found["tokens"] == len(labels)
    for temperature, name in ((1.0, "error_before"), (found["temperature"], "error")):
        _, probabilities = loss(temperature)
        top, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
        expected = 0
        for low in np.arange(15) / 15:
            inside = (top >= low) & (top < low + 1 / 15) | ((low == 14 / 15) & (top == 1))
            if inside.any():
                expected += inside.mean() * abs(top[inside].mean() - hits[inside].mean())
        assert found[name] == pytest.approx(expected, abs=2e-4)


@QUICKEST
def test_calibration_error_of_known_predictions():
    assert calibration_error([1.0, 1.0], [1, 1]) == 0
    assert calibration_error([1.0, 1.0], [1, 0]) == 0.5
    # Two bins of the same size, which are wrong by 0.2 and by 0.1.
    assert calibration_error([0.8] * 10 + [0.3] * 10, [1] * 10 + [1] * 2 + [0] * 8) == (
        pytest.approx(0.15)
    )
    assert calibration_error([], []) == 0


def test_translations_come_with_their_words(translator, texts):
    sources = [*texts[0][:3], ""]
    plain = translator(sources)
    found = translator(sources, alignment=True, confidence=True)
    assert [each.text for each in found] == plain
    assert [each.alignment for each in found] == translator.align(sources, plain)
    assert found[3].words == found[3].alignment == [] and found[3].confidence.mean == 1
    scores = [result.score for result in translator.translate(sources)]
    np.testing.assert_allclose([each.confidence.score for each in found], scores, atol=1e-3)
    (one, other) = translator(sources[0], alignment=True), translator(sources[0], confidence=True)
    assert one.confidence is None and one.alignment == found[0].alignment
    assert other.alignment is None and other.confidence.words == found[0].words
    with pytest.raises(ValueError, match="leave n_best"):
        translator(sources, alignment=True, n_best=2)


@QUICKEST
def test_an_ensemble_has_confidence_but_no_alignment(texts):
    pair = kformer.Translator.load([FROZEN, FROZEN])
    one = kformer.Translator.load(FROZEN)
    sources, targets = (side[:3] for side in texts)
    assert "alignment" not in pair.calibrate(sources, targets)
    pair.config.clear()
    sure = [each.score for each in pair.confidence(sources, targets)]
    expected = [each.score for each in one.confidence(sources, targets)]
    np.testing.assert_allclose(sure, expected, atol=1e-3)
    with pytest.raises(ValueError, match="An ensemble cannot be asked for alignments"):
        pair(sources, alignment=True)


@pytest.mark.any_backend
def test_the_end_token_counts_and_what_a_model_writes_behind_it_does_not():
    """A target of mBART ends with the end token and its language."""
    tokenizer = SimpleNamespace(target_prefix=(9,), end_id=3)
    for labels, end in (([9, 5, 6, 3], 4), ([9, 5, 6, 3, 9], 4), ([9, 5], 2)):
        assert counted_labels(tokenizer, (9,), labels) == slice(1, end)
