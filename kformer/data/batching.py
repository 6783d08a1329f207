"""Length-bucketed, token-budget batches as a pure function of (seed, step, host)."""

import collections
import threading
import typing

import keras
import numpy as np

from kformer.utils.rows import round_up

# A target token costs more than a source token: two attentions, and the output projection.
SOURCE_WEIGHT, TARGET_WEIGHT = 1, 2
# The cost of a batch beside its tokens, in weighted tokens. It prevents many tiny batches.
BATCH_OVERHEAD = 64
MAX_CANDIDATES = 64
PART = 1 << 20
# Batch shapes; JAX compiles each, which takes longer than the padding that more would save.
USUAL_SHAPES, COMPILED_SHAPES = 8, 3
USUAL_BATCH_TOKENS = 4096


class Bucket(typing.NamedTuple):
    """A shape of batches, and the pairs that have it.

    Attributes:
        rows, source_length, target_length: int. The shape of its batches: [rows, S] and [rows, T].
        num_pairs: int. The pairs for which this is the smallest bucket that fits.
        num_batches: int. The batches of these pairs in an epoch, over all hosts.
    """

    rows: int
    source_length: int
    target_length: int
    num_pairs: int
    num_batches: int

    @property
    def shape(self):
        return self.rows, self.source_length, self.target_length


def default_max_shapes():
    """Returns the most batch shapes: 3 on JAX, 8 on other backends."""
    return COMPILED_SHAPES if keras.backend.backend() == "jax" else USUAL_SHAPES


def choose_batch_tokens(num_tokens):
    """Chooses the tokens of a batch: 4096, or less so that an epoch has 200 steps, at least 512.

    Smaller batches mean more updates: on 29,000 pairs a model needs half as many epochs with 2048
    tokens as with 4096.

    Args:
        num_tokens: int. The tokens of an epoch.

    Returns:
        The number of tokens, an int power of two, and the reason, str.
    """
    tokens = USUAL_BATCH_TOKENS
    while tokens > 512 and num_tokens / tokens < 200:
        tokens //= 2
    if tokens == USUAL_BATCH_TOKENS:
        return tokens, "as is usual"
    less = f"less than the usual {USUAL_BATCH_TOKENS:,}"
    if num_tokens / tokens < 200:
        return tokens, f"the minimum, and {less}, as the text is short"
    return tokens, f"{less}, so that an epoch still has at least 200 steps"


def choose_lengths(source_lengths, target_lengths, batch_tokens, max_shapes=8, num_hosts=1):
    """Chooses the padded lengths (S, T) of the buckets that waste the least padding on a corpus.

    S and T both grow from bucket to bucket, and each pair goes to the smallest bucket that holds
    both of its sides. Dynamic programming over the joint histogram of lengths finds the at most
    `max_shapes` buckets with the fewest tokens, padding included and target tokens counted twice.
    The largest bucket holds the longest pair. Lengths are not rounded: multiples of 8 would fill
    batches of short sentences a tenth less.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens: int. The most tokens on the longer side of a batch, padding included.
        max_shapes: int, default 8. The most buckets.
        num_hosts: int, default 1. The batches of a bucket come in multiples of it.

    Returns:
        list of (S, T), both strictly increasing.
    """
    sources, targets = _candidates(source_lengths), _candidates(target_lengths)
    num_sources, num_targets = len(sources), len(targets)
    source_cells = _smallest_buckets(sources) * num_targets
    target_cells = _smallest_buckets(targets)
    histogram = np.zeros(num_sources * num_targets, np.int64)
    for span in corpus_parts(len(source_lengths)):
        cells = source_cells[source_lengths[span]] + target_cells[target_lengths[span]]
        histogram += np.bincount(cells, minlength=len(histogram))
    # [i, j]: pairs that fit into (sources[i], targets[j])
    fitting = histogram.reshape(num_sources, num_targets).cumsum(0).cumsum(1)

    # least[k, i, j]: least cost of all pairs that fit into (i, j), with k + 1 buckets of which
    # (i, j) is the largest.
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
                # Every bucket that is smaller in both lengths may come before this one.
                added = cost(fitting[i, j] - fitting[:i, :j])
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


def fill_rows(inputs, labels, num_devices, pad_id):
    """Adds rows of padding to a batch, up to a multiple of the devices that share it.

    Args:
        inputs: dict of arrays `[B, ...]`.
        labels: int array `[B, T]`.
        num_devices: int.
        pad_id: int. The id that fills ids and labels; other inputs are filled with 0.

    Returns:
        The inputs and the labels.
    """
    missing = round_up(len(labels), num_devices) - len(labels)
    if not missing:
        return inputs, labels

    def filled(name, array):
        value = pad_id if name in ("source_ids", "target_ids", "labels") else 0
        more = np.full((missing, *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, more])

    inputs = {name: filled(name, array) for name, array in inputs.items()}
    return inputs, filled("labels", labels)


def _smallest_buckets(lengths):
    """Returns for each length the index of the smallest bucket that holds it."""
    return np.searchsorted(lengths, np.arange(lengths[-1] + 1))


def corpus_parts(num_pairs):
    """Yields slices over the corpus, so that arrays per pair are computed chunk by chunk."""
    return (slice(begin, begin + PART) for begin in range(0, num_pairs, PART))


