"""Two prepared corpora as one: all pairs of the first, and in each epoch a sample of the second."""

import numpy as np

from kformer.data.corpus import SIDES, PreparedCorpus
from kformer.utils.checks import check_number, check_whole

# Keeps the random numbers apart from those that order the batches.
_STREAM = 0x6E6


class MixedCorpus(PreparedCorpus):
    """A corpus for fine-tuning that forgets little: domain text with a share of general text.

    An epoch has every domain pair once and a sample of the general pairs. The number of sampled
    pairs is the same in every epoch, and so are the shapes and the number of batches: the general
    pairs are sorted by length and divided into as many groups as pairs are sampled, and an epoch
    has one pair of each group, in a batch that holds the longest of its group. The next epoch has
    the next pair of each group, so no pair comes again before all of its group. If there are fewer
    general pairs than are needed, an epoch has some of them more than once.

    Args:
        domain: `PreparedCorpus`.
        general: `PreparedCorpus`, prepared with the same tokenizer.
        share: float in `(0, 1)`, default 0.5. The share of general pairs in each epoch.
        seed: int of at least 0, default 0. The sample is a function of the seed and the epoch.

    Attributes:
        num_general: int. The general pairs in an epoch.
        num_pairs, num_source_tokens, num_target_tokens, longer_side: int. As for `PreparedCorpus`,
            of the first epoch.

    Raises:
        ValueError: the corpora have different tokenizers, or a value is out of range.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    domain = kformer.data.prepare("val.en", "val.de", tokenizer, "domain")
    general = kformer.data.prepare("train.en", "train.de", tokenizer, "general")
    corpus = kformer.data.MixedCorpus(domain, general, share=0.5)
    train = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=512)
    corpus.num_pairs, corpus.num_general  # (40, 20)
    ```

    References:
        Chu et al. 2017, "An empirical comparison of domain adaptation methods for neural machine
        translation" (mixed fine-tuning).
    """

    def __init__(self, domain, general, share=0.5, seed=0):
        check_number("share", share, above=0, below=1)
        check_whole("seed", seed, least=0)
        names = "_vocabulary pad_id start_id end_id vocabulary_size target_vocabulary_size".split()
        if any(getattr(domain, name) != getattr(general, name) for name in names):
            raise ValueError(
                f"'{general.folder}' was prepared with another tokenizer than '{domain.folder}': "
                "prepare both with one."
            )
        self._domain, self._general, self.share = domain, general, share
        self._vocabulary, self.joint = domain._vocabulary, domain.joint
        self.vocabulary_size = domain.vocabulary_size
        self.target_vocabulary_size = domain.target_vocabulary_size
        self.pad_id, self.start_id, self.end_id = domain.pad_id, domain.start_id, domain.end_id
        self.max_length = max(domain.max_length, general.max_length)
        # A name for both texts, by which a training that resumes knows them.
        self.folder = domain.folder.with_name(f"{domain.folder.name}+{general.folder.name}")
        self.num_too_long = domain.num_too_long + general.num_too_long
        self.num_empty = domain.num_empty + general.num_empty
        self.too_long_examples = domain.too_long_examples + general.too_long_examples
        self.empty_examples = domain.empty_examples + general.empty_examples
        self.num_general = max(1, round(domain.num_pairs * share / (1 - share)))
        self.num_pairs = self.num_lines = domain.num_pairs + self.num_general
        self._group(seed)
        self._ids = {side: _JoinedFiles(domain._ids[side], general._ids[side]) for side in SIDES}
        self.num_source_tokens = int(self.lengths("source").sum())
        self.num_target_tokens = int(self.lengths("target").sum())
        self.longer_side = max(self.num_source_tokens, self.num_target_tokens)

    def _group(self, seed):
        """Sorts the general pairs by length, and divides them into groups of one sample each."""
        general = self._general
        bits = np.random.PCG64(np.random.SeedSequence([int(seed), _STREAM]))
        sources, targets = map(general.lengths, SIDES)
        shuffled = bits.random_raw(general.num_pairs)  # Among pairs of equal lengths.
        order = np.lexsort((shuffled, targets, sources))
        self._order = order.astype(np.uint32)
        slots = np.arange(self.num_general + 1, dtype=np.int64)
        ends = slots * general.num_pairs // self.num_general
        self._begins, self._sizes = ends[:-1], np.maximum(np.diff(ends), 1)
        self._first = bits.random_raw(self.num_general) % self._sizes.astype(np.uint64)
        sides = zip(SIDES, (sources[order], targets[order]), strict=True)
        self._longest = {side: np.maximum.reduceat(rows, self._begins) for side, rows in sides}

    def in_epoch(self, pairs, epoch):
        """Maps planned pairs to this epoch's pairs.

        Args:
            pairs: int array [n] of indices below `num_pairs`.
            epoch: int.

        Returns:
            int64 array [n]: indices of domain pairs, and of general pairs counted after them.
        """
        pairs, num_domain = np.asarray(pairs, np.int64), self._domain.num_pairs
        groups = np.maximum(pairs - num_domain, 0)
        turns = (self._first[groups].astype(np.int64) + epoch) % self._sizes[groups]
        sampled = num_domain + self._order[self._begins[groups] + turns].astype(np.int64)
        return np.where(pairs < num_domain, pairs, sampled)

    def planned_lengths(self, side):
        return np.concatenate([self._domain.lengths(side), self._longest[side]])

    def lengths(self, side):
        """Number of tokens of every pair of the first epoch on `side`: uint32 array [num_pairs]."""
        lengths = np.concatenate([self._domain.lengths(side), self._general.lengths(side)])
        return lengths[self.in_epoch(np.arange(self.num_pairs), 0)]

    def ids(self, side, index):
        """The token ids of a pair, as for `PreparedCorpus`; an index as `in_epoch` returns it."""
        [begin], [length] = self.spans(side, np.array([index]))
        return self._ids[side].read([(int(begin), int(length))])

    def spans(self, side, pairs):
        is_domain = pairs < self._domain.num_pairs
        begins, lengths = (np.empty(len(pairs), np.int64) for _ in range(2))
        begins[is_domain], lengths[is_domain] = self._domain.spans(side, pairs[is_domain])
        general = self._general.spans(side, pairs[~is_domain] - self._domain.num_pairs)
        begins[~is_domain], lengths[~is_domain] = general
        begins[~is_domain] += len(self._domain._ids[side])
        return begins, lengths


class _JoinedFiles:
    """The ids of two corpora, as if those of the second stood after those of the first."""

    def __init__(self, first, second):
        self._first, self._second = first, second

    def read(self, spans):
        size, ids = len(self._first), [self._first.read([])]
        for begin, count in spans:
            is_first = begin < size
            file, begin = (self._first, begin) if is_first else (self._second, begin - size)
            ids.append(file.read([(begin, count)]))
        return np.concatenate(ids)
