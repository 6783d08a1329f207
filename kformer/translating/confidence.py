"""How sure a model is of the words of a translation: calibrated probabilities."""

import numpy as np
from keras import ops

from kformer.text.words import TokenWords, split_words
from kformer.translating.translation import Confidence

# The key of a run's `config.json` that has the temperature.
CONFIDENCE = "confidence"
_BINS = 15
_STEPS = 30
_STATISTICS = ("log_probability", "top", "hit", "slope", "variance")


def confidences(reader, pairs, config, batch_size, progress=None):
    """Returns the `Confidence` of each pair; an empty translation is certain.

    Args:
        reader: `PairReader`.
        pairs: `TextPairs`.
        config: dict. The run's configuration, which may have a temperature.
        batch_size, progress: as for `PairReader.run`.
    """
    temperature = config.get(CONFIDENCE, {}).get("temperature", 1.0)
    find = TokenWords(reader.tokenizer.vocabulary("target"))
    results = [Confidence(0.0, 1.0, [], []) for _ in pairs.labels]
    for i, values in _statistics(reader, pairs, 1 / temperature, batch_size, progress):
        values = values["log_probability"]
        counted = values[pairs.counted[i]]
        words = split_words(pairs.targets[i])
        sums = np.zeros(len(words))
        for value, indices in zip(values, find(pairs.labels[i], words), strict=True):
            sums[indices.start : indices.stop] += value
        mean = float(np.exp(counted.mean())) if len(counted) else 1.0
        results[i] = Confidence(float(counted.sum()), mean, words, np.exp(sums).tolist())
    return results


def fit_temperature(reader, pairs, batch_size=32):
    """Fits the temperature under which given translations are most probable.

    Args:
        reader: `PairReader`.
        pairs: `TextPairs`, such as a validation set.
        batch_size: int, default 32.

    Returns:
        Dict for a run's config: `temperature`, `error_before` and `error`, the expected calibration
        errors without it and with it, and `tokens`, how many were counted.

    Raises:
        ValueError: the targets have no token.

    References:
        Guo et al. 2017, "On calibration of modern neural networks".
    """
    first = statistics = token_statistics(reader, pairs, 1.0, batch_size)
    if not len(first["hit"]):
        raise ValueError("There is no token to calibrate with: give some translated sentences.")
    beta = 1.0
    for _ in range(_STEPS):
        # Newton's method: the log-likelihood is concave in the inverse of the temperature.
        step = statistics["slope"].sum() / max(statistics["variance"].sum(), 1e-12)
        after = float(np.clip(beta + step, beta / 2, beta * 2))
        is_near = abs(after - beta) < 1e-4 * beta
        beta = float(np.clip(after, 0.01, 100))
        statistics = token_statistics(reader, pairs, beta, batch_size)
        if is_near:
            break
    before, error = (calibration_error(each["top"], each["hit"]) for each in (first, statistics))
    values = {"temperature": 1 / beta, "error_before": before, "error": error}
    values = {name: round(value, 4) for name, value in values.items()}
    return {**values, "tokens": len(first["hit"])}


def token_statistics(reader, pairs, beta=1.0, batch_size=32):
    """Returns what a model predicts for each token of given translations.

    Args:
        reader: `PairReader`.
        pairs: `TextPairs`.
        beta: float, default 1. Logits are multiplied by it: 1 / temperature.
        batch_size: int, default 32.

    Returns:
        Dict of float64 arrays `[tokens]`: `log_probability` of the token; `top`, the probability of
        the likeliest one, and `hit`, 1 where that is the token; `slope` and `variance`, the first
        derivative of the log-probability by `beta` and the second one's opposite.
    """
    arrays = {name: [np.zeros(0)] for name in _STATISTICS}
    for i, statistics in _statistics(reader, pairs, beta, batch_size):
        for name, values in statistics.items():
            arrays[name].append(values[pairs.counted[i]])
    return {name: np.concatenate(values).astype("float64") for name, values in arrays.items()}


def calibration_error(confidences, hits, bins=_BINS):
    """Returns the expected calibration error: how far confidences are from the share of hits.

    Args:
        confidences: float array `[n]`, in [0, 1]. The probability of each prediction.
        hits: array `[n]`. 1 where the prediction was right, else 0.
        bins: int, default 15. Intervals of equal width, in which means are compared.

    Returns:
        float. The mean distance in an interval, weighted by its predictions.
    """
    confidences, hits = np.asarray(confidences, "float64"), np.asarray(hits, "float64")
    index = np.minimum((confidences * bins).astype(int), bins - 1)
    gaps = np.bincount(index, confidences - hits, bins)
    return float(np.abs(gaps).sum() / max(len(hits), 1))


def _statistics(reader, pairs, beta, batch_size, progress=None):
    """Yields the index of each pair and the dict of `token_statistics` for its tokens alone."""
    arguments = (np.array(beta, "float32"),)
    outputs = reader.run("confidence", _compute, pairs, batch_size, progress, arguments)
    for i, arrays in outputs:
        length = len(pairs.labels[i])
        yield i, {n: v[:length] for n, v in zip(_STATISTICS, arrays, strict=True)}


def _compute(model, source_ids, target_ids, labels, beta):
    logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
    logits = ops.cast(logits, "float32")
    logits = logits - ops.max(logits, axis=-1, keepdims=True)
    logs = ops.log_softmax(logits * beta, axis=-1)
    probabilities = ops.exp(logs)
    index = ops.expand_dims(labels, -1)
    chosen, label_logits = (ops.take_along_axis(x, index, -1)[..., 0] for x in (logs, logits))
    means = ops.sum(probabilities * logits, axis=-1)
    variances = ops.sum(probabilities * ops.square(logits), axis=-1) - ops.square(means)
    hits = ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)
    top = ops.max(probabilities, axis=-1)
    return chosen, top, ops.cast(hits, "float32"), label_logits - means, variances
