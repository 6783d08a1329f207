"""What a translation left out, and what it has without a source: a probability for each word.

A logistic function combines what one forward pass of the model tells of each word; a second one
judges the sentence by its words and its length. Both are fitted on translations by people from
which words were taken. `kformer.translating.mistakes` finds what needs no model.

Shape letters: M words and S tokens of the source, N words and T tokens of the translation, K
features.
"""

import re

import numpy as np
from keras import ops

from kformer.data.corpora.languages import base_code
from kformer.text.numerals import SPELLED
from kformer.text.words import split_words
from kformer.translating import mistakes
from kformer.translating.mistakes import Span
from kformer.translating.pairs import TextPairs
from kformer.translating.translation import DOUBTFUL, Coverage
from kformer.translating.word_alignment import COVERAGE, WordPairs, stored_source

# Of untouched translations, for each of both faults.
_FALSE_ALARMS = 0.01
_MOST_PAIRS, _FEWEST_PAIRS = 1000, 100
_SMOOTHING, _WINDOW = 0.02, 3
# On either side, the share of pairs whose lengths are unusual.
_UNUSUAL = 0.04
# Weights without calibration, and without lists of tokens: those of three models with four layers
# (English-German, both directions of English-Chinese) together. `benchmarks/coverage.py` has the
# command. Each list begins with the constant. They lack the surprise of the end and the number of
# words, which calibration fits.
_DEFAULTS: dict = {
    "omission": {
        "words": {
            "constant": -4.1428,
            "received": 0.3298,
            "mass": -0.723,
            "surprise": 0.2601,
            "rarity": 0.1084,
            "received around": -0.9427,
            "mass around": -0.0793,
            "length": 2.669,
        },
        "sentence": [0.3205, 0.0398, 1.295, -0.2763, 2.5352],
    },
    "addition": {
        "words": {
            "constant": -0.6898,
            "likelihood": -0.2462,
            "surprise": -0.1388,
            "inside": -2.1693,
            "focus": -0.0789,
            "rarity": -0.5959,
            "likelihood around": -0.0448,
            "surprise around": 0.2406,
            "focus around": 0.1714,
            "length": -3.8682,
        },
        "sentence": [1.0227, -0.3366, 2.3467, -1.1808, -3.4496],
    },
}


def coverages(translator, pairs, batch_size, progress=None, only_unusual=False):
    """Returns the `Coverage` of each pair.

    Args:
        translator: `kformer.Translator` of one model.
        pairs: `TextPairs`.
        batch_size, progress: as for `PairReader.run`.
        only_unusual: bool, default `False`. Whether the model of a calibrated run reads those pairs
            alone whose lengths are unlike those of 92 % of pairs: that saves most of the time.
    """
    entry, known = translator.config.get(COVERAGE, {}), _model_languages(translator)
    fitted = entry.get("languages") or (None, None)
    if any(a and b and base_code(a) != base_code(b) for a, b in zip(known, fitted, strict=True)):
        entry, fitted = {}, known  # Calibrated for another direction of this model.
    codes = [a or b for a, b in zip(known, fitted, strict=True)]
    has_words = all(code and base_code(code) in SPELLED for code in codes)
    others = mistakes.are_in_other_language(pairs.targets, codes[1])
    judged, indices = [None] * len(others), range(len(others))
    if only_unusual and "lengths" in entry:
        low, high = entry["lengths"]
        texts = list(zip(pairs.sources, pairs.targets, strict=True))
        indices = [i for i in indices if not low <= _length(*texts[i]) <= high]
    read = TextPairs(*([side[i] for i in indices] for side in pairs))
    for i, sides in _features(translator, read, batch_size, progress):
        judged[indices[i]] = [_judged(side, entry, name) for name, side in sides.items()]
    rows = zip(pairs.sources, pairs.targets, judged, others, strict=True)
    return [_coverage(*row, has_words) for row in rows]


def without_model(source, target):
    """Returns the `Coverage` by what needs no model."""
    return _coverage(source, target, None)


def _model_languages(translator):
    return translator.tokenizer.source_language, translator.tokenizer.target_language


def _length(source, target):
    """The logarithm of the ratio of lengths in bytes, both with eight more."""
    return float(np.log((len(source.encode()) + 8) / (len(target.encode()) + 8)))


