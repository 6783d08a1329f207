"""Translates doubtful sentences again: by a wider search, by clauses, with the missing words."""

import re

from kformer.translating.translation import Hypothesis

_N_BEST = 8
# A clause has a few words at least.
_LEAST_CLAUSE = 12
_CLAUSE = re.compile(r"(?<=[,;:])\s+|(?<=[，；：])\s*")
# What a translation may lose in log-probability a token, for a probability of a fault of 1.
_WORTH = 1.0


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
    for i, candidates in _candidates(translator, texts, coverages, doubtful, batch_size, options):
        pairs += [(i, text) for text in dict.fromkeys(candidates) if text.strip()]
    sides = [texts[i] for i, _ in pairs], [text for _, text in pairs]
    scores = translator.score(*sides, batch_size=batch_size)
    rows = translator.tokenizer.tokenize(sides[1], side="target", special_tokens=True)
    best = {}
    judged = translator.coverage(*sides, batch_size=batch_size)
    for (i, text), score, row, coverage in zip(pairs, scores, rows, judged, strict=True):
        value = score / len(row) - _WORTH * coverage.probability
        if i not in best or (value > best[i][0] and not coverage.is_doubtful):
            best[i] = value, text, Hypothesis(text, float(score), None, row), coverage
    for i, (_, text, hypothesis, coverage) in best.items():
        if text != results[i].text:
            results[i] = results[i]._replace(hypotheses=[hypothesis])
            coverages[i] = coverage._replace(retried=True)
    return results, coverages


def _candidates(translator, texts, coverages, doubtful, batch_size, options):
    """Yields the index of each doubtful text and a list of other translations."""

    def search(sources, **more):
        return translator.translate(sources, **{**options, "batch_size": batch_size, **more})

    sources = [texts[i] for i in doubtful]
    beam_size = max(_N_BEST, options.get("beam_size", translator.options.beam_size))
    wide = search(sources, beam_size=beam_size, n_best=_N_BEST)
    clauses = [_CLAUSE.split(text) for text in sources]
    clauses = [parts if min(map(len, parts)) >= _LEAST_CLAUSE else parts[:0] for parts in clauses]
    missing = [coverages[i].missing for i in doubtful]
    asked = [part for parts in clauses for part in parts]
    asked += [span.text for spans in missing for span in spans if span.kind == "words"]
    answers = dict(zip(asked, (each.text for each in search(asked, n_best=1)), strict=True))
    terms = [
        [answers.get(span.text, span.text).strip(" .。,，") for span in spans] for spans in missing
    ]
    terms = [[term for term in row if term] for row in terms]
    forced = search(sources, terms=terms, beam_size=beam_size, n_best=1)
    for i, parts, *hypotheses in zip(doubtful, clauses, wide, forced, strict=True):
        texts_of = [each.text for result in hypotheses for each in result.hypotheses]
        if len(parts) > 1:
            *first, last = (answers[part].strip() for part in parts)
            joined = [re.sub(r"[.,;:。，；：]+$", "", part) for part in first]
            comma = ", " if " " in last else "，"
            texts_of.append(comma.join([*joined, last]))
        yield i, texts_of
