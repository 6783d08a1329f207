"""What the characters of many texts are: letters of which script, spaces, or others."""

import functools
import sys
import unicodedata

import numpy as np

# Scripts by the first word of their characters' names.
SCRIPTS = """ARABIC ARMENIAN BENGALI CJK CYRILLIC DEVANAGARI ETHIOPIC GEORGIAN GREEK GUJARATI
GURMUKHI HANGUL HEBREW HIRAGANA KANNADA KATAKANA KHMER LAO LATIN MALAYALAM MYANMAR ORIYA SINHALA
TAMIL TELUGU THAI TIBETAN""".split()
# The classes of characters: no letter, space, a letter of another script, then those of `SCRIPTS`.
NO_LETTER, SPACE, LETTER = range(3)
_NUM_CLASSES = 3 + len(SCRIPTS)


def script_class(name):
    """Returns the class of the letters of a script in `SCRIPTS`."""
    return 3 + SCRIPTS.index(name)


def characters(texts):
    """Returns the characters of texts, one text after the other.

    Args:
        texts: list of str.

    Returns:
        Tuple (code points, classes, ends): two arrays over all characters, and where each text
        ends.
    """
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    ends = np.cumsum(np.fromiter(map(len, texts), "int64", len(texts)))
    return points, _classes()[points], ends


def class_counts(texts):
    """Returns how many characters of each class texts have.

    Args:
        texts: list of str.

    Returns:
        int array `[len(texts), classes]`.
    """
    _, classes, ends = characters(texts)
    rows = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
    counts = np.bincount(rows * _NUM_CLASSES + classes, minlength=len(texts) * _NUM_CLASSES)
    return counts.reshape(len(texts), _NUM_CLASSES)


@functools.cache
def class_weights():
    """Returns how many characters of an alphabet one of each class is worth (int array)."""
    weights = np.ones(_NUM_CLASSES, "int64")
    weights[script_class("CJK")] = 3
    weights[[script_class(name) for name in ("HANGUL", "HIRAGANA", "KATAKANA")]] = 2
    return weights


@functools.cache
def _classes():
    """The class of each code point."""
    classes = np.zeros(sys.maxunicode + 1, "uint8")
    by_name = {name: script_class(name) for name in SCRIPTS}
    for point in range(0x32400):  # The planes beyond have no letters.
        character = chr(point)
        if character.isspace():
            classes[point] = SPACE
        elif unicodedata.category(character)[0] in "LM":  # Marks are parts of letters.
            first, _, name = unicodedata.name(character, "").partition(" ")
            if first in ("FULLWIDTH", "HALFWIDTH"):
                first = name.split(" ")[0]
            classes[point] = by_name.get(first, LETTER)
    return classes
