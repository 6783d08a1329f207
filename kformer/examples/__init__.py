"""Example text that the package generates, and the quickstart that trains on it."""

from kformer.examples import pairs
from kformer.examples.pairs import generate_pairs, iterate_pairs
from kformer.examples.quickstart import quickstart

__all__ = ["generate_pairs", "iterate_pairs", "pairs", "quickstart"]
