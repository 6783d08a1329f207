"""Numbers and values in sentences."""

import reprlib

_MOST_CHARACTERS = 400
# Shortens each part, so that a huge value is never written out.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 4
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MOST_CHARACTERS
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 20


def counted(number, noun):
    """Returns a number with its noun: "1 step", "2 steps", "29,000 pairs".

    Args:
        number: int.
        noun: str. The singular of a noun whose plural ends in "s".
    """
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def shown(value):
    """Returns the `repr` of a value for a message, shortened if it is long.

    The value may come from a stranger's file, and be of any size.
    """
    try:
        text = _SHORT.repr(value)
    except ValueError:  # Python writes no integer of that many digits.
        return "a number of over 4,300 digits"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
