"""What a translation left out, against NumPy by hand."""

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.text.words import split_words
from kformer.translating import coverage
from kformer.translating.mistakes import Span
from kformer.translating.retry import retranslate
from tests.two_languages import CODES, TEXTS, new_translator

QUICKEST = pytest.mark.any_backend(quickest="torch")


def test_features_of_a_forward_pass(translator, texts):
    """A pair in a batch of several, against one pass of its own and loops, on each backend."""
    sources, targets = (side[:3] for side in texts)
    pairs = translator._reader.tokenize(sources, targets, translator.options)
    _, features = next(each for each in coverage._features(translator, pairs, 3) if each[0] == 1)
    row, labels = pairs.rows[1], pairs.labels[1]
    inputs = {"source_ids": [row], "target_ids": [[translator.model.start_id, *labels[:-1]]]}
    outputs = translator.model.inspect({name: np.array(ids) for name, ids in inputs.items()})
    logits = ops.convert_to_numpy(outputs["logits"])[0].astype("float64")
    weights = ops.convert_to_numpy(outputs["cross_attention_scores"][-1])[0].mean(axis=0)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chosen, best = logs[range(len(labels)), labels], logs.argmax(axis=1)
    words = split_words(sources[1])
    find = coverage.WordPairs(translator._reader, pairs).members[1]
    for word in range(len(words)):
        tokens = np.flatnonzero(find[0][:, word])
        mass = sum(weights[t, s] for t in range(len(labels)) for s in tokens)
        after = [weights[min(t + 1, len(labels) - 1), tokens].sum() for t in range(len(labels))]
        surprise = sum(
            (logs[t].max() - chosen[t]) * weights[t, tokens].sum()
            for t in range(len(labels))
            if best[t] not in labels
        )
        expected = np.log(max(after) + 0.02), np.log(mass + 0.02), surprise
        values = [features["omission"][name][word] for name in ("received", "mass", "surprise")]
        np.testing.assert_allclose(values, expected, atol=1e-4)
    surprise = len(words) * [logs[-1].max() - chosen[-1]]
    assert features["omission"]["surprise of the end"] == pytest.approx(surprise, abs=1e-4)
    assert features["omission"]["words"] == pytest.approx(len(words) * [np.log(len(words))])
    for word in range(len(split_words(targets[1]))):
        tokens = np.flatnonzero(find[1][:, word])
        value = features["addition"]["likelihood"][word]
        assert value == pytest.approx(chosen[tokens].mean(), abs=1e-4)
    around = features["addition"]["likelihood around"]
    likelihood = features["addition"]["likelihood"]
    assert around[0] == pytest.approx((2 * likelihood[0] + likelihood[1]) / 3)


@QUICKEST
def test_a_logistic_regression_is_the_most_probable():
    random = np.random.default_rng(0)
    features = random.normal(size=(400, 2)) * [1, 5] + 3
    labels = random.random(400) < 1 / (1 + np.exp(-(features @ [2, -0.3] - 4)))
    weights = coverage.logistic(features, labels, penalty=1e-9)

    def loss(weights):
        values = weights[0] + features @ weights[1:]
        return np.mean(np.log1p(np.exp(values)) - labels * values)

    for change in np.concatenate([np.eye(3), -np.eye(3)]) * 0.01:
        assert loss(weights) < loss(weights + change)


@QUICKEST
def test_words_are_planted():
    random = np.random.default_rng(0)
    words, alignment = list("abcdef"), [(i, 5 - i) for i in range(6)]
    for size in (1, 2, 3):
        chosen, dropped = coverage.plant(words, words, alignment, size, random)
        assert len(chosen) == size and dropped == {5 - i for i in chosen}
    assert coverage.plant(["a"], ["b"], [(0, 0)], 1, random) is None
    assert coverage.without_words("Ein  Mann, hier.", ["Ein", "Mann,", "hier."], {1}) == "Ein hier."
    assert coverage.without_words("四点半", ["四", "点", "半"], {1}) == "四半"


