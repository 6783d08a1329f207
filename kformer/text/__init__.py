"""Text to ids and back, with the same result in Python and in a TensorFlow graph."""

from kformer.text.subword_sampling import SubwordSampler
from kformer.text.tokenizer import Tokenizer
from kformer.text.word_vectors import WordVectors, load_word_vectors
from kformer.utils.moved import moved_names

__all__ = ["SubwordSampler", "Tokenizer", "WordVectors", "load_word_vectors"]

__getattr__ = moved_names(__name__)
