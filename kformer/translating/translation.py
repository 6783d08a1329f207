"""What a `Translator` returns: hypotheses, scores and attention."""

import html
from typing import NamedTuple

import numpy as np

from kformer.text.normalization import valid_text
from kformer.utils.rows import up_to_end

# A notebook shows no more texts.
_SHOWN = 100
# From this probability on a translation is doubtful.
DOUBTFUL = 0.5


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: str. The translation.
        score: float. The sum of the log-probabilities of its tokens, the end token included.
        rank: float. The score after the length penalty; n-best lists are ordered by it. `None` from
            a SavedModel.
        ids: list of int. Its tokens, the end token included. `None` from a SavedModel.
    """

    text: str
    score: float
    rank: float | None
    ids: list[int] | None


class Score(float):
    """The log-probability of a given translation: a float with an attribute.

    Args:
        value: float.
        truncated: bool, default `False`. Whether the source was longer than the model's limit and
            was cut, so that the score is that of a shorter source.
    """

    def __new__(cls, value, truncated=False):
        score = super().__new__(cls, value)
        score.truncated = bool(truncated)
        return score

    def __getnewargs__(self):
        return float(self), self.truncated


class Confidence(NamedTuple):
    """How sure a model is of a translation, between 0 and 1.

    Attributes:
        score: float. The sum of the calibrated log-probabilities of the tokens.
        mean: float. The geometric mean of the tokens' probabilities, the end token included: a
            number by which translations of all lengths can be ranked.
        words: list of str. The words of the translation.
        word_probabilities: list of float. The probability of each word, given the source and the
            words before it: the product of its tokens' probabilities.
    """

    score: float
    mean: float
    words: list
    word_probabilities: list


class Coverage(NamedTuple):
    """What a translation left out, and what it has without a source.

    Attributes:
        probability: float. That there is something of the kind. From 0.5 on a reader should look:
            after calibration, that is one of fifty translations by people.
        missing: list of `Span`. Parts of the source that were left out.
        added: list of `Span`. Parts of the translation without a source.
        retried: bool. Whether it is a second translation, in the place of a doubtful one.
    """

    probability: float
    missing: list
    added: list
    retried: bool = False

    @property
    def is_doubtful(self) -> bool:
        """Whether a reader should look at it."""
        return self.probability >= DOUBTFUL

    def as_dict(self):
        """The same as a dict of JSON values."""
        sides = {name: [s._asdict() for s in getattr(self, name)] for name in ("missing", "added")}
        return {**self._asdict(), **sides}


class AnnotatedTranslation(NamedTuple):
    """A translation with what is known about its words.

    Attributes:
        text: str. The translation.
        source_words, words: lists of str. The words of the source and of the translation.
        alignment: list of pairs (source index, target index) of words; or `None` if it was not
            asked for.
        confidence: `Confidence`; or `None` if it was not asked for.
        coverage: `Coverage`; or `None` if it was not asked for.
    """

    text: str
    source_words: list
    words: list
    alignment: list | None
    confidence: Confidence | None
    coverage: Coverage | None = None


class Translation(NamedTuple):
    """The result of a search for one source text.

    Attributes:
        hypotheses: list of `Hypothesis`, best first.
        truncated: bool. Whether the source was longer than the model's limit and was cut.
        words: `AnnotatedTranslation` of the best translation, or `None` if it was not asked for.
        source: str, or `None` where it is not known. The source text.
    """

    hypotheses: list[Hypothesis]
    truncated: bool
    words: AnnotatedTranslation | None = None
    source: str | None = None

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """The best translation's log-probability."""
        return self.hypotheses[0].score

    def _repr_html_(self):
        return Translations([self])._repr_html_()


class Translations(list):
    """A list of `Translation`, which a notebook shows as a table of text, translation and score."""

    @classmethod
    def of(cls, texts, results):
        """Returns the results with their source texts, str or bytes."""
        pairs = zip(texts, results, strict=True)
        return cls(result._replace(source=valid_text(text)) for text, result in pairs)

    def _repr_html_(self):
        rows = [("text", "translation", "score")]
        for result in self[:_SHOWN]:
            for index, hypothesis in enumerate(result.hypotheses):
                source = "" if index else result.source or ""
                rows.append((source, hypothesis.text, f"{hypothesis.score:.2f}"))
        more = len(self) - _SHOWN
        return html_table(rows) + (f"<p>and {more:,} more</p>" if more > 0 else "")


def html_table(rows):
    """Returns rows of texts as an HTML table, whose colors are the notebook's, light or dark.

    Args:
        rows: list of rows of str; the first has the titles.

    Returns:
        str. Nothing in a text becomes HTML.
    """
    titles, *rows = (
        [f'style="text-align: left" dir="auto">{html.escape(text)}' for text in row] for row in rows
    )
    lines = ["".join(f"<td {cell}</td>" for cell in row) for row in rows]
    lines.insert(0, "".join(f"<th {cell}</th>" for cell in titles))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


class AttentionMap(NamedTuple):
    """The cross-attention of a translation, of every layer and head.

    Attributes:
        source_tokens, target_tokens: list of str. The tokens of both sides, special tokens
            included.
        weights: float32 array `[layers, heads, T, S]`. Row t is the attention with which target
            token t was predicted.
    """

    source_tokens: list
    target_tokens: list
    weights: np.ndarray


def hypotheses_of(tokenizer, pad_id, ids, scores, ranks):
    """Returns a list of `Hypothesis` of one sentence, from arrays `[N, L]`, `[N]`, `[N]`."""
    pairs = zip(ids.tolist(), scores, strict=True)
    rows = [up_to_end(row, tokenizer.end_id, pad_id) if np.isfinite(s) else [] for row, s in pairs]
    texts = tokenizer.detokenize(rows)
    parts = zip(texts, scores.tolist(), ranks.tolist(), rows, strict=True)
    return [Hypothesis(*each) for each in parts]
