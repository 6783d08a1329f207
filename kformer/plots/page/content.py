"""What the page shows, as JSON values: of a server's answer or of a stand-alone file."""

import base64

import numpy as np

from kformer.plots.page.words import tree_of, words_of
from kformer_options.model_folders import languages_of_name

# The numbers of one map of attention, above which heads are averaged, then left out: 2 MB.
MOST_WEIGHTS = 2**20
# Below it lies no probability: beams that found nothing have such scores.
_LEAST_SCORE = -1e6
_RIGHT_TO_LEFT = ("ar", "dv", "fa", "he", "ku", "ps", "sd", "ug", "ur", "yi")


def model_entry(name, languages=None, *, version=None, example="", attention=True):
    """A model of which the page tells.

    Args:
        name: str.
        languages: pair of str, default `None`. The codes of source and target, such as "en";
            `None` for those that a name such as "en-de" tells.
        version: int, default `None` for none.
        example: str, default "". A text to try.
        attention: bool, default `True`. Whether its attention can be shown.

    Returns:
        Dict of JSON values.
    """
    source, target = languages or languages_of_name(name) or (None, None)
    return {
        "name": name,
        "languages": [source, target],
        "version": version,
        "example": example,
        "attention": attention,
        "source": language_entry(source),
        "target": language_entry(target),
    }


def language_entry(code):
    """A language for the attributes `lang` and `dir` of a text.

    Args:
        code: str or `None`. Such as "en", or "pt_BR".

    Returns:
        Dict: `lang` str, empty where it is not known, and `dir` "ltr", "rtl" or "auto".
    """
    if not code:
        return {"lang": "", "dir": "auto"}
    code = code.replace("_", "-")
    first = code.split("-")[0].lower()
    return {"lang": code, "dir": "rtl" if first in _RIGHT_TO_LEFT else "ltr"}


def line_entry(source, texts, scores, truncated=False, terms=(), coverage=None):
    """The translations of a line.

    Args:
        source: str. The line.
        texts: list of str. The translations, best first; empty where the line is.
        scores: list of float. Their log-probabilities, `None` where they are not known.
        truncated: bool, default `False`. Whether the model read only the beginning of the line.
        terms: list of `kformer.documents.work.TermUse`, default empty. The terms of a glossary.
        coverage: dict of JSON values, default `None`. A `Coverage` of the best translation.

    Returns:
        Dict of JSON values.
    """
    hypotheses = [
        {"text": text, "score": None if score is None else float(score)}
        for text, score in zip(texts, scores, strict=True)
        if score is None or score > _LEAST_SCORE
    ]
    texts = [hypothesis["text"] for hypothesis in hypotheses]
    return {
        "source": source,
        "hypotheses": hypotheses,
        "truncated": bool(truncated),
        "coverage": coverage,
        "terms": [{**vars(use), "target": "|".join(use.target) or use.source} for use in terms],
        # Hypotheses of other tokens and the same text part nowhere that a reader sees.
        "tree": tree_of(texts) if len(set(texts)) > 1 else None,
    }


def attention_entry(source_tokens, target_tokens, weights):
    """The attention of a translation.

    Args:
        source_tokens, target_tokens: lists of str, without padding.
        weights: dict of kind ("cross", "encoder" or "decoder") to a tuple of float array
            `[layers, heads, rows, columns]`, list of str and list of str: the weights, the tokens
            of the rows, and those of the columns.

    Returns:
        Dict of JSON values. The weights are 65535ths, in base64 of 16 bits each, the lower byte
        first. Heads are averaged, and then a map is left out, where it has too many weights.
    """
    return {
        "source": {"tokens": source_tokens, "words": words_of(source_tokens)},
        "target": {"tokens": target_tokens, "words": words_of(target_tokens)},
        "maps": [_map_entry(kind, *parts) for kind, parts in weights.items()],
    }


def _map_entry(kind, weights, rows, columns):
    averaged = weights.size > MOST_WEIGHTS
    if averaged:
        weights = weights.mean(axis=1, keepdims=True)
    weights_65535ths = None
    if weights.size <= MOST_WEIGHTS:
        numbers = np.round(np.clip(weights, 0, 1) * 65535).astype("<u2")
        weights_65535ths = base64.b64encode(numbers.tobytes()).decode("ascii")
    return {
        "kind": kind,
        "rows": rows,
        "columns": columns,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "averaged": averaged,
        "weights": weights_65535ths,
    }
