"""Text to ids and back: the tokenizer, for Python on every backend and, with the same result, for the graph."""

from kformer.text.subword_sampling import SubwordSampler
from kformer.text.tokenizer import Tokenizer

__all__ = ["SubwordSampler", "Tokenizer"]
