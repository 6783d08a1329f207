"""The words of a text, and which of them a token belongs to.

A word is what stands between spaces. Chinese and Japanese have no spaces between words, so each of
their characters is a word of its own. An alignment names words by their index among these.
"""

import bisect
import itertools
import unicodedata

from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.scripts import CHINESE_JAPANESE, is_of

_SPACE = SPACE_SIGN.encode()


def split_words(text):
    """Splits a text into words.

    Args:
        text: str.

    Returns:
        List of str: what stands between spaces; a Chinese or Japanese character is a word.

    Example:
        ```python
        from kformer.text.words import split_words

        split_words("half past four")  # ["half", "past", "four"]
        split_words("四点半 OK")  # ["四", "点", "半", "OK"]
        ```
    """
    if text.isascii():
        return text.split()
    words = []
    for characters in text.split():
        begins = True  # Whether the next character begins a word.
        for index, character in enumerate(characters):
            if index and unicodedata.category(character)[0] == "M":
                words[-1] += character  # A combining mark belongs to the character before it.
                continue
            is_alone = is_of(character, CHINESE_JAPANESE)
            if begins or is_alone:
                words.append(character)
            else:
                words[-1] += character
            begins = is_alone
    return words


class TokenWords:
    """Finds the words that tokens write.

    Args:
        vocabulary: `Vocabulary` of the side.

    Call arguments:
        ids: list of int. The tokens of a text, special tokens included.
        words: list of str. The words of the text, from `split_words`.

    Returns:
        List with a `range` for each token: the indices of the words that it writes a part of. It is
        empty for special tokens.

    Example:
        ```python
        from kformer.text.words import TokenWords, split_words

        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        find = TokenWords(tokenizer.vocabulary("source"))
        find(tokenizer.tokenize("a man", special_tokens=True), split_words("a man"))
        ```
    """

    def __init__(self, vocabulary):
        self._vocabulary = vocabulary

    def __call__(self, ids, words):
        vocabulary = self._vocabulary
        # Pieces write the normalized text, so the words are normalized, too; spaces do not count.
        texts = []
        for word in words:
            word = replace_all(valid_text(word), vocabulary.normalization.before)
            texts.append(vocabulary.processor.normalize(word).encode().replace(_SPACE, b""))
        text, ends = b"".join(texts), list(itertools.accumulate(map(len, texts)))
        surfaces, size = vocabulary.surfaces, len(vocabulary)
        ranges, position, first = [], 0, 0
        for token_id in ids:
            surface = surfaces[token_id if 0 <= token_id < size else size]
            if not surface:
                ranges.append(range(0))
                continue
            surface = surface.replace(_SPACE, b"")
            begin = text.find(surface, position)
            # An unknown token writes nothing that stands in the text: it belongs to the next word.
            is_in_text = begin >= 0 and token_id != vocabulary.unknown_id
            begin, end = (begin, begin + len(surface)) if is_in_text else (position, position)
            first = bisect.bisect_right(ends, begin, first)
            last = bisect.bisect_left(ends, end, first)
            ranges.append(range(first, min(last + 1, len(ends))))
            position = end
        return ranges
