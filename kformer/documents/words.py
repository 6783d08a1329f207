"""Words of any script: where they begin and end."""

import re

from kformer.text.scripts import HAN, KANA

# Scripts without spaces between words: each sign counts as a word.
_SPACELESS = "\u3005-\u3007" + "".join(f"{chr(a)}-{chr(b)}" for a, b in KANA + HAN)
# Signs that `\w` lacks and that belong to the letter before them.
_COMBINING = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0e7f"
_LETTER = rf"(?:[^\W{_SPACELESS}]|[{_COMBINING}])"
_TOKEN = re.compile(rf"[{_SPACELESS}]|{_LETTER}+(?:[-'’]{_LETTER}+)*|[^\w\s]")
_SURROGATE = re.compile("[\ud800-\udfff]")
SPACELESS_SIGN = re.compile(f"[{_SPACELESS}\u3000-\u3002\uff01-\uff60]")


def tokens(text, atoms=()):
    """Words and signs of a text.

    Args:
        text: str.
        atoms: list of pairs of start and end, default empty. Slices that are one word each, in
            their order.

    Returns:
        List of tuples of start, end, and whether it is a word.
    """
    found, position = [], 0
    for start, end in [*atoms, (len(text), len(text))]:
        for match in _TOKEN.finditer(text, position, start):
            is_word = match[0][0].isalnum()
            found.append((match.start(), match.end(), is_word))
        if end > start:
            found.append((start, end, True))
        position = end
    return found


def word_pattern(text):
    """A regular expression for a text that stands as whole words, with any white space in it.

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
    """A text with U+FFFD for each byte that was not UTF-8, which is a lone surrogate in it."""
    return _SURROGATE.sub("\ufffd", text)


def has_letters(text):
    """Whether there is something to translate."""
    return any(sign.isalpha() for sign in text)
