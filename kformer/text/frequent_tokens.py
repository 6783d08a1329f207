"""The most frequent tokens of texts, for a search that computes no others."""

import collections
import itertools

from kformer.text.word_pieces import is_byte_piece
from kformer.utils.checks import check_texts, check_whole


def frequent_tokens(tokenizer, texts, size=None):
    """Returns the most frequent tokens of texts in the target language, and those of single bytes.

    Args:
        tokenizer: `kformer.Tokenizer`.
        texts: iterable of str, such as an open text file.
        size: int, default `None`. The number of tokens, without those of bytes; `None` for all that
            occur.

    Returns:
        Tuple of ids, sorted.

    Raises:
        ValueError: the texts have no token, or `size` is below 1.
        TypeError: `texts` is one text.
    """
    if isinstance(texts, str | bytes):
        check_texts(texts)  # One text is an error.
    if size is not None:
        check_whole("size", size)
    counts, texts = collections.Counter(), iter(texts)
    # In chunks, since a file may be larger than memory.
    while chunk := check_texts(itertools.islice(texts, 10_000)):
        for row in tokenizer.tokenize(chunk, side="target"):
            counts.update(row)
    if not counts:
        raise ValueError("The texts of the shortlist have no token; give text in its language.")
    # Equally frequent tokens by id: the list must not depend on the order of the texts.
    tokens = set(sorted(counts, key=lambda token: (-counts[token], token))[:size])
    vocabulary = tokenizer.vocabulary("target")
    for token, surface in enumerate(vocabulary.surfaces[:-1]):
        if is_byte_piece(vocabulary.pieces[token], surface):
            tokens.add(token)
    return tuple(sorted(tokens))
