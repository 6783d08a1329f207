"""Generated example text, and a quickstart that trains on it."""

from kformer.examples import pairs
from kformer.examples.pairs import CATEGORIES, Pair, generate_pairs, iterate_pairs
from kformer.examples.quickstart_training import quickstart

__all__ = ["CATEGORIES", "Pair", "generate_pairs", "iterate_pairs", "pairs", "quickstart"]
