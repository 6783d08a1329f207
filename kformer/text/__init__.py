"""Text to ids and back: the tokenizer, for Python on every backend and, with the same result, for
the graph.
"""

from kformer.text.subword_sampling import SubwordSampler
from kformer.text.tokenizer import Tokenizer
from kformer.text.word_vectors import WordVectors, load_word_vectors
from kformer.utils.moved import moved_names

__all__ = ["SubwordSampler", "Tokenizer", "WordVectors", "load_word_vectors"]

__getattr__ = moved_names(__name__)
