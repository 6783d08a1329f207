"""Where words begin and end among the pieces of a vocabulary.

SentencePiece writes the space before a word into the word's first piece, at the beginning of a text
as well. So a piece without that sign goes on with the word before it, if both are letters. Scripts
without spaces between words, and Hangul, whose particles follow their word, have no such borders.
"""

import unicodedata

import numpy as np

from kformer.decoding import Joins
from kformer.text import scripts
from kformer.text.normalization import SPACE_SIGN

_HALF_WIDTH = ((0xFF66, 0xFFDC),)
_ASIAN = scripts.CHINESE_JAPANESE + scripts.HANGUL + _HALF_WIDTH
_WITHOUT_SPACES = scripts.THAI_LAO_BURMESE_KHMER + scripts.TIBETAN + _ASIAN
# Signs inside words; a piece that begins with one goes on with a word, too.
_JOINING = "-_@'\u2019\u2010\u2011"


def is_word_character(character):
    """Returns whether a character is a letter, digit or mark of a script with spaces."""
    is_letter = unicodedata.category(character)[0] in "LMN"
    return is_letter and not scripts.is_of(character, _WITHOUT_SPACES)


def word_joins(vocabulary, size):
    """Returns which pieces of a `Vocabulary` write no whole word.

    Pieces of single bytes count as parts of words: they write rare letters.

    Args:
        vocabulary: `Vocabulary`.
        size: int. The number of the model's ids, which may be more than there are pieces.

    Returns:
        `Joins` of boolean arrays, one entry per id.
    """
    continues, is_open = np.zeros(size, bool), np.zeros(size, bool)
    pairs = zip(vocabulary.pieces, vocabulary.surfaces, strict=False)
    for token_id, (piece, surface) in enumerate(pairs):
        if token_id != vocabulary.unknown_id and surface:
            is_byte = is_byte_piece(piece, surface)
            continues[token_id] = is_byte or piece[0] in _JOINING or is_word_character(piece[0])
            is_open[token_id] = is_byte or is_word_character(piece[-1])
    return Joins(continues, is_open)


def is_byte_piece(piece, surface):
    """Returns whether a piece, such as "<0x41>", writes one byte."""
    return len(surface) == 1 and len(piece) == 6 and piece.startswith("<0x")


def without_space_sign(vocabulary):
    """Returns the id of each piece without its leading space sign.

    Args:
        vocabulary: `Vocabulary`.

    Returns:
        int32 array, one entry per id: the other piece's id, -2 for the sign alone, -1 where there
        is no such piece, or no sign.
    """
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces)}
    others = np.full(len(vocabulary), -1, "int32")
    for token_id, piece in enumerate(vocabulary.pieces):
        if piece.startswith(SPACE_SIGN):
            others[token_id] = ids.get(piece[1:], -1) if len(piece) > 1 else -2
    return others


def word_starts(vocabulary):
    """Returns how each piece of a `Vocabulary` begins after its space sign, int32 array: 1 with a
    letter or digit that belongs to a word, 0 with another character, 2 where the sign is all.
    """
    texts = (piece.removeprefix(SPACE_SIGN) for piece in vocabulary.pieces)
    return np.array([is_word_character(text[0]) if text else 2 for text in texts], "int32")