def _coverage(source, target, judged, is_other_language=False, has_words=False):
    sides = mistakes.find_mistakes(source, target, is_other_language, has_words)
    probability = 0.0
    for text, spans, judgement in zip((source, target), sides, judged or (None, None), strict=True):
        if judgement is not None:
            value, words = judgement
            probability = max(probability, value)
            if value >= DOUBTFUL:
                spans += _word_spans(text, words, value)
        elif bool(source.strip()) > bool(target.strip()) and text:
            spans.append(Span(0, len(text), text, 1.0))
        spans.sort()
    probability = max([probability, *(span.probability for side in sides for span in side)])
    return Coverage(round(probability, 4), *sides)


def _word_spans(text, probabilities, least):
    """The words that are more probably wrong than not, neighbours as one span; or else the most
    probable one.
    """
    marked = probabilities >= min(DOUBTFUL, probabilities.max())
    places, spans = mistakes.word_spans(text, split_words(text)), []
    edges = np.flatnonzero(np.diff(marked, prepend=False, append=False)).reshape(-1, 2)
    for first, end in edges.tolist():
        start, stop = places[first][0], places[end - 1][1]
        value = round(float(probabilities[first:end].max() * least), 4)
        spans.append(Span(start, stop, text[start:stop], value))
    return spans


# Features.


def _features(translator, pairs, batch_size, progress=None):
    """Yields the index of each pair, and for each fault a dict of features `[M]` or `[N]`."""
    source, reader = stored_source(translator), translator._reader
    members, lists = WordPairs(reader, pairs).members, translator.token_lists

    def compute(model, source_ids, target_ids, labels):
        outputs = model.inspect({"source_ids": source_ids, "target_ids": target_ids})
        weights = ops.cast(outputs["cross_attention_scores"][source.layer], "float32")
        mean = ops.mean(weights, axis=1)
        aligned = mean if source.head is None else weights[:, source.head]
        logits = ops.cast(outputs["logits"], "float32")
        norm = ops.logsumexp(logits, axis=-1)
        chosen = ops.take_along_axis(logits, ops.expand_dims(labels, -1), -1)[..., 0] - norm
        return mean, aligned, chosen, ops.max(logits, axis=-1) - norm, ops.argmax(logits, axis=-1)

    name = ("coverage", *source)
    for i, (mean, aligned, *tokens) in reader.run(name, compute, pairs, batch_size, progress):
        row, labels = pairs.rows[i], pairs.labels[i]
        if not all(matrix.shape[1] for matrix in members[i]):
            continue
        mean, aligned = (weights[: len(labels), : len(row)] for weights in (mean, aligned))
        tokens = [np.array(values[: len(labels)]) for values in tokens]
        length = _length(pairs.sources[i], pairs.targets[i])
        ranks = None if lists is None else _ranks(lists, row, labels)
        yield i, word_features(mean, aligned, tokens, row, labels, members[i], length, ranks)


def _ranks(lists, row, labels):
    """How far down each target token stands in the list of each source token, `[T, S]`."""
    ranks = np.full((len(labels), len(row)), 100.0)
    for column, token in enumerate(row):
        places = {target: rank for rank, target in enumerate(lists.lists[token])}
        ranks[:, column] = [places.get(label, 100.0) for label in labels]
    return np.log1p(ranks)


