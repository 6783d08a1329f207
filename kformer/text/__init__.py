"""Text to ids and back, with the same result in Python and in a TensorFlow graph."""

from kformer.text.subword_sampling import SubwordSampler
from kformer.text.tokenizer import Tokenizer
from kformer.text.word_vectors import WordVectors, load_word_vectors

__all__ = ["SubwordSampler", "Tokenizer", "WordVectors", "load_word_vectors"]
