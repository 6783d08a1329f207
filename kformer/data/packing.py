"""Packing: several pairs in each row of one fixed shape, as a function of (seed, step, host)."""

import numpy as np

from kformer.data.batching import Bucket, EpochPlan, corpus_parts, random_order

# The pairs of average length that a row holds at least. With four, greedy packing leaves a few
# percent empty.
PAIRS_PER_ROW = 4
# Row lengths are multiples of this, which is efficient on accelerators.
LENGTH_STEP = 8
# Packing counts in units of several tokens, so that neither limit is exceeded. Rounding up leaves
# positions empty.
MAX_LEVELS = 256
MAX_CELLS = 16384


def choose_row_lengths(source_lengths, target_lengths):
    """Lengths (S, T) of packed rows, for the longest pair and for `PAIRS_PER_ROW` average ones.

    Both sides hold about the same number of average pairs, so that neither is full much earlier
    than the other.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].

    Returns:
        Tuple of the two ints, multiples of `LENGTH_STEP`.
    """
    lengths = source_lengths, target_lengths
    sides = [(int(side.max()), float(side.mean(dtype="float64"))) for side in lengths]
    usual = min(PAIRS_PER_ROW, len(source_lengths))
    pairs = max(usual, *(longest / mean for longest, mean in sides))
    return tuple(
        LENGTH_STEP * max(-(-longest // LENGTH_STEP), round(pairs * mean / LENGTH_STEP))
        for longest, mean in sides
    )


def pack_cells(sources, targets, counts, capacity):
    """Packs pairs greedily into rows, by the number of pairs of each length.

    A row begins with the longest pair that is left. Then, again and again, it gets the pair that is
    longest and leaves similar capacity on both sides, among those that fit. The row is repeated as
    long as there are pairs for it. So the work depends on the number of distinct lengths, not on
    that of the pairs.

    Args:
        sources, targets: int64 arrays [cells]. The lengths of a cell's pairs, at most `capacity`.
        counts: int64 array [cells]. The number of its pairs.
        capacity: lengths (S, T) of a row.

    Returns:
        list of tuples: int64 array of a row's cells, each repeated for each of its pairs; and the
        number of rows of this kind.

    References:
        Krell et al. 2021, "Efficient sequence packing without cross-contamination" (packing by the
        histogram of lengths).
    """
    # As shares of one whole, in integers, so that every machine finds the same rows.
    sources, targets = sources * capacity[1], targets * capacity[0]
    whole = capacity[0] * capacity[1]
    cells = np.lexsort((-(sources + targets), -np.maximum(sources, targets)))
    sources, targets, remaining = sources[cells], targets[cells], counts[cells]
    rows, first = [], 0
    while True:
        if len(rows) % 64 == 0:  # Removes cells without pairs, for speed.
            nonempty = np.flatnonzero(remaining)
            arrays = cells, sources, targets, remaining
            cells, sources, targets, remaining = (array[nonempty] for array in arrays)
            sizes, first = sources + targets, 0
        while first < len(remaining) and not remaining[first]:
            first += 1
        if first == len(remaining):
            return rows
        row, cell = [], first
        source_left = target_left = whole
        while True:
            row.append(cell)
            remaining[cell] -= 1
            source_left -= sources[cell]
            target_left -= targets[cell]
            source_after, target_after = source_left - sources, target_left - targets
            score = sizes - np.abs(source_after - target_after)
            score[(source_after < 0) | (target_after < 0) | (remaining == 0)] = -whole
            cell = int(score.argmax())
            if score[cell] == -whole:
                break
        used, times = np.unique(row, return_counts=True)
        more = int((remaining[used] // times).min())
        remaining[used] -= more * times
        rows.append((cells[row], 1 + more))


class PackedPlan(EpochPlan):
    """The pairs in each row of the batch of every step on every host.

    The rows are laid out once, as lengths of pairs. In every epoch pairs of equal lengths are
    swapped at random, and the rows are permuted. So all epochs have the same number of rows, and
    every pair exactly once. Without `shuffle` all epochs are equal.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens: int. The most tokens on the longer side of a batch, padding included. A batch
            has at least one row.
        num_hosts, seed, shuffle: see `BatchPlan`.

    Attributes:
        buckets: list of one `Bucket`.
        steps_per_epoch: int, the same on every host.
    """

    def __init__(
        self, source_lengths, target_lengths, batch_tokens, *, num_hosts=1, seed=0, shuffle=True
    ):
        super().__init__(seed, shuffle)
        num_pairs = len(source_lengths)
        row_lengths = choose_row_lengths(source_lengths, target_lengths)
        cell_of, cells, capacity = _cells(source_lengths, target_lengths, row_lengths)
        counts = np.bincount(cell_of, minlength=len(cells[0]))
        layout = pack_cells(*cells, counts, capacity)
        # The slots of an epoch, row by row: `_row_begins` has the first slot of each row, and the
        # end of the last row.
        sizes = np.repeat([len(row) for row, _ in layout], [times for _, times in layout])
        self._row_begins = np.zeros(len(sizes) + 1, np.uint32)
        np.cumsum(sizes, out=self._row_begins[1:])
        cells = [np.tile(row.astype(cell_of.dtype), times) for row, times in layout]
        cell_at = np.concatenate(cells)
        # Slots and pairs, both sorted by cell: the n-th pair goes to the n-th slot.
        self._slots = np.argsort(cell_at, kind="stable").astype(np.uint32)
        self._pairs = np.argsort(cell_of, kind="stable").astype(np.uint32)
        self._cell_ends = np.cumsum(counts)
        num_rows = len(sizes)
        per_step = max(1, int(batch_tokens) // max(row_lengths)) * num_hosts
        num_batches = -(-num_rows // per_step) * num_hosts
        self.buckets = [Bucket(-(-num_rows // num_batches), *row_lengths, num_pairs, num_batches)]
        self._num_hosts, self._num_rows = num_hosts, num_rows
        self.steps_per_epoch = num_batches // num_hosts

    def batch(self, step, host=0):
        """The batch of a global step on a host: a pure function of both and of the seed.

        Args:
            step: int. The global step.
            host: int, default 0.

        Returns:
            Tuple of the `Bucket`; the indices of its pairs, row by row, uint32 array; and the
            number of pairs in each row, int array of at most `rows` entries.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        pairs, order = self._epoch(epoch)
        bucket, number = self.buckets[0], position * self._num_hosts + host
        begin, end = (n * self._num_rows // bucket.num_batches for n in (number, number + 1))
        rows = order[begin:end].astype(np.int64)
        begins, ends = self._row_begins[rows], self._row_begins[rows + 1]
        slots = [np.arange(*span) for span in zip(begins.tolist(), ends.tolist(), strict=True)]
        pairs = pairs[np.concatenate([np.arange(0), *slots])]
        return bucket, pairs, (ends - begins).astype(np.int64)

    def _arrange(self, epoch):
        """The pair of each slot in an epoch, and the order of the rows."""
        pairs, order = self._pairs, np.arange(self._num_rows, dtype=np.uint32)
        if self._shuffle:
            bits = self._random_bits(epoch)
            pairs, begin = pairs.copy(), 0
            for end in self._cell_ends.tolist():
                cell = pairs[begin:end]
                cell[:] = cell[random_order(bits, end - begin)]
                begin = end
            order = random_order(bits, self._num_rows).astype(np.uint32)
        by_slot = np.empty_like(pairs)
        by_slot[self._slots] = pairs
        return by_slot, order


def _cells(source_lengths, target_lengths, row_lengths):
    """Groups pairs by their lengths, in units that keep the groups few.

    Returns:
        Tuple of the cell of every pair; the cells' lengths, a pair of int64 arrays; and the
        capacity of a row, a pair of ints. Lengths are in units of tokens.
    """
    unit = -(-max(row_lengths) // MAX_LEVELS)
    while True:
        capacity = tuple(length // unit for length in row_lengths)
        key_of = np.empty(len(source_lengths), np.uint32)
        histogram = np.zeros((capacity[0] + 1) * (capacity[1] + 1), np.int64)
        for span in corpus_parts(len(key_of)):
            # A pair that is rounded up beyond the capacity gets a row of its own.
            sources, targets = (
                np.minimum(-(-lengths[span].astype(np.int64) // unit), most)
                for lengths, most in zip((source_lengths, target_lengths), capacity, strict=True)
            )
            key_of[span] = sources * (capacity[1] + 1) + targets
            histogram += np.bincount(key_of[span], minlength=len(histogram))
        keys = np.flatnonzero(histogram)
        if len(keys) <= MAX_CELLS:
            break
        unit *= 2
    cell_of_key = np.zeros(len(histogram), np.uint16)  # MAX_CELLS is less than 65,536.
    cell_of_key[keys] = np.arange(len(keys))
    cell_of = np.empty(len(key_of), np.uint16)
    for span in corpus_parts(len(key_of)):
        cell_of[span] = cell_of_key[key_of[span]]
    return cell_of, divmod(keys, capacity[1] + 1), capacity


def segment_numbers(lengths, counts, shape):
    """The number of each token's pair in its row, from 1; 0 is padding.

    Args:
        lengths: int array [n]. The tokens of each pair.
        counts: int array. The number of pairs in each row; the sum is n.
        shape: `(rows, length)` of the result.

    Returns:
        int32 array [rows, length].

    Example:
    ```python
    from kformer.data.packing import segment_numbers

    segment_numbers(np.array([2, 1, 3]), np.array([2, 1]), (3, 4))
    # [[1, 1, 2, 0],
    #  [1, 1, 1, 0],
    #  [0, 0, 0, 0]]
    ```
    """
    row_begins = np.cumsum(counts) - counts
    numbers = 1 + np.arange(len(lengths)) - np.repeat(row_begins, counts)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    totals = ends[row_begins + counts] - ends[row_begins]
    segments = np.zeros(shape, np.int32)
    segments[: len(counts)][np.arange(shape[1]) < totals[:, None]] = np.repeat(numbers, lengths)
    return segments
