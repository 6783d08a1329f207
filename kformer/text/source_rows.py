"""Texts to the ids that a model reads: tokenized, with special tokens, cut at the model's limit."""

from kformer.text.text_bound import cut_texts


def source_rows(tokenizer, texts, max_length, bound, keep_empty=False):
    """The source ids of texts, and which texts were cut.

    Args:
        tokenizer: `kformer.Tokenizer`.
        texts: list of str or bytes.
        max_length: int. The most ids of a text, special tokens included.
        bound: int. The most bytes of a text, see `kformer.text.text_bound.byte_bound`.
        keep_empty: bool, default `False`. Whether a text without tokens has its special tokens;
            otherwise its list is empty.

    Returns:
        List of lists of int, and list of bool.
    """
    texts, truncated = cut_texts(texts, bound)
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
