"""Length-bucketed, token-budget batches as a pure function of (seed, step, host)."""

import collections
import threading
import typing

import numpy as np

# A target token costs more than a source token: it attends twice and meets the output vocabulary.
SOURCE_WEIGHT, TARGET_WEIGHT = 1, 2
# What a batch costs beside its tokens, in weighted tokens: keeps a small corpus from many tiny
# batches.
BATCH_OVERHEAD = 64
MAX_CANDIDATES = 64
PART = 1 << 20


class Bucket(typing.NamedTuple):
    """One rung of the ladder of shapes, and what of the corpus stands on it.

    Attributes:
        rows, source_length, target_length: the shape of its batches: [rows, S] and [rows, T].
        num_pairs: pairs whose smallest fitting bucket this is.
        num_batches: batches they make in an epoch, over all hosts.
    """

    rows: int
    source_length: int
    target_length: int
    num_pairs: int
    num_batches: int

    @property
    def shape(self):
        return self.rows, self.source_length, self.target_length


def choose_lengths(source_lengths, target_lengths, batch_tokens, max_shapes=8, num_hosts=1):
    """Chooses the ladder of padded lengths (S, T) that wastes least on a corpus.

    The ladder grows in S and in T from rung to rung, and each pair goes to the lowest rung that
    holds both of its sides. Dynamic programming over the joint histogram of lengths finds the
    ladder of at most `max_shapes` rungs with the least padded tokens in all, target tokens counted
    double; the top rung is the longest pair. Lengths are taken as they come: rounding them to
    multiples of 8 costs a tenth of the fill on short sentences.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens: int. Most padded tokens on the longer side of a batch.
        max_shapes: int. Most rungs.
        num_hosts: int. A rung's batches come in multiples of it.

    Returns:
        List of (S, T), both strictly increasing.
    """
    sources, targets = _candidates(source_lengths), _candidates(target_lengths)
    num_sources, num_targets = len(sources), len(targets)
    source_cells, target_cells = _rungs(sources), _rungs(targets)
    histogram = np.zeros(num_sources * num_targets, np.int64)
    for part in corpus_parts(len(source_lengths)):
        cells = (
            source_cells[source_lengths[part]] * num_targets + target_cells[target_lengths[part]]
        )
        histogram += np.bincount(cells, minlength=len(histogram))
    # [i, j]: pairs that fit into (sources[i], targets[j])
    fitting = histogram.reshape(num_sources, num_targets).cumsum(0).cumsum(1)

    # least[k, i, j]: least cost of all pairs that fit into (i, j), with k + 1 rungs of which (i, j)
    # is the highest.
    least = np.full((max_shapes, num_sources, num_targets), np.inf)
    below = np.zeros((max_shapes, num_sources, num_targets), np.int32)
    for i, source_length in enumerate(sources):
        for j, target_length in enumerate(targets):

            def cost(num_pairs, s=int(source_length), t=int(target_length)):
                batches = _num_batches(num_pairs, s, t, batch_tokens, num_hosts)
                rows = -(-num_pairs // np.maximum(batches, 1))
                return batches * (rows * (SOURCE_WEIGHT * s + TARGET_WEIGHT * t) + BATCH_OVERHEAD)

            least[0, i, j] = cost(fitting[i, j])
            if i and j:
                added = cost(
                    fitting[i, j] - fitting[:i, :j]
                )  # every rung lower in both lengths may stand below
                for k in range(1, max_shapes):
                    total = least[k - 1, :i, :j] + added
                    below[k, i, j] = total.argmin()
                    least[k, i, j] = total.flat[below[k, i, j]]
    i, j = num_sources - 1, num_targets - 1
    k = int(least[:, i, j].argmin())
    ladder = [(int(sources[i]), int(targets[j]))]
    while k:
        i, j = divmod(int(below[k, i, j]), j)
        ladder.append((int(sources[i]), int(targets[j])))
        k -= 1
    return ladder[::-1]


def _num_batches(num_pairs, source_length, target_length, batch_tokens, num_hosts):
    rows = max(1, batch_tokens // max(source_length, target_length))
    return -(-num_pairs // (rows * num_hosts)) * num_hosts


def _rungs(heights):
    """For each length up to the last height, the index of the lowest height that holds it."""
    return np.searchsorted(heights, np.arange(heights[-1] + 1))


def corpus_parts(num_pairs):
    """Slices over the corpus, so that what is computed for every pair never stands in memory all at
    once.
    """
    return (slice(begin, begin + PART) for begin in range(0, num_pairs, PART))


def _candidates(lengths):
    """The lengths a rung may have: all that occur; of very many, some evenly spaced and some where
    the pairs are.
    """
    counts = np.zeros(int(lengths.max()) + 1, np.int64)
    for part in corpus_parts(len(lengths)):
        counts += np.bincount(lengths[part], minlength=len(counts))
    unique = np.flatnonzero(counts)
    if len(unique) <= MAX_CANDIDATES:
        return unique
    even = np.linspace(0, len(unique) - 1, MAX_CANDIDATES // 2).round().astype(int)
    mass = counts[unique].cumsum() / counts.sum()
    dense = np.searchsorted(mass, np.linspace(0, 1, MAX_CANDIDATES // 2, endpoint=False))
    return unique[np.unique(np.concatenate([even, dense]))]


class EpochPlan:
    """What plans share: an epoch's arrangement is a function of the seed and its number, and the
    last two are kept.
    """

    def __init__(self, seed, shuffle):
        self._seed, self._shuffle = seed, shuffle
        self._epochs = collections.OrderedDict()
        self._lock = threading.Lock()

    def _epoch(self, epoch):
        """What `_arrange` makes of this epoch; without `shuffle` every epoch is as the first."""
        epoch = epoch if self._shuffle else 0
        with self._lock:
            if epoch not in self._epochs:
                if (
                    len(self._epochs) > 1
                ):  # the last two are kept: readers ahead of an epoch's end want both
                    self._epochs.popitem(last=False)
                self._epochs[epoch] = self._arrange(epoch)
            return self._epochs[epoch]

    def _random_bits(self, epoch):
        # Raw bits and a stable sort: NumPy keeps the bit generators' streams for ever, but not
        # `permutation`'s.
        return np.random.PCG64(np.random.SeedSequence([self._seed, epoch]))


class BatchPlan(EpochPlan):
    """Says, for every step of training on every host, which pairs stand in the batch and which
    shape it has.

    The shapes are fixed here, before training: a bucket of n pairs makes `ceil(n / (batch_tokens //
    max(S, T)))` batches, rounded up to a multiple of `num_hosts`, and its pairs are spread over
    them evenly; `rows` is what the fullest holds, so that hardly a row is padding. An epoch is
    every batch of every bucket once. With `shuffle`, the pairs of each bucket and the order of the
    batches are permuted anew in every epoch; without, pairs keep the corpus's order inside their
    bucket and batches go from short to long. In both cases the first two steps of an epoch differ
    in S and T whenever the plan has more than one shape.

    All hosts take a batch of the same bucket at the same step; together they see every pair exactly
    once per epoch.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens, max_shapes, num_hosts: see `choose_lengths`.
        seed: int, not negative.
        shuffle: bool.

    Attributes:
        buckets: list of `Bucket`, from short to long.
        steps_per_epoch: int, the same on every host.
    """

    def __init__(
        self,
        source_lengths,
        target_lengths,
        batch_tokens,
        *,
        max_shapes=8,
        num_hosts=1,
        seed=0,
        shuffle=True,
    ):
        super().__init__(seed, shuffle)
        ladder = choose_lengths(source_lengths, target_lengths, batch_tokens, max_shapes, num_hosts)
        source_rungs, target_rungs = (_rungs(heights) for heights in zip(*ladder, strict=True))
        bucket_of = np.empty(len(source_lengths), np.uint16)
        for part in corpus_parts(len(bucket_of)):
            bucket_of[part] = np.maximum(
                source_rungs[source_lengths[part]], target_rungs[target_lengths[part]]
            )
        self.buckets, members = [], []
        for index, (source_length, target_length) in enumerate(ladder):
            pairs = np.flatnonzero(bucket_of == index).astype(np.uint32)
            if not len(pairs):
                continue
            batches = _num_batches(
                len(pairs), source_length, target_length, batch_tokens, num_hosts
            )
            self.buckets.append(
                Bucket(-(-len(pairs) // batches), source_length, target_length, len(pairs), batches)
            )
            members.append(pairs)
        self._members = members
        self._num_hosts = num_hosts
        self._steps = np.repeat(
            np.arange(len(self.buckets)), [b.num_batches // num_hosts for b in self.buckets]
        )
        self.steps_per_epoch = len(self._steps)

    def batch(self, step, host=0):
        """The batch of global step `step` on `host`: a pure function of both and of the seed.

        Returns:
            Tuple of the `Bucket` and the uint32 indices of its pairs, at most `rows` of them.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        members, steps, groups = self._epoch(epoch)
        index = steps[position]
        bucket, number = self.buckets[index], int(groups[position]) * self._num_hosts + host
        begin, end = (n * bucket.num_pairs // bucket.num_batches for n in (number, number + 1))
        return bucket, members[index][begin:end]

    def _arrange(self, epoch):
        """Pairs of each bucket in this epoch's order; bucket of each step; that step's number
        within its bucket.
        """
        members, steps = self._members, self._steps.copy()
        if self._shuffle:
            bits = self._random_bits(epoch)
            members = [
                pairs[np.argsort(bits.random_raw(len(pairs)), kind="stable")] for pairs in members
            ]
            steps = steps[np.argsort(bits.random_raw(len(steps)), kind="stable")]
        others = np.flatnonzero(steps != steps[0])
        if len(others) and others[0] > 1:
            steps[[1, others[0]]] = steps[[others[0], 1]]
        groups = np.empty(len(steps), np.int64)
        for index in range(len(self.buckets)):
            here = steps == index
            groups[here] = np.arange(np.count_nonzero(here))
        return members, steps, groups