@QUICKEST
def test_calibration_tells_what_was_left_out(translator):
    pairs = kformer.examples.generate_pairs(300, seed=5, split="train", categories=("number",))
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    data = coverage.fault_features(translator, *sides, kformer.data.align_words(*sides))
    entry = {fault: coverage.fit_weights(rows) for fault, rows in data.items()}
    for fault, rows in data.items():
        judged = [(coverage._judged(row, entry, fault)[0], wrong.any()) for row, wrong in rows]
        clean = [value for value, is_wrong in judged if not is_wrong]
        assert 0 < np.mean([value >= 0.5 for value in clean]) <= 0.02
        faulty = [value for value, is_wrong in judged if is_wrong]
        assert np.mean(faulty) > 2 * np.mean(clean)
    # A run that was calibrated before there was a feature keeps its weights.
    row, _ = data["omission"][0]
    value, _ = coverage._judged(row, entry, "omission")
    assert value != coverage._judged({**row, "new": row["mass"]}, {}, "omission")[0]
    assert value == coverage._judged({**row, "new": row["mass"]}, entry, "omission")[0]


@QUICKEST
def test_translations_come_with_their_coverage(translator, texts):
    sources = [*texts[0][:2], "", "Call 555 at a@b.org"]
    found = translator(sources, coverage=True)
    assert [each.text for each in found] == translator(sources)
    assert found[2].coverage == coverage.Coverage(0.0, [], [])
    (span,) = (span for span in found[3].coverage.missing if span.kind == "address")
    assert span.text == "a@b.org" and sources[3][span.start : span.stop] == span.text
    assert found[3].coverage.is_doubtful
    again = translator.coverage(sources, [each.text for each in found])
    assert [each.coverage for each in found[:3]] == again[:3]
    with pytest.raises(ValueError, match="one translation"):
        translator(sources, coverage=True, n_best=2)
    # Nothing for something.
    (empty,) = translator.coverage(["noon"], [""])
    assert empty.probability == 1 and empty.missing[0].text == "noon"
    # More than the model reads: what needs no model is told.
    for size in (100, 10_000):
        long, short = translator.coverage(["Call 555.", sources[0]], ["5" * size, found[0].text])
        assert [span.kind for span in long.missing] == ["number"] and short == again[0]
    # A calibrated run reads unusual lengths alone.
    translator.config["coverage"] = {"lengths": [-9, 9], "languages": None}
    assert translator(sources[0], coverage=True).coverage.probability == 0


@QUICKEST
def test_a_calibration_is_for_its_direction():
    translator = new_translator()
    translator.config["coverage"] = {"lengths": [-9, 9], "languages": ["en", "de"]}
    judged = {}
    for code in CODES:
        one = translator.for_languages(target=code)
        pairs = one._reader.tokenize(TEXTS[:2], TEXTS[2:], one.options)
        judged[code] = coverage.coverages(one, pairs, 2, only_unusual=True)
    assert all(each.probability == 0 for each in judged["de"])
    assert all(each.probability > 0 for each in judged["fr"])


@QUICKEST
def test_a_doubtful_text_is_translated_again(translator, texts, monkeypatch):
    sources, results = texts[0][:2], translator.translate(texts[0][:2], beam_size=1)
    good = translator.coverage(sources, texts[1][:2])
    bad = coverage.Coverage(0.9, [Span(0, 4, sources[0][:4], 0.9)], [])
    judge = {text: coverage.Coverage(0.1, [], []) for text in texts[1]}
    wrong = results[0]._replace(hypotheses=[results[0].hypotheses[0]._replace(text="零")])
    monkeypatch.setattr(
        translator, "coverage", lambda s, t, batch_size: [judge.get(each, bad) for each in t]
    )
    others, after = retranslate(translator, sources, [wrong, results[1]], [bad, judge[texts[1][1]]])
    assert others[1] == results[1] and not after[1].retried, "it was not doubtful"
    assert others[0].text == texts[1][0] and after[0].retried
    assert others[0].score == pytest.approx(
        translator.score(sources[:1], texts[1][:1])[0], abs=1e-3
    )
    assert good
    # A first translation that did not end is longer than what the model reads.
    endless = wrong._replace(hypotheses=[results[0].hypotheses[0]._replace(text="零" * 99)])
    others, after = retranslate(translator, sources[:1], [endless], [bad])
    assert others[0].text == texts[1][0] and after[0].retried
    # What is longer than the model reads is not taken, either.
    text = ", ".join(["twenty to nine"] * 8)
    (long,) = translator.translate([text])
    assert retranslate(translator, [text], [long], [bad])[0] == [long]
    # What the model thinks far worse of is not taken, however well it covers the source.
    sizes = {t: len(translator.tokenizer.tokenize(t, special_tokens=True)) for t in texts[1]}
    monkeypatch.setattr(
        translator, "score", lambda s, t, batch_size: [-0.5 * sizes.get(each, 0) for each in t]
    )
    before = [wrong, results[1]], [bad, judge[texts[1][1]]]
    assert retranslate(translator, sources, *before) == before
