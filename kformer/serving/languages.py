"""The languages that translation models have most often: `languages.tsv`.

Each line has a code, the English name, and for some a sentence to try.
"""

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
