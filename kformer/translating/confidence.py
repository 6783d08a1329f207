"""How sure a model is of the words of a translation: calibrated probabilities."""

import numpy as np
from keras import ops

from kformer.text.words import TokenWords, split_words
from kformer.translating.forced import compiled, counted_part, forced_batches, pairs_of_texts
from kformer.translating.translation import Confidence

# The key of a run's `config.json` that has the temperature.
CONFIDENCE = "confidence"
_BINS = 15
_STEPS = 30
_STATISTICS = ("log_probability", "top", "hit", "slope", "variance")


def confidence_of_texts(translator, sources, targets, batch_size, progress):
    """What `Translator.confidence` returns; the arguments are those of that method."""
    rows, _, labels = pairs_of_texts(translator, sources, targets)
    return confidence_of_rows(translator, targets, rows, labels, batch_size, progress)


def confidence_of_rows(translator, targets, rows, labels, batch_size, progress=None):
    """The `Confidence` of each pair of token ids; an empty translation is certain."""
    temperature = translator.config.get(CONFIDENCE, {}).get("temperature", 1.0)
    find = TokenWords(translator.tokenizer.vocabulary("target"))
    found = [Confidence(0.0, 1.0, [], []) for _ in rows]
    for i, part in _statistics(translator, rows, labels, 1 / temperature, batch_size, progress):
        values = part["log_probability"]
        counted = values[counted_part(translator, labels[i])]
        words = split_words(targets[i])
        sums = np.zeros(len(words))
        for value, indices in zip(values, find(labels[i], words), strict=True):
            sums[indices.start : indices.stop] += value
        mean = float(np.exp(counted.mean())) if len(counted) else 1.0
        found[i] = Confidence(float(counted.sum()), mean, words, np.exp(sums).tolist())
    return found


def calibrate_texts(translator, sources, targets, batch_size=32):
    """Fits the temperature under which the given translations are most probable.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of str, such as a validation set.
        batch_size: int, default 32.

    Returns:
        Dict for a run's config: `temperature`, `error_before` and `error`, the expected calibration
        errors without it and with it, and `tokens`, how many were counted.

    Raises:
        ValueError: the targets have no token, or sources and targets do not fit together.

    References:
        Guo et al. 2017, "On calibration of modern neural networks".
    """
    rows, _, labels = pairs_of_texts(translator, sources, targets)

    def measure(beta):
        return token_statistics(translator, rows, labels, beta, batch_size)

    first = found = measure(1.0)
    if not len(first["hit"]):
        raise ValueError("There is no token to calibrate with: give some translated sentences.")
    beta = 1.0
    for _ in range(_STEPS):
        # Newton's method: the log-likelihood is concave in the inverse of the temperature.
        step = found["slope"].sum() / max(found["variance"].sum(), 1e-12)
        after = float(np.clip(beta + step, beta / 2, beta * 2))
        is_near = abs(after - beta) < 1e-4 * beta
        beta = float(np.clip(after, 0.01, 100))
        found = measure(beta)
        if is_near:
            break
    before, error = (calibration_error(each["top"], each["hit"]) for each in (first, found))
    return {
        "temperature": round(1 / beta, 4),
        "error_before": round(before, 4),
        "error": round(error, 4),
        "tokens": len(first["hit"]),
    }


def token_statistics(translator, rows, labels, beta=1.0, batch_size=32):
    """What a model says about each token of given translations.

    Args:
        translator: `kformer.Translator`.
        rows, labels: lists of token ids, as `pairs_of_texts` returns them.
        beta: float, default 1. Logits are multiplied by it: 1 / temperature.
        batch_size: int, default 32.

    Returns:
        Dict of float64 arrays `[tokens]`: `log_probability` of the token; `top`, the probability of
        the likeliest one, and `hit`, 1 where that is the token; `slope` and `variance`, the first
        derivative of the log-probability by `beta` and the second one's opposite.
    """
    parts = {name: [np.zeros(0)] for name in _STATISTICS}
    for i, part in _statistics(translator, rows, labels, beta, batch_size):
        counted = counted_part(translator, labels[i])
        for name, values in part.items():
            parts[name].append(values[counted])
    return {name: np.concatenate(values).astype("float64") for name, values in parts.items()}


def calibration_error(confidences, hits, bins=_BINS):
    """The expected calibration error: how far confidences are from the share of hits.

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


def _statistics(translator, rows, labels, beta, batch_size, progress=None):
    """Yields the index of each pair and the dict of `token_statistics` for its tokens alone."""
    run = compiled(translator, "confidence", _token_statistics)
    scale = np.array(beta, "float32")
    batches = forced_batches(translator.model, rows, labels, batch_size, progress)
    for batch, source_ids, target_ids, padded_labels in batches:
        values = run(source_ids, target_ids, padded_labels, scale)
        for row, i in enumerate(batch):
            length = len(labels[i])
            yield i, {n: v[row, :length] for n, v in zip(_STATISTICS, values, strict=True)}


def _token_statistics(model):
    def run(source_ids, target_ids, labels, beta):
        logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
        logits = ops.cast(logits, "float32")
        logits = logits - ops.max(logits, axis=-1, keepdims=True)
        logs = ops.log_softmax(logits * beta, axis=-1)
        probabilities = ops.exp(logs)
        index = ops.expand_dims(labels, -1)
        chosen, own = (
            ops.squeeze(ops.take_along_axis(each, index, axis=-1), -1) for each in (logs, logits)
        )
        means = ops.sum(probabilities * logits, axis=-1)
        variances = ops.sum(probabilities * ops.square(logits), axis=-1) - ops.square(means)
        hits = ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels)
        top = ops.max(probabilities, axis=-1)
        return chosen, top, ops.cast(hits, "float32"), own - means, variances

    return run