def _candidates(lengths):
    """Returns the lengths that a bucket may have: all that occur, or at most `MAX_CANDIDATES`.

    Of those, half are evenly spaced, and half lie where most pairs are.
    """
    counts = np.zeros(int(lengths.max()) + 1, np.int64)
    for span in corpus_parts(len(lengths)):
        counts += np.bincount(lengths[span], minlength=len(counts))
    unique = np.flatnonzero(counts)
    if len(unique) <= MAX_CANDIDATES:
        return unique
    even = np.linspace(0, len(unique) - 1, MAX_CANDIDATES // 2).round().astype(int)
    mass = counts[unique].cumsum() / counts.sum()
    dense = np.searchsorted(mass, np.linspace(0, 1, MAX_CANDIDATES // 2, endpoint=False))
    return unique[np.unique(np.concatenate([even, dense]))]


def random_order(bits, size):
    """Returns a permutation, int array [size].

    NumPy guarantees the streams of its bit generators, but not the results of `permutation`.
    """
    return np.argsort(bits.random_raw(size), kind="stable")


class EpochPlan:
    """Base class of plans: an epoch's arrangement is a function of the seed and of its number."""

    def __init__(self, seed, shuffle):
        self._seed, self._shuffle = seed, shuffle
        self._epochs = collections.OrderedDict()
        self._lock = threading.Lock()

    def _epoch(self, epoch):
        """The arrangement of an epoch; without `shuffle` all epochs are equal."""
        epoch = epoch if self._shuffle else 0
        with self._lock:
            if epoch not in self._epochs:
                # The last two are kept, since readers may be ahead of the end of an epoch.
                if len(self._epochs) > 1:
                    self._epochs.popitem(last=False)
                self._epochs[epoch] = self._arrange(epoch)
            return self._epochs[epoch]

    def _random_bits(self, epoch):
        return np.random.PCG64(np.random.SeedSequence([self._seed, epoch]))


class BatchPlan(EpochPlan):
    """The pairs and the shape of the batch of every step on every host.

    The shapes are fixed before training. A bucket of n pairs has `ceil(n / (batch_tokens // max(S,
    T)))` batches, rounded up to a multiple of `num_hosts`. Its pairs are spread over them evenly,
    and `rows` is the most pairs in one of them, so that hardly a row is padding. An epoch is every
    batch of every bucket once.

    With `shuffle`, the pairs of each bucket and the order of the batches are permuted in every
    epoch. Without it, pairs keep the corpus's order within their bucket, and batches go from short
    to long. In both cases the first two steps of an epoch differ in S and T, if there is more than
    one shape.

    All hosts have a batch of the same bucket at the same step. Together they see every pair exactly
    once per epoch.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens, max_shapes, num_hosts: see `choose_lengths`.
        seed: int of at least 0, default 0.
        shuffle: bool, default True.

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
        sources, targets = (_smallest_buckets(lengths) for lengths in zip(*ladder, strict=True))
        bucket_of = np.empty(len(source_lengths), np.uint16)
        for span in corpus_parts(len(bucket_of)):
            buckets = sources[source_lengths[span]], targets[target_lengths[span]]
            bucket_of[span] = np.maximum(*buckets)
        self.buckets, members = [], []
        for index, lengths in enumerate(ladder):
            pairs = np.flatnonzero(bucket_of == index).astype(np.uint32)
            if not len(pairs):
                continue
            batches = _num_batches(len(pairs), *lengths, batch_tokens, num_hosts)
            rows = -(-len(pairs) // batches)
            self.buckets.append(Bucket(rows, *lengths, len(pairs), batches))
            members.append(pairs)
        self._members, self._num_hosts = members, num_hosts
        steps = [bucket.num_batches // num_hosts for bucket in self.buckets]
        self._steps = np.repeat(np.arange(len(self.buckets)), steps)
        self.steps_per_epoch = len(self._steps)

    def batch(self, step, host=0):
        """The batch of a global step on a host: a pure function of both and of the seed.

        Args:
            step: int. The global step.
            host: int, default 0.

        Returns:
            Tuple of the `Bucket` and the indices of its pairs, uint32 array of at most `rows`.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        members, steps, groups = self._epoch(epoch)
        index = steps[position]
        bucket, number = self.buckets[index], int(groups[position]) * self._num_hosts + host
        begin, end = (n * bucket.num_pairs // bucket.num_batches for n in (number, number + 1))
        return bucket, members[index][begin:end]

    def _arrange(self, epoch):
        """The pairs of each bucket in an epoch's order, the bucket of each step, and the number of
        each step within its bucket.
        """
        members, steps = self._members, self._steps.copy()
        if self._shuffle:
            bits = self._random_bits(epoch)
            members = [pairs[random_order(bits, len(pairs))] for pairs in members]
            steps = steps[random_order(bits, len(steps))]
        different = np.flatnonzero(steps != steps[0])
        if len(different) and different[0] > 1:
            steps[[1, different[0]]] = steps[[different[0], 1]]
        groups = np.empty(len(steps), np.int64)
        for index in range(len(self.buckets)):
            here = steps == index
            groups[here] = np.arange(np.count_nonzero(here))
        return members, steps, groups
