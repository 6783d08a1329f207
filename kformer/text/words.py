"""The words of a text, and which of them a token belongs to.

A word is what stands between spaces. Chinese and Japanese have no spaces between words, so each of
their characters is a word of its own. An alignment names words by their index among these.
"""

import unicodedata

from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.scripts import CHINESE_JAPANESE, is_of

_SPACE = SPACE_SIGN.encode()


def split_words(text):
    """The words of a text.

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
    for part in text.split():
        begins = True  # Whether the next character begins a word.
        for index, character in enumerate(part):
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
        # Pieces write the normalized text, so the words are normalized, too; spaces do not count.
        written = [self._normalized(word) for word in words]
        text, ends, found = b"".join(written), [], []
        for part in written:
            ends.append(len(part) + (ends[-1] if ends else 0))
        surfaces, size = self._vocabulary.surfaces, len(self._vocabulary)
        position = word = 0
        for token_id in ids:
            surface = surfaces[token_id if 0 <= token_id < size else size]
            if not surface:
                found.append(range(0))
                continue
            part = surface.replace(_SPACE, b"")
            begin = text.find(part, position)
            # An unknown token writes nothing that stands in the text: it belongs to the next word.
            is_known = begin >= 0 and token_id != self._vocabulary.unknown_id
            begin, end = (begin, begin + len(part)) if is_known else (position, position)
            while word < len(ends) and ends[word] <= begin:
                word += 1
            last = word
            while last + 1 < len(ends) and ends[last] < end:
                last += 1
            found.append(range(min(word, len(ends)), min(last + 1, len(ends))))
            position = end
        return found

    def _normalized(self, word):
        vocabulary = self._vocabulary
        word = replace_all(valid_text(word), vocabulary.normalization.before)
        return vocabulary.processor.normalize(word).encode().replace(_SPACE, b"")
