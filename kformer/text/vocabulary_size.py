"""The number of pieces of a new tokenizer, by the size of its text."""

# With at most so many texts (of one side), so many pieces; of more texts, 32,000.
_SIZES = {2_000: 1000, 8_000: 2000, 20_000: 4000, 200_000: 8000, 2_000_000: 16_000}


def default_vocabulary_size(num_pairs):
    """Returns a number of pieces that each occur often enough to be learnt, 1,000 to 32,000.

    Args:
        num_pairs: int. The lines of the training text.
    """
    return next((size for most, size in _SIZES.items() if num_pairs <= most), 32_000)


def describe_vocabulary_size(size, num_pairs):
    """Describes why a new tokenizer has its number of pieces.

    Args:
        size: int. The number of pieces.
        num_pairs: int. The lines of the training text.

    Returns:
        str.
    """
    # A pair has some 25 tokens: with as many pieces as pairs, a piece occurs 25 times on average.
    if size <= num_pairs:
        return f"few enough that each occurs often in {num_pairs:,} pairs"
    return f"of which many occur only once or twice in {num_pairs:,} pairs"
