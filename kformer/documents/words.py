"""Words of any script: where they begin and end."""

import re

from kformer.text.scripts import HAN, KANA

# Scripts without spaces between words: each sign counts as a word.
_SPACELESS = "\u3005-\u3007" + "".join(f"{chr(a)}-{chr(b)}" for a, b in KANA + HAN)
# Signs that `\w` lacks and that belong to the letter before them.
_COMBINING = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0e7f"
_LETTER = rf"(?:[^\W{_SPACELESS}]|[{_COMBINING}])"
_TOKEN = re.compile(rf"[{_SPACELESS}]|{_LETTER}+(?:[-'’]{_LETTER}+)*|[^\w\s]")
_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
SURROGATE = re.compile("[\ud800-\udfff]")
SPACELESS_SIGN = re.compile(f"[{_SPACELESS}\u3000-\u3002\uff01-\uff60]")


def tokens(text, atoms=()):
    """Returns the words and signs of a text.

    Args:
        text: str.
        atoms: list of pairs of start and end, default empty. Slices that are one word each, in
            their order.

    Returns:
        List of tuples of start, end, and whether it is a word.
    """
    rows, position = [], 0
    for start, end in [*atoms, (len(text), len(text))]:
        for match in _TOKEN.finditer(text, position, start):
            rows.append((*match.span(), match[0][0].isalnum()))
        if end > start:
            rows.append((start, end, True))
        position = end
    return rows


def split(pattern, text, start=0, end=None):
    """Yields the matches of a pattern, and the texts between them that are not empty.

    Args:
        pattern: compiled regular expression.
        text: str.
        start, end: int. The slice of the text, default all of it.
    """
    end = len(text) if end is None else end
    for match in pattern.finditer(text, start, end):
        if match.start() > start:
            yield text[start : match.start()]
        yield match
        start = match.end()
    if start < end:
        yield text[start:end]


def trimmed(text, start, end):
    """Returns a slice, as a pair, without the white space around it."""
    inner = text[start:end]
    first = end - len(inner.lstrip())
    return first, max(first, start + len(inner.rstrip()))


def word_pattern(text):
    """Returns a regular expression for a text as whole words, with any white space in it.

    Args:
        text: str.
    """
    body = r"\s+".join(map(re.escape, text.split()))
    before = r"(?<![^\W_])" if _is_spaced(text.strip()[:1]) else ""
    after = r"(?![^\W_])" if _is_spaced(text.strip()[-1:]) else ""
    if before or after:
        # Beside Chinese or Japanese a word needs no space.
        before = before and rf"(?:(?<=[{_SPACELESS}])|{before})"
        after = after and rf"(?:(?=[{_SPACELESS}])|{after})"
    return before + body + after


def _is_spaced(sign):
    return sign.isalnum() and not SPACELESS_SIGN.match(sign)


def valid(text):
    """Returns a text with U+FFFD for each byte that was not UTF-8, in it a lone surrogate."""
    return SURROGATE.sub("\ufffd", text)


def has_letters(text):
    """Returns whether there is something to translate."""
    return any(sign.isalpha() for sign in text)


def one_line(text):
    """Returns a text without line breaks, which would move what follows."""
    return _BREAKS.sub(" ", text)
