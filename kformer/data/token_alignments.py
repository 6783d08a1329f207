"""Aligned words as aligned tokens of a prepared corpus, for guided alignment."""

import itertools

import numpy as np

from kformer.data.corpus import SIDES
from kformer.text.words import TokenWords, split_words
from kformer_options.text_files import check_same_length

_CHUNK = 10_000


class TokenAlignments:
    """The source tokens that each target token of a corpus is aligned with.

    A target token is aligned with all tokens of the source words that its word is aligned with.
    The pairs of tokens are kept in memory, 4 bytes for each.

    Args:
        corpus: `PreparedCorpus`.
        tokenizer: `kformer.Tokenizer`. The tokenizer that the corpus was prepared with, for any of
            its languages.
        sources, targets: lists of str. The text that the corpus was prepared from.
        alignments: list with an alignment for each pair of sentences, as `align_words` returns
            them.

    Attributes:
        corpus: as given.
        num_aligned: int. The target tokens with at least one source token.

    Raises:
        ValueError: the lists differ in length, or the text is not the corpus's.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    corpus = kformer.data.prepare("train.en", "train.de", tokenizer, "prepared")
    sources, targets = (
        open(name, encoding="utf-8").read().splitlines() for name in ("train.en", "train.de")
    )
    found = kformer.data.align_words(sources, targets)
    alignments = kformer.data.TokenAlignments(corpus, tokenizer, sources, targets, found)
    data = kformer.data.ParallelDataset.from_prepared(corpus, alignments=alignments)
    ```

    References:
        Garg et al. 2019, "Jointly learning to align and translate with Transformer models".
    """

    def __init__(self, corpus, tokenizer, sources, targets, alignments):
        check_same_length("the sources", len(sources), "the alignments", len(alignments))
        check_same_length("the sources", len(sources), "the targets", len(targets))
        self.corpus = corpus
        counts, arrays = [], [np.zeros((0, 2), np.uint16)]
        for links in _links(corpus, tokenizer, sources, targets, alignments):
            counts.append(len(links))
            arrays.append(links)
        if len(counts) != corpus.num_pairs:
            raise ValueError(
                f"The prepared corpus '{corpus.folder}' has {corpus.num_pairs:,} pairs, of which "
                f"{len(counts):,} were found in the text of the alignments: give the text that it "
                "was prepared from."
            )
        self._begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._links = np.concatenate(arrays)  # target token, source token
        keys = np.repeat(np.arange(len(counts)), counts) << 16 | self._links[:, 0]
        self.num_aligned = len(np.unique(keys))

    def gather(self, pairs, source_shape, target_shape, counts):
        """The alignments of some pairs as a batch of target distributions of attention.

        Args:
            pairs: int array [n] of pair indices.
            source_shape, target_shape: `(rows, S)` and `(rows, T)`.
            counts: int array. The number of pairs in each row.

        Returns:
            dict with `alignment`, float32 `[rows, T, S]`. Position t is where the decoder reads the
            token, one after the position that predicts it. Its row sums to 1, or is 0 for a token
            without a source token.
        """
        alignment = np.zeros((*target_shape, source_shape[1]), np.float32)
        begins, ends = self._begins[pairs], self._begins[pairs + 1]
        sizes = ends - begins
        owners = np.repeat(np.arange(len(pairs)), sizes)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        links = self._links[begins[owners] + within].astype(np.int64)
        rows = np.repeat(np.arange(len(counts)), counts)
        is_first = np.diff(rows, prepend=-1) > 0
        shift = {}
        for side in SIDES:
            lengths = self.corpus.spans(side, pairs)[1]
            begins = np.cumsum(lengths) - lengths
            # Where each pair begins in its row.
            shift[side] = (begins - np.repeat(begins[is_first], counts[counts > 0]))[owners]
        targets, sources = shift["target"] + links[:, 0] + 1, shift["source"] + links[:, 1]
        alignment[rows[owners], targets, sources] = 1
        return {"alignment": alignment / np.maximum(alignment.sum(axis=-1, keepdims=True), 1)}


def _links(corpus, tokenizer, sources, targets, alignments):
    """Yields for each pair of the corpus its aligned tokens, uint16 array `[n, 2]`."""
    find = [TokenWords(tokenizer.vocabulary(side)) for side in SIDES]
    # Prefix and suffix may name another language than the tokenizer's, in as many tokens.
    inner = [
        slice(len(prefix), -len(suffix) or None)
        for prefix, suffix in (
            (tokenizer.source_prefix, tokenizer.source_suffix),
            (tokenizer.target_prefix, tokenizer.target_suffix),
        )
    ]
    pair = 0
    for begin in range(0, len(sources), _CHUNK):
        span = slice(begin, begin + _CHUNK)
        texts = sources[span], targets[span]
        sides = zip(texts, SIDES, strict=True)
        rows = [tokenizer.tokenize(text, side=side, special_tokens=True) for text, side in sides]
        for *ids, source, target, alignment in zip(*rows, *texts, alignments[span], strict=True):
            # The corpus left pairs out and kept the others in order. Equal ids are kept or left out
            # alike, so the next equal pair is the right one.
            if pair == corpus.num_pairs or not all(
                np.array_equal(corpus.ids(side, pair)[part], tokens[part])
                for side, tokens, part in zip(SIDES, ids, inner, strict=True)
            ):
                continue
            pair += 1
            sides = zip(find, ids, (source, target), strict=True)
            source_tokens, target_tokens = (
                _tokens_of_words(each(tokens, split_words(text))) for each, tokens, text in sides
            )
            pairs = ((target_tokens.get(j, ()), source_tokens.get(i, ())) for i, j in alignment)
            links = {link for tokens in pairs for link in itertools.product(*tokens)}
            yield np.array(sorted(links), np.uint16).reshape(-1, 2)


def _tokens_of_words(ranges):
    """By the index of a word, the indices of its tokens."""
    tokens = {}
    for token, words in enumerate(ranges):
        for word in words:
            tokens.setdefault(word, []).append(token)
    return tokens
