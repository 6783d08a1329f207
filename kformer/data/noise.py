"""What a data set changes in the sentences that are read from it: other pieces, and tokens that are
hidden.
"""

import math

import numpy as np

from kformer.data.corpus import padded_rows
from kformer.text.subword_sampling import SubwordSampler
from kformer.utils.checks import check_rate

# Pairs whose draws say how much room a batch needs, and the share of draws that it is enough for.
_LOOKED_AT, _ENOUGH = 2000, 0.9
_ATTEMPTS = 4
# Keys: attempts, then pairs, then epochs.
_PAIR_BITS = 40


def check_noise(tokenizer, subword_sampling, word_dropout):
    """Refuses settings that cannot be.

    Raises:
        ValueError: a number is out of range, or there is no tokenizer to do with.
    """
    check_rate("word_dropout", word_dropout)
    if tokenizer is None and (subword_sampling or word_dropout):
        raise ValueError(
            "Subword sampling and word dropout need the tokenizer that the corpus was prepared with: give tokenizer."
        )
    if subword_sampling:
        SubwordSampler(tokenizer.vocabulary("source"), subword_sampling)


class Noise:
    """Reads pairs of a corpus, changed; every change a pure function of the seed, the epoch and the
    pair, or of the step.

    Args:
        corpus: `PreparedCorpus`.
        tokenizer: the tokenizer that it was prepared with, or `None` where nothing is changed.
        subword_sampling: float, the strength of a `SubwordSampler`; `None` or 0 for none.
        word_dropout: float in [0, 1).
        seed: int.

    Attributes:
        samples: bool, whether words are cut anew.
    """

    def __init__(self, corpus, tokenizer, subword_sampling, word_dropout, seed):
        check_noise(tokenizer, subword_sampling, word_dropout)
        if tokenizer is not None:
            corpus.check_tokenizer(tokenizer)
        self.corpus, self.seed = corpus, int(seed)
        self.samples, self.word_dropout = bool(subword_sampling), float(word_dropout)
        self._unknown_id = tokenizer.unknown_id if word_dropout else None
        self._special = np.array([corpus.pad_id, corpus.start_id, corpus.end_id])
        self._samplers, self._growth, self._room = {}, {"source": 1.0, "target": 1.0}, {}
        for number, side in enumerate(("source", "target") if self.samples else ()):
            self._samplers[side] = SubwordSampler(
                tokenizer.vocabulary(side), subword_sampling, seed=2 * self.seed + number
            )
            self._look(side)

    def _look(self, side):
        """How much longer sentences become."""
        pairs = np.unique(np.linspace(0, self.corpus.num_pairs - 1, _LOOKED_AT).astype(np.int64))
        rows = [self.corpus.ids(side, int(pair)) for pair in pairs]
        before = np.array([len(row) for row in rows])
        after = np.array([len(row) for row in self._samplers[side](rows, pairs)])
        self._growth[side] = float(after.sum() / before.sum())
        self._room[side] = float(np.quantile(after / before, _ENOUGH))

    def growth(self, side):
        """By how much a side grows, as a factor on its number of tokens."""
        return self._growth[side]

    def planned_lengths(self, side):
        """The tokens that each pair has room for: uint32 array."""
        lengths = self.corpus.lengths(side)
        if not self.samples:
            return lengths
        return self._room_for(side, lengths).astype(np.uint32)

    def _room_for(self, side, lengths):
        """The tokens that sentences of these lengths have room for once they are cut anew."""
        return np.maximum(
            lengths, np.minimum(np.ceil(lengths * self._room[side]), self.corpus.max_length)
        )

    def gather(self, side, pairs, shape, epoch, counts=None):
        """As `PreparedCorpus.gather`, the words cut as they are in this epoch."""
        if not self.samples:
            return self.corpus.gather(side, pairs, shape, counts)
        plain = [self.corpus.ids(side, pair) for pair in pairs.tolist()]
        lengths = np.array([len(row) for row in plain], np.int64)
        # Not what this batch has room for: how a line is cut shall not depend on the lines beside
        # it.
        room = self._room_for(side, lengths)
        rows, left = list(plain), np.arange(len(plain))
        for attempt in range(_ATTEMPTS):
            keys = (
                (np.uint64(epoch) << np.uint64(_PAIR_BITS))
                + pairs[left].astype(np.uint64) * np.uint64(_ATTEMPTS)
                + np.uint64(attempt)
            )
            drawn = self._samplers[side]([plain[i] for i in left], keys)
            fits = np.array([len(row) for row in drawn], np.int64) <= room[left]
            for i in np.flatnonzero(fits):
                rows[left[i]] = drawn[i]
            left = left[~fits]
            if not len(left):
                break
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.concatenate([np.zeros(0, np.int32), *rows])
        return padded_rows(ids, lengths, shape, counts, self.corpus.pad_id), lengths

    def drop_words(self, inputs, number):
        """Hides tokens of a batch's inputs.

        Args:
            inputs: dict of int32 arrays, changed in place.
            number: int, of the batch.
        """
        if self.word_dropout:
            bits = np.random.PCG64(np.random.SeedSequence([self.seed, number, 0x77D]))
            for name in ("source_ids", "target_ids"):
                ids = inputs[name]
                is_hidden = bits.random_raw(ids.size).reshape(ids.shape) < math.floor(
                    self.word_dropout * 2.0**64
                )
                ids[is_hidden & ~np.isin(ids, self._special)] = self._unknown_id
        return inputs
