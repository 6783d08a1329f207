"""Several prepared corpora as one, each of which an epoch has as often as its weight says."""

import hashlib
import itertools

import numpy as np

from kformer.data.corpus import MIXED, SIDES, PreparedCorpus
from kformer.utils.checks import check_number, check_whole

# Keeps the random numbers apart from those that order the batches.
_STREAM = 0x6E6
_OF_TOKENIZER = "_vocabulary joint pad_id start_id end_id vocabulary_size target_vocabulary_size"


class JoinedCorpus(PreparedCorpus):
    """All pairs of several corpora, one corpus after the other.

    Args:
        corpora: list of `PreparedCorpus`, prepared with the same tokenizer, each for its languages.

    Raises:
        ValueError: the corpora have different tokenizers.
    """

    def __init__(self, corpora):
        self.corpora, first = list(corpora), corpora[0]
        for name in _OF_TOKENIZER.split():
            setattr(self, name, getattr(first, name))
            for corpus in corpora:
                if getattr(corpus, name) != getattr(first, name):
                    raise ValueError(
                        f"'{corpus.folder}' was prepared with another tokenizer than "
                        f"'{first.folder}': prepare both with one."
                    )
        languages = [corpus._languages for corpus in corpora]
        self._languages = languages[0] if languages.count(languages[0]) == len(corpora) else MIXED
        self.max_length = max(corpus.max_length for corpus in corpora)
        counts = "num_pairs num_lines num_too_long num_empty num_source_tokens num_target_tokens"
        for name in counts.split():
            setattr(self, name, sum(getattr(corpus, name) for corpus in corpora))
        for name in ("too_long_examples", "empty_examples"):
            setattr(self, name, [line for corpus in corpora for line in getattr(corpus, name)])
        self.longer_side = max(self.num_source_tokens, self.num_target_tokens)
        # The name is one for all texts, by which a training that resumes knows them.
        names = "\n".join(corpus.folder.name for corpus in corpora)
        digest = hashlib.sha256(names.encode()).hexdigest()[:32]
        self.folder = first.folder.with_name(f"joined-{digest}")
        self._ends = np.cumsum([corpus.num_pairs for corpus in corpora])
        self._begins = self._ends - [corpus.num_pairs for corpus in corpora]
        self._ids = {side: _JoinedFiles([c._ids[side] for c in corpora]) for side in SIDES}

    @property
    def folders(self):
        return [folder for corpus in self.corpora for folder in corpus.folders]

    def lengths(self, side):
        return np.concatenate([corpus.lengths(side) for corpus in self.corpora])

    def ids(self, side, index):
        [begin], [length] = self.spans(side, np.array([index]))
        return self._ids[side].read([(int(begin), int(length))])

    def spans(self, side, pairs):
        begins, lengths = (np.empty(len(pairs), np.int64) for _ in range(2))
        owners = np.searchsorted(self._ends, pairs, side="right")
        for index in np.unique(owners):
            is_own = owners == index
            spans = self.corpora[index].spans(side, pairs[is_own] - self._begins[index])
            begins[is_own] = spans[0] + self._ids[side].begins[index]
            lengths[is_own] = spans[1]
        return begins, lengths


