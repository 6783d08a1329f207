"""Translates doubtful sentences again: by a wider search, and by clauses.

The missing words as required terms, sampling by minimum risk and a search without repeated n-grams
were measured, too, and did harm.
"""

import itertools
import re

from kformer.translating.translation import Hypothesis

_N_BEST = 8
# A clause has a few words at least.
_LEAST_CLAUSE = 12
_CLAUSE = re.compile(r"(?<=[,;:])\s+|(?<=[，；：])\s*")
# Another translation is taken where the probability of a fault falls by so much at least, and the
# log-probability a token by so much at most: else it does harm.
_GAIN, _LOSS = 0.3, 0.1


def retranslate(translator, texts, results, coverages, *, batch_size=64, **options):
    """Translates doubtful texts again, and takes the better translation by coverage and score.

    Args:
        translator: `kformer.Translator` of one model.
        texts: list of str.
        results: list of `Translation` of these texts.
        coverages: list of `Coverage` of these translations.
        batch_size: int, default 64. The most sentences that are searched at once.
        **options: fields of `SearchOptions`, as of the first search.

    Returns:
        Lists of `Translation` and of `Coverage`; where another translation was taken, its
        `retried` is `True`.
    """
    doubtful = [i for i, each in enumerate(coverages) if each.is_doubtful and texts[i].strip()]
    results, coverages = list(results), list(coverages)
    pairs = [(i, results[i].text) for i in doubtful]
    for i, candidates in _candidates(translator, texts, doubtful, batch_size, options):
        pairs += [(i, text) for text in dict.fromkeys(candidates) if text.strip()]
    rows = translator.tokenizer.tokenize(
        [text for _, text in pairs], side="target", special_tokens=True
    )
    # The clauses together may be longer than what the model reads, as may what did not end.
    is_read = [len(row) <= translator.model.max_length for row in rows]
    first, best = {}, {}
    for i, fits in zip(doubtful, is_read, strict=False):
        if not fits:
            value = results[i].score / len(results[i].hypotheses[0].ids)
            first[i] = value, coverages[i].probability
    pairs, rows = (list(itertools.compress(each, is_read)) for each in (pairs, rows))
    sides = [texts[i] for i, _ in pairs], [text for _, text in pairs]
    scores = translator.score(*sides, batch_size=batch_size)
    judged = translator.coverage(*sides, batch_size=batch_size)
    for (i, text), score, row, coverage in zip(pairs, scores, rows, judged, strict=True):
        value = score / len(row)
        if i not in first:  # That of the first search.
            first[i] = value, coverage.probability
            continue
        value_before, probability = first[i]
        is_better = probability - coverage.probability >= _GAIN and not coverage.is_doubtful
        if is_better and value >= max(value_before - _LOSS, best.get(i, (value,))[0]):
            best[i] = value, Hypothesis(text, float(score), None, row), coverage
    for i, (_, hypothesis, coverage) in best.items():
        results[i] = results[i]._replace(hypotheses=[hypothesis])
        coverages[i] = coverage._replace(retried=True)
    return results, coverages


def _candidates(translator, texts, doubtful, batch_size, options):
    """Yields the index of each doubtful text and a list of other translations."""

    def search(sources, **more):
        return translator.translate(sources, **{**options, "batch_size": batch_size, **more})

    sources = [texts[i] for i in doubtful]
    beam_size = max(_N_BEST, options.get("beam_size", translator.options.beam_size))
    wide = search(sources, beam_size=beam_size, n_best=_N_BEST)
    clauses = [_CLAUSE.split(text) for text in sources]
    clauses = [parts if min(map(len, parts)) >= _LEAST_CLAUSE else parts[:0] for parts in clauses]
    answers = iter(search([part for parts in clauses for part in parts], n_best=1))
    for i, parts, result in zip(doubtful, clauses, wide, strict=True):
        candidates = [each.text for each in result.hypotheses]
        of_parts = [next(answers).text.strip() for _ in parts]
        if len(parts) > 1:
            *first, last = of_parts
            joined = [re.sub(r"[.,;:。，；：]+$", "", part) for part in first]
            comma = ", " if " " in last else "，"
            candidates.append(comma.join([*joined, last]))
        yield i, candidates
