"""The languages of models: which pairs one translates, and what is known of each.

Each line of `languages.tsv` has a code, the English name, and for some a sentence to try.
"""

import itertools
from importlib import resources

_TEXT = (resources.files(__package__) / "languages.tsv").read_text(encoding="utf-8")
_ROWS = [line.split("\t") for line in _TEXT.splitlines()]
NAMES = {code: name for code, name, *_ in _ROWS}
_SENTENCES = {code: sentence for code, _, *sentences in _ROWS for sentence in sentences}


def example_for(language):
    """A sentence in a language.

    Args:
        language: str or `None`. Its code.

    Returns:
        str. English where the language is not known, and an empty one where it has no sentence.
    """
    code = (language or "en").replace("-", "_").partition("_")[0].lower()
    return _SENTENCES.get(code, "")


def pairs_of(metadata):
    """The pairs of languages that a SavedModel translates.

    Args:
        metadata: dict. What the export wrote beside the graph.

    Returns:
        Tuple of pairs of str, the codes of source and target: the directions of its training, or
        each language to each other, or none. Where the model reads its source language, which the
        export fixed, they are those from that one.
    """
    directions = (metadata.get("config") or {}).get("directions") or ()
    pairs = [tuple(direction.split("-")) for direction in directions]
    pairs = pairs or itertools.permutations(metadata.get("languages") or (), 2)
    source = metadata.get("source_language")
    return tuple(pair for pair in pairs if source in (None, pair[0]))