class MixedCorpus(JoinedCorpus):
    """Several corpora, of which an epoch has some pairs more often and samples others.

    A weight of 1 means every pair once in each epoch, 3 three times, and 0.1 another tenth of the
    pairs in each epoch; 2.5 every pair twice and a half of them once more. The number of sampled
    pairs is the same in every epoch, and so are the shapes and the number of batches: the pairs
    are sorted by length and divided into as many groups as pairs are sampled, and an epoch has one
    pair of each group, in a batch that holds the longest of its group. The next epoch has the next
    pair of each group, so no pair comes again before all of its group.

    Args:
        corpora: list of `PreparedCorpus`, prepared with the same tokenizer.
        weights: list of float above 0. How often an epoch has each pair of each corpus.
        seed: int of at least 0, default 0. The sample is a function of the seed and the epoch.

    Attributes:
        corpora: list of `PreparedCorpus`, as given.
        counts: list of int. The pairs of each corpus in an epoch.
        stored: `JoinedCorpus`. All pairs once, to which soft targets and alignments belong.
        num_pairs, num_source_tokens, num_target_tokens, longer_side: int. As for `PreparedCorpus`,
            of the first epoch.

    Raises:
        ValueError: the corpora have different tokenizers, or a value is out of range.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    domain = kformer.data.prepare("val.en", "val.de", tokenizer, "domain")
    general = kformer.data.prepare("train.en", "train.de", tokenizer, "general")
    corpus = kformer.data.MixedCorpus([domain, general], [1, 0.1])
    train = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=512)
    corpus.num_pairs, corpus.counts  # (50, [20, 30])
    ```

    References:
        Chu et al. 2017, "An empirical comparison of domain adaptation methods for neural machine
        translation" (mixed fine-tuning).
    """

    def __init__(self, corpora, weights, seed=0):
        super().__init__(corpora)
        seed = check_whole("seed", seed, least=0)
        self.weights = [check_number("A weight", weight, above=0) for weight in weights]
        parts = zip(self.corpora, self.weights, self._begins, strict=True)
        streams = [seed, _STREAM]
        self._parts = []
        for number, (corpus, weight, begin) in enumerate(parts):
            self._parts.append(_Part(corpus, weight, int(begin), [*streams, number]))
        self.counts = [part.num_slots for part in self._parts]
        name = f"{self.folder.name} {self.weights}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        self.folder = self.folder.with_name(f"mixed-{digest}")
        self.num_pairs = sum(self.counts)
        for side in SIDES:
            setattr(self, f"num_{side}_tokens", int(self.lengths(side).sum()))
        self.longer_side = max(self.num_source_tokens, self.num_target_tokens)

    @property
    def stored(self):
        return JoinedCorpus(self.corpora)

    def in_epoch(self, pairs, epoch):
        """Maps planned pairs to this epoch's pairs.

        Args:
            pairs: int array [n] of indices below `num_pairs`.
            epoch: int.

        Returns:
            int64 array [n]: indices of pairs in `stored`.
        """
        pairs = np.asarray(pairs, np.int64)
        stored, first = np.empty_like(pairs), 0
        for part in self._parts:
            is_own = (pairs >= first) & (pairs < first + part.num_slots)
            stored[is_own] = part.in_epoch(pairs[is_own] - first, epoch)
            first += part.num_slots
        return stored

    def planned_lengths(self, side):
        return np.concatenate([part.planned_lengths(side) for part in self._parts])

    def lengths(self, side):
        """Number of tokens of every pair of the first epoch on `side`: uint32 array [num_pairs]."""
        return super().lengths(side)[self.in_epoch(np.arange(self.num_pairs), 0)]


class _Part:
    """One corpus in a mixture. A slot is a pair in an epoch: those of whole copies of the corpus
    come first, then a slot for each group of which an epoch has one pair.

    Args:
        corpus: `PreparedCorpus`.
        weight: float.
        begin: int. The index of its first pair among those of all corpora.
        stream: list of int. The seed of its random numbers.
    """

    def __init__(self, corpus, weight, begin, stream):
        self._corpus, self._begin, count = corpus, begin, corpus.num_pairs
        self._copies = int(weight)
        num_groups = round((weight - self._copies) * count)
        if not self._copies:
            num_groups = max(num_groups, 1)
        self.num_slots = self._copies * count + num_groups
        self._longest = {side: np.zeros(0, np.uint32) for side in SIDES}
        if not num_groups:
            return
        bits = np.random.PCG64(np.random.SeedSequence(stream))
        sources, targets = map(corpus.lengths, SIDES)
        shuffled = bits.random_raw(count)  # Among pairs of equal lengths.
        order = np.lexsort((shuffled, targets, sources))
        self._order = order.astype(np.uint32)
        ends = np.arange(num_groups + 1, dtype=np.int64) * count // num_groups
        self._group_begins, self._sizes = ends[:-1], np.diff(ends)
        self._first = bits.random_raw(num_groups) % self._sizes.astype(np.uint64)
        for side, lengths in zip(SIDES, (sources, targets), strict=True):
            self._longest[side] = np.maximum.reduceat(lengths[order], self._group_begins)

    def in_epoch(self, slots, epoch):
        """Returns the pairs of slots, int64 array [n]: their indices among those of all corpora."""
        count = self._corpus.num_pairs
        pairs, groups = slots % count, slots - self._copies * count
        is_sampled, groups = groups >= 0, groups[groups >= 0]
        if len(groups):
            turns = (self._first[groups].astype(np.int64) + epoch) % self._sizes[groups]
            pairs[is_sampled] = self._order[self._group_begins[groups] + turns]
        return pairs + self._begin

    def planned_lengths(self, side):
        return np.concatenate([*[self._corpus.lengths(side)] * self._copies, self._longest[side]])


class _JoinedFiles:
    """The ids of several corpora, as if they stood one after the other in one file."""

    def __init__(self, files):
        self._files = files
        self.begins = np.cumsum([0, *map(len, files[:-1])])

    def read(self, spans):
        ids = [self._files[0].read([])]
        begins, counts = np.array([*spans], np.int64).reshape(-1, 2).T
        owners = np.searchsorted(self.begins, begins, side="right") - 1
        spans = zip(
            owners.tolist(), (begins - self.begins[owners]).tolist(), counts.tolist(), strict=True
        )
        for owner, group in itertools.groupby(spans, lambda span: span[0]):
            ids.append(self._files[owner].read([span[1:] for span in group]))
        return np.concatenate(ids)
