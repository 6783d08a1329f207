"""Scripts, as ranges of code points: tuples of pairs of the first and the last."""

import functools
import unicodedata

HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
KANA = ((0x3040, 0x30FF),)
# Both, with radicals, bopomofo and the signs that stand among them.
CHINESE_JAPANESE = ((0x2E80, 0x312F), (0x3190, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF))
TIBETAN = ((0x0F00, 0x0FFF),)
THAI_LAO_BURMESE_KHMER = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))


def is_of(character, ranges):
    """Returns whether a character is of a script.

    Args:
        character: str.
        ranges: tuple of pairs of int.
    """
    return any(first <= ord(character) <= last for first, last in ranges)


@functools.cache
def script_name(character):
    """Returns the script of a letter, by the first word of its name; `None` for all else.

    Args:
        character: str. One character, or none.
    """
    if not character or not character.isalpha():
        return None
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