def word_features(mean, aligned, tokens, row, labels, members, length, ranks=None):
    """Returns what a forward pass tells of the words of both sides.

    Args:
        mean, aligned: float arrays `[T, S]`. Attention, by which a token is predicted: the mean of
            the heads, and the head that aligns.
        tokens: the log-probability of each target token, that of the likeliest one, and that one's
            id: arrays `[T]`.
        row, labels: lists of int. The tokens of both sides.
        members: arrays `[S, M]` and `[T, N]` with 1 where a token belongs to a word.
        length: float. The logarithm of the ratio of lengths.
        ranks: float array `[T, S]`, default `None`. The logarithms of the ranks in lists of tokens.

    Returns:
        Dict of "omission" to a dict of name to float array `[M]`, and of "addition" to one with
        arrays `[N]`.
    """
    (of_source, of_target), (chosen, top, best) = members, tokens
    after = np.concatenate([aligned[1:], aligned[-1:]])  # The position that has read the token.
    # Where the model expected a token that never comes, what it looked at may be left out.
    surprise = (top - chosen) * ~np.isin(best, labels)
    omission = {
        "received": np.log((after @ of_source).max(axis=0) + _SMOOTHING),
        "mass": np.log((mean @ of_source).sum(axis=0) + _SMOOTHING),
        "surprise": surprise @ mean @ of_source,
        "rarity": np.log1p((np.array(row)[:, None] * of_source).max(axis=0)),
    }
    sizes = np.maximum(of_target.sum(axis=0), 1)
    addition = {
        "likelihood": chosen @ of_target / sizes,
        "surprise": (top - chosen) @ of_target / sizes,
        "inside": np.log((after @ of_source).sum(axis=1) + _SMOOTHING) @ of_target / sizes,
        "focus": np.log((after @ of_source).max(axis=1) + _SMOOTHING) @ of_target / sizes,
        "rarity": np.log1p((np.array(labels)[:, None] * of_target).max(axis=0)),
    }
    near = {"omission": ("received", "mass"), "addition": ("likelihood", "surprise", "focus")}
    # Where the end of a text was left out, the model expected a word in place of the end.
    omission["surprise of the end"] = np.full(of_source.shape[1], top[-1] - chosen[-1])
    if ranks is not None:
        omission["rank"] = ranks.min(axis=0) @ of_source / np.maximum(of_source.sum(axis=0), 1)
        addition["rank"] = ranks.min(axis=1) @ of_target / sizes
        near = {fault: (*names, "rank") for fault, names in near.items()}
    sides = {"omission": omission, "addition": addition}
    for fault, features in sides.items():
        features |= {f"{name} around": _around(features[name]) for name in near[fault]}
        count = len(features["rarity"])
        features |= {"length": np.full(count, length), "words": np.full(count, np.log(count))}
    return sides


def _around(values):
    """The mean of each value and its neighbours."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    return np.convolve(padded, np.full(3, 1 / 3), "valid")


def sentence_features(scores, length):
    """Returns what the words tell of their sentence, `[4]`.

    Args:
        scores: float array `[M]`. The logits of the words.
        length: float. The logarithm of the ratio of lengths.
    """
    size = min(_WINDOW, len(scores))
    windows = np.convolve(scores, np.full(size, 1 / size), "valid")
    return np.array([scores.max(), windows.max(), np.log(_probability(scores).sum()), length])


def _probability(scores):
    return 1 / (1 + np.exp(-np.clip(scores, -30, 30)))


def _judged(features, entry, fault):
    """The probability of a sentence's fault, and those of its words `[M]`."""
    weights = entry.get(fault, _DEFAULTS[fault])
    if not set(weights["words"]) <= {"constant", *features}:  # Its lists of tokens are gone.
        weights = _DEFAULTS[fault]
    scores = weights["words"]["constant"] + sum(
        weights["words"][name] * values
        for name, values in features.items()
        if name in weights["words"]
    )
    constant, *others = weights["sentence"]
    value = constant + sentence_features(scores, features["length"][0]) @ others
    return float(_probability(value)), _probability(scores)


# Calibration.


def without_words(text, words, indices):
    """Returns a text without some of its words.

    Args:
        text: str.
        words: list of str, its words.
        indices: container of int.
    """
    parts, end = [], 0
    for i, (start, stop) in enumerate(mistakes.word_spans(text, words)):
        if i in indices:
            parts.append(text[end:start])
            end = stop
    return re.sub(" +", " ", "".join([*parts, text[end:]])).strip()


def plant(source, target, alignment, size, random):
    """Chooses neighbouring words of a source, and those of its translation that belong to them.

    Args:
        source, target: lists of str. The words of both sides.
        alignment: list of pairs (source index, target index).
        size: int. How many words of the source.
        random: `numpy.random.Generator`.

    Returns:
        Two sets of indices; `None` if no words go together so.
    """
    for _ in range(8):
        start = int(random.integers(0, max(1, len(source) - size + 1)))
        chosen = set(range(start, min(start + size, len(source))))
        links = [pair for pair in alignment if pair[0] in chosen]
        others = {j for i, j in alignment if i not in chosen}
        dropped = {j for _, j in links} - others
        aligned = {i for i, j in links if j in dropped}
        least = max(1, size - 1)
        if least <= len(dropped) < len(target) - 1 and len(aligned) >= least < len(source):
            return chosen, dropped
    return None


