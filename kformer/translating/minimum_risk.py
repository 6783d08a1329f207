"""Minimum Bayes risk decoding: of many samples the one that is most like the others.

Source: Eikema and Aziz 2020, "Is MAP Decoding All You Need?". The utility is chrF (Popovic 2015),
as sacreBLEU computes it for a sentence: 6 orders, no words, recall weighs twice, whitespace does
not count.
"""

import dataclasses

import numpy as np

from kformer.utils.checks import check_whole
from kformer_options.names import named

_ORDERS = 6
_BETA = 2
# Rows that are sampled at once for each sentence of the batch size, as with a beam of 4.
_ROWS = 4


def least_risk_translations(search, texts, constraints, count, options, batching):
    """Returns the samples of each text that are most like all of them.

    Args:
        search: `TextSearch`.
        texts: list of str.
        constraints: `TextConstraints`.
        count: int. The number of samples of each text.
        options: `SearchOptions` with `sampling`. Its `n_best` of the samples are returned.
        batching: the batch size in sentences and in tokens, the indices of the texts, and
            `progress`, as of `TextSearch`.

    Returns:
        List of `Translation`. No text occurs twice in its hypotheses before all others have
        occurred; their `rank` is the mean chrF against all samples, 0 to 100.

    Raises:
        ValueError: `count` is below 2 or below `n_best`.
    """
    count = check_whole(named("mbr"), count, least=2)
    if options.n_best > count:
        raise ValueError(
            f"{count} samples cannot give the {options.n_best} best: raise {named('mbr')} to "
            f"{options.n_best}, or lower {named('n_best')}."
        )
    sampling = dataclasses.replace(options, n_best=count)
    *sizes, indices, progress = batching
    sizes = [None if size is None else max(1, _ROWS * size // count) for size in sizes]
    results = []
    for result in search(texts, constraints, sampling, *sizes, indices, progress):
        utilities = expected_chrf([sample.text for sample in result.hypotheses])
        ranked, seen = [], set()
        for sample, utility in zip(result.hypotheses, utilities.tolist(), strict=True):
            ranked.append((sample.text in seen, -utility, sample._replace(rank=utility)))
            seen.add(sample.text)
        ranked.sort(key=lambda each: each[:2])  # Repetitions last.
        best = [sample for *_, sample in ranked[: options.n_best]]
        results.append(result._replace(hypotheses=best))
    return results


def expected_chrf(texts):
    """Returns the mean chrF of each text with each text as its reference, itself included.

    Args:
        texts: list of str.

    Returns:
        float64 array `[len(texts)]`, 0 to 100.
    """
    count = len(texts)
    texts = ["".join(text.split()) for text in texts]
    precisions, recalls, orders = (np.zeros((count, count)) for _ in range(3))
    for order in range(1, _ORDERS + 1):
        # How often each text has each n-gram of any of them, [texts, n-grams].
        numbers, rows, columns = {}, [], []
        for row, text in enumerate(texts):
            for start in range(len(text) - order + 1):
                rows.append(row)
                columns.append(numbers.setdefault(text[start : start + order], len(numbers)))
        counts = np.zeros((count, len(numbers)), "int32")
        np.add.at(counts, (rows, columns), 1)
        totals = counts.sum(axis=1)
        matches = np.zeros((count, count))
        for times in range(1, int(counts.max(initial=0)) + 1):
            # A smaller count of two is the number of times that both reach.
            reached = (counts >= times).astype("float32")
            matches += reached @ reached.T
        both = (totals[:, None] > 0) & (totals > 0)
        precisions += np.divide(matches, totals[:, None], where=both, out=np.zeros_like(matches))
        recalls += np.divide(matches, totals, where=both, out=np.zeros_like(matches))
        orders += both
    # The orders of n-grams that both texts have; the means' divisor cancels in part.
    precisions, recalls = (values / np.maximum(orders, 1) for values in (precisions, recalls))
    below = _BETA**2 * precisions + recalls
    above, zeros = (1 + _BETA**2) * precisions * recalls, np.zeros_like(below)
    scores = np.divide(above, below, where=below > 0, out=zeros)
    return 100 * scores.mean(axis=1)
