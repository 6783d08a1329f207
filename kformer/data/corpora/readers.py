"""Pairs of sentences from the files that people have."""


def check_format(path, what):
    """Checks that a file has a format that can be read, and that its packages are installed."""


def read_pairs(corpus):
    """Yields the pairs of a corpus in chunks."""