def fit_coverage(translator, sources, targets, alignments, batch_size=32):
    """Fits the weights on translations by people, from which words are taken.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of str, such as a validation set.
        alignments: list with an alignment of words for each pair.
        batch_size: int, default 32.

    Returns:
        Dict for a run's config: `omission` and `addition` with the weights of words and sentences,
        `lengths`, between which the usual ratios are, and `languages`, of which each is `None` if
        it is unknown; empty where there are too few pairs.
    """
    data = fault_features(translator, sources, targets, alignments, batch_size)
    if min(len(rows) for rows in data.values()) < _FEWEST_PAIRS:
        return {}
    lengths = [_length(*pair) for pair in zip(sources, targets, strict=True)]
    low, high = np.quantile(lengths, (_UNUSUAL, 1 - _UNUSUAL)).round(4).tolist()
    weights = {fault: fit_weights(rows) for fault, rows in data.items()}
    found = mistakes.languages_of(sources, targets) or (None, None)
    languages = [a or b for a, b in zip(_model_languages(translator), found, strict=True)]
    return {**weights, "lengths": [low, high], "languages": languages}


def fault_features(translator, sources, targets, alignments, batch_size=32):
    """Returns what `fit_weights` takes, for both faults; arguments are those of `fit_coverage`."""
    random, rows = np.random.default_rng(0), {"omission": [], "addition": []}
    chosen = np.linspace(0, len(sources) - 1, min(len(sources), _MOST_PAIRS)).round().astype(int)
    texts, faults = [], []
    for i in chosen.tolist():
        source, target = sources[i], targets[i]
        words, others = split_words(source), split_words(target)
        for fault in rows:
            size = int(random.integers(1, max(1, len(words) // 2) + 1))
            planted = plant(words, others, alignments[i], size, random)
            if planted is None:
                continue
            texts.append((source, target))
            faults.append((fault, ()))
            if fault == "omission":
                texts.append((source, without_words(target, others, planted[1])))
            else:
                texts.append((without_words(source, words, planted[0]), target))
            faults.append((fault, planted[fault == "addition"]))
    sides = [[pair[side] for pair in texts] for side in (0, 1)]
    pairs = translator._reader.tokenize(*sides, translator.options)
    for i, sides in _features(translator, pairs, batch_size):
        fault, wrong = faults[i]
        features = sides[fault]
        labels = np.isin(np.arange(len(features["length"])), list(wrong))
        rows[fault].append((features, labels))
    return rows


def fit_weights(rows):
    """Fits the weights of one fault.

    Args:
        rows: list of pairs of a dict of name to float array `[M]`, and a boolean array `[M]`: the
            features of a sentence's words, and which of them are wrong.

    Returns:
        Dict of `words`, name to weight, and `sentence`, the weights of `sentence_features`, the
        constant first. So many of the sentences without a fault are doubtful as can be borne.
    """
    names = list(rows[0][0])
    matrices = [np.stack([features[name] for name in names], axis=1) for features, _ in rows]
    labels = [wrong for _, wrong in rows]
    weights = logistic(np.concatenate(matrices), np.concatenate(labels))
    scores = [weights[0] + matrix @ weights[1:] for matrix in matrices]
    lengths = [features["length"][0] for features, _ in rows]
    table = np.stack([sentence_features(*each) for each in zip(scores, lengths, strict=True)])
    has_fault = np.array([wrong.any() for wrong in labels])
    sentence = logistic(table, has_fault)
    values = sentence[0] + table[~has_fault] @ sentence[1:]
    sentence[0] -= np.quantile(values, 1 - _FALSE_ALARMS)
    rounded = [round(float(weight), 4) for weight in sentence]
    names = ["constant", *names]
    words = {name: round(float(each), 4) for name, each in zip(names, weights, strict=True)}
    return {"words": words, "sentence": rounded}


def logistic(features, labels, penalty=1.0, steps=50):
    """Fits a logistic regression by Newton's method.

    Args:
        features: float array `[n, K]`.
        labels: boolean array `[n]`.
        penalty: float, default 1. Of the squares of the weights, in standard deviations.
        steps: int, default 50. The most steps.

    Returns:
        float array `[1 + K]`, the constant first.
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-6
    inputs = np.c_[np.ones(len(features)), (features - mean) / deviation]
    weights, ridge = np.zeros(inputs.shape[1]), penalty * np.eye(inputs.shape[1])
    ridge[0, 0] = 1e-6
    for _ in range(steps):
        values = _probability(inputs @ weights)
        slope = inputs.T @ (labels - values) - ridge @ weights
        step = np.linalg.solve((inputs.T * (values * (1 - values))) @ inputs + ridge, slope)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    others = weights[1:] / deviation
    return np.concatenate([[weights[0] - mean @ others], others])
