"""Texts to the ids that a model reads, cut at a bound in bytes before they are tokenized.

A model reads a limited number of tokens, but a tokenizer would read all of a text first: megabytes
of it cost seconds and gigabytes. `kformer.export.saved_model.graph.cut_texts` does the same in a
graph.
"""

# A piece of SentencePiece has at most 16 characters by default, and a character at most 4 bytes.
_BYTES_PER_TOKEN = 64
_LEAST, _MOST = 4096, 2**30


def byte_bound(max_length, max_text_bytes=None):
    """Returns the most bytes of a text that are tokenized.

    Args:
        max_length: int. The most tokens that the model reads.
        max_text_bytes: int, default `None`. A bound that was chosen; `None` for 64 bytes for each
            token, and at least 4096.

    Returns:
        int.
    """
    if max_text_bytes is not None:
        return max_text_bytes
    return min(max(_BYTES_PER_TOKEN * max_length, _LEAST), _MOST)


def cut_text(text, bound):
    """A text cut to a number of bytes in UTF-8, where a code point begins.

    Args:
        text: str or bytes.
        bound: int, at least 4. The most bytes.

    Returns:
        The text as it is, or the bytes of its beginning; and whether it was cut. Text that is not
        valid UTF-8 may be cut anywhere.
    """
    if isinstance(text, str):
        if 4 * len(text) <= bound:
            return text, False
        # A character has at least one byte: the end of a long text need not be encoded.
        head = text[: bound + 1].encode("utf-8", "surrogatepass")
    else:
        head = text[: bound + 1]
    if len(head) <= bound:
        return text, False
    # The first byte of a code point is none of 0b10xxxxxx, of which at most three follow.
    begins = (end for end in range(bound, bound - 4, -1) if head[end] & 0xC0 != 0x80)
    return head[: next(begins, bound)], True


def cut_texts(texts, bound):
    """Cuts each text: returns a list of the texts, and a list of whether they were cut."""
    pairs = [cut_text(text, bound) for text in texts]
    return [text for text, _ in pairs], [was_cut for _, was_cut in pairs]


def source_rows(tokenizer, texts, max_length, max_text_bytes=None, keep_empty=False):
    """Tokenizes texts to the ids that a model reads, cut at its limit.

    Args:
        tokenizer: `kformer.Tokenizer`.
        texts: list of str or bytes.
        max_length: int. The most ids of a text, special tokens included.
        max_text_bytes: int, default `None`. As for `byte_bound`.
        keep_empty: bool, default `False`. Whether a text without tokens has its special tokens;
            otherwise its list is empty.

    Returns:
        List of lists of int, and list of bool: whether each text was cut.
    """
    texts, truncated = cut_texts(texts, byte_bound(max_length, max_text_bytes))
    rows = tokenizer.tokenize(texts, side="source", special_tokens=True)
    suffix = list(tokenizer.source_suffix)
    for i, row in enumerate(rows):
        if len(row) > max_length:
            rows[i], truncated[i] = row[: max_length - len(suffix)] + suffix, True
    if not keep_empty:
        num_special = len(tokenizer.source_prefix) + len(suffix)
        # A text may begin with a language tag of its own. That alone is nothing to translate.
        tags = set() if tokenizer.source_prefix else set(tokenizer.tag_ids.values())
        rows = [
            row if len(row) > num_special + bool(tags.intersection(row[:1])) else [] for row in rows
        ]
    return rows, truncated
