"""Reads Marian's models."""


def is_mine(path):
    """Whether a path is that of a model of Marian's."""
    return False
