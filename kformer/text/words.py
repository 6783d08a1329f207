"""The words of a text, and which of them a token belongs to.

A word is what stands between spaces. Chinese and Japanese have no spaces between words, so each of
their characters is a word of its own. An alignment names words by their index among these.
"""

import bisect
import codecs
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
    if max(text, default="") < "\u2e80":  # Before all Chinese and Japanese characters.
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
        vocabulary, size = self._vocabulary, len(self._vocabulary)
        surfaces = [vocabulary.surfaces[i if 0 <= i < size else size] for i in ids]
        if (spans := _written_spans(surfaces, "".join(words))) is not None:
            lengths = map(len, words)
        else:
            # Pieces write the normalized text, so the words are normalized, too.
            texts = [
                replace_all(valid_text(word), vocabulary.normalization.before) for word in words
            ]
            texts = [vocabulary.processor.normalize(text).encode() for text in texts]
            texts = [text.replace(_SPACE, b"") for text in texts]
            spans, lengths = self._searched_spans(ids, surfaces, b"".join(texts)), map(len, texts)
        ends = list(itertools.accumulate(lengths))
        ranges, first = [], 0
        for surface, (begin, end) in zip(surfaces, spans, strict=True):
            if not surface:
                ranges.append(range(0))
                continue
            first = bisect.bisect_right(ends, begin, first)
            last = bisect.bisect_left(ends, end, first)
            ranges.append(range(first, min(last + 1, len(ends))))
        return ranges

    def _searched_spans(self, ids, surfaces, text):
        """Where each token is in the words' bytes, which spaces do not count among."""
        position = 0
        for token_id, surface in zip(ids, surfaces, strict=True):
            surface = surface.replace(_SPACE, b"")
            begin = text.find(surface, position)
            # An unknown token writes nothing that stands in the text: it belongs to the next word.
            is_in_text = begin >= 0 and token_id != self._vocabulary.unknown_id
            begin, end = (begin, begin + len(surface)) if is_in_text else (position, position)
            yield begin, end
            position = end


def _written_spans(surfaces, text):
    """Returns where tokens write a text, in characters without spaces; `None` if they do not.

    Bytes that are not UTF-8 write U+FFFD, as in decoding.
    """
    decoder, parts, stops = codecs.getincrementaldecoder("utf-8")("replace"), [], [0]
    count = 0
    for surface in surfaces:
        parts.append(decoder.decode(surface))
        count += len(parts[-1])
        stops.append(count + bool(decoder.getstate()[0]))  # A character may have begun.
    parts.append(decoder.decode(b"", final=True))
    written = "".join(parts).replace(SPACE_SIGN, " ")
    if "".join(written.split()) != text:
        return None
    positions = list(itertools.accumulate((not c.isspace() for c in written), initial=0))
    # A token without a first byte goes on with the character before it.
    return [
        (positions[min(a, b - 1)] if b else 0, positions[b]) for a, b in itertools.pairwise(stops)
    ]
