"""Numbers in sentences."""


def counted(number, noun):
    """Returns a number with its noun: "1 step", "2 steps", "29,000 pairs".

    Args:
        number: int.
        noun: str. The singular of a noun whose plural ends in "s".
    """
    return f"{number:,} {noun if number == 1 else noun + 's'}"
