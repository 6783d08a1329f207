"""Changes to sentences as they are read: resampled segmentation, and hidden tokens."""

import math

import numpy as np

from kformer.data.corpus import SIDES, pad_sequences
from kformer.text.subword_sampling import SubwordSampler
from kformer.utils.checks import check_number

# The pairs that are sampled to find out how much longer sentences become, and the share of them
# that the planned lengths are enough for.
_SAMPLED_PAIRS, _QUANTILE = 2000, 0.9
# A segmentation that is too long is sampled again, up to this many times in all.
_ATTEMPTS = 4
# The bits of a sampler's key: attempts and pairs below, epochs above.
_PAIR_BITS = 40


class Noise:
    """The checked settings of the noise, and a sampler for each side.

    Args:
        tokenizer: `kformer.Tokenizer` or `None`. The tokenizer of the corpus; `None` only without
            noise.
        subword_sampling: float or `None`. The strength of a `SubwordSampler`; `None` or 0 for none.
        word_dropout: float in `[0, 1)`.
        seed: int.

    Attributes:
        subword_sampling, word_dropout: as given; `None` and 0.0 without.
        samplers: dict of side to `SubwordSampler`; empty without subword sampling.

    Raises:
        ValueError: a number is out of range, or noise comes without a tokenizer.
    """

    def __init__(self, tokenizer, subword_sampling, word_dropout, seed):
        self.word_dropout = check_number("word_dropout", word_dropout, at_least=0, below=1)
        if tokenizer is None and (subword_sampling or word_dropout):
            raise ValueError(
                "Subword sampling and word dropout need the tokenizer that the corpus was prepared "
                "with: give tokenizer."
            )
        self.tokenizer, self.seed = tokenizer, int(seed)
        self.subword_sampling = subword_sampling or None
        self.samplers = {}
        for number, side in enumerate(SIDES if subword_sampling else ()):
            vocabulary, side_seed = tokenizer.vocabulary(side), 2 * self.seed + number
            self.samplers[side] = SubwordSampler(vocabulary, subword_sampling, seed=side_seed)


class NoisyReader:
    """Reads the pairs of a corpus with noise.

    The segmentation of a pair is a pure function of the seed, the epoch and the pair; the hidden
    tokens of a batch are one of the seed and the batch.

    Args:
        corpus: `PreparedCorpus`.
        noise: `Noise`.

    Attributes:
        corpus, noise: as given.
        samples: bool. Whether the segmentation is resampled.
        growth: dict of side to float. The factor by which the tokens of a side increase.

    Raises:
        ValueError: the corpus was prepared with another tokenizer.
    """

    def __init__(self, corpus, noise):
        if noise.tokenizer is not None:
            corpus.check_tokenizer(noise.tokenizer)
        self.corpus, self.noise = corpus, noise
        self.samples = bool(noise.samplers)
        self._unknown_id = noise.tokenizer.unknown_id if noise.word_dropout else None
        self._special = {}
        if noise.word_dropout:
            special_ids = [corpus.pad_id, corpus.start_id, corpus.end_id]
            for side in SIDES:
                # A tokenizer of another package has no `vocabulary`.
                of_side = getattr(noise.tokenizer, "vocabulary", lambda side: None)(side)
                self._special[side] = np.array([*special_ids, *getattr(of_side, "control_ids", ())])
        # By side: how much longer the text becomes, and how much longer most sentences become.
        self.growth, self._stretch = {"source": 1.0, "target": 1.0}, {}
        for side, sampler in noise.samplers.items():
            pairs = np.linspace(0, corpus.num_pairs - 1, _SAMPLED_PAIRS).astype(np.int64)
            pairs = corpus.in_epoch(np.unique(pairs), 0)
            rows = [corpus.ids(side, int(pair)) for pair in pairs]
            before = np.array([len(row) for row in rows])
            after = np.array([len(row) for row in sampler(rows, pairs)])
            self.growth[side] = float(after.sum() / before.sum())
            self._stretch[side] = float(np.quantile(after / before, _QUANTILE))

    def planned_lengths(self, side):
        """The most tokens that each pair may have on a side, uint32 array `[num_pairs]`."""
        lengths = self.corpus.planned_lengths(side)
        if not self.samples:
            return lengths
        return self._longest(side, lengths).astype(np.uint32)

    def _longest(self, side, lengths):
        """Returns the most tokens after resampling, for lengths before it."""
        longest = np.minimum(np.ceil(lengths * self._stretch[side]), self.corpus.max_length)
        return np.maximum(lengths, longest)

    def gather(self, side, pairs, shape, epoch, counts=None):
        """As `PreparedCorpus.gather`, with the segmentation of an epoch."""
        if not self.samples:
            return self.corpus.gather(side, pairs, shape, counts)
        plain = [self.corpus.ids(side, pair) for pair in pairs.tolist()]
        lengths = np.array([len(row) for row in plain], np.int64)
        # Not the length of this batch's rows, since a sentence's segmentation must not depend on
        # the other sentences.
        longest = self._longest(side, lengths)
        rows, unsampled = list(plain), np.arange(len(plain))
        for attempt in range(_ATTEMPTS):
            keys = pairs[unsampled].astype(np.uint64) * np.uint64(_ATTEMPTS) + np.uint64(attempt)
            keys += np.uint64(epoch) << np.uint64(_PAIR_BITS)
            sampled = self.noise.samplers[side]([plain[i] for i in unsampled], keys)
            fits = np.array([len(row) for row in sampled], np.int64) <= longest[unsampled]
            for i in np.flatnonzero(fits):
                rows[unsampled[i]] = sampled[i]
            unsampled = unsampled[~fits]
            if not len(unsampled):
                break
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.concatenate([np.zeros(0, np.int32), *rows])
        return pad_sequences(ids, lengths, shape, counts, self.corpus.pad_id), lengths

    def drop_words(self, inputs, number):
        """Replaces tokens of a batch by the unknown token, as word dropout does.

        Args:
            inputs: dict of int32 arrays, changed in place.
            number: int. The number of the batch.
        """
        rate = self.noise.word_dropout
        if rate:
            bits = np.random.PCG64(np.random.SeedSequence([self.noise.seed, number, 0x77D]))
            for side, special in self._special.items():
                ids = inputs[f"{side}_ids"]
                threshold = math.floor(rate * 2.0**64)
                is_hidden = bits.random_raw(ids.size).reshape(ids.shape) < threshold
                ids[is_hidden & ~np.isin(ids, special)] = self._unknown_id
        return inputs
