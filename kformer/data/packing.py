"""Packing: several pairs behind each other in each row of one fixed shape, as a pure function of
(seed, step, host).
"""

import numpy as np

from kformer.data.batching import Bucket, EpochPlan, corpus_parts

# Pairs of average length that a row has room for at least: with four, greedy packing leaves a few
# hundredths empty.
PAIRS_PER_ROW = 4
# Row lengths are multiples of it, which accelerators like.
LENGTH_STEP = 8
# Packing counts in units of so many tokens that neither limit is passed; what is rounded up stays
# empty.
MAX_LEVELS = 256
MAX_CELLS = 16384


def choose_row_lengths(source_lengths, target_lengths):
    """Lengths (S, T) of packed rows: room for the longest pair and for `PAIRS_PER_ROW` average
    ones.

    Both sides hold about the same number of average pairs, so that neither is full much before the
    other.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].

    Returns:
        Tuple of the two ints, multiples of `LENGTH_STEP`.
    """
    sides = [
        (int(lengths.max()), float(lengths.mean(dtype="float64")))
        for lengths in (source_lengths, target_lengths)
    ]
    pairs = max(
        min(PAIRS_PER_ROW, len(source_lengths)), *(longest / mean for longest, mean in sides)
    )
    return tuple(
        LENGTH_STEP * max(-(-longest // LENGTH_STEP), round(pairs * mean / LENGTH_STEP))
        for longest, mean in sides
    )


def pack_cells(sources, targets, counts, room):
    """Packs pairs, of which only their numbers by length are looked at, greedily into rows.

    A row begins with the longest pair left. Then comes, again and again, of the pairs that still
    fit the one that is longest and leaves like room on both sides. The row is repeated as long as
    there are pairs for it. So the work depends on the number of distinct lengths, not on that of
    pairs.

    Args:
        sources, targets: int64 arrays [cells], the lengths of a cell's pairs; no cell longer than
            `room`.
        counts: int64 array [cells], the number of its pairs.
        room: lengths (S, T) of a row.

    Returns:
        List of tuples: int64 array of a row's cells, each as often as the row has a pair of it; and
        how many rows are so.

    References:
        Krell et al. 2021, "Efficient sequence packing without cross-contamination" (packing by the
        histogram of lengths).
    """
    # As shares of one whole, in whole numbers: every machine finds the same rows.
    sources, targets = sources * room[1], targets * room[0]
    whole = room[0] * room[1]
    cells = np.lexsort((-(sources + targets), -np.maximum(sources, targets)))
    sources, targets, left = sources[cells], targets[cells], counts[cells]
    rows, first = [], 0
    while True:
        if len(rows) % 64 == 0:  # Cells without pairs are passed over all the faster.
            kept = np.flatnonzero(left)
            cells, sources, targets, left, first = (
                cells[kept],
                sources[kept],
                targets[kept],
                left[kept],
                0,
            )
            sizes = sources + targets
        while first < len(left) and not left[first]:
            first += 1
        if first == len(left):
            return rows
        row, cell = [], first
        source_room = target_room = whole
        while True:
            row.append(cell)
            left[cell] -= 1
            source_room -= sources[cell]
            target_room -= targets[cell]
            source_after, target_after = source_room - sources, target_room - targets
            score = sizes - np.abs(source_after - target_after)
            score[(source_after < 0) | (target_after < 0) | (left == 0)] = -whole
            cell = int(score.argmax())
            if score[cell] == -whole:
                break
        used, times = np.unique(row, return_counts=True)
        more = int((left[used] // times).min())
        left[used] -= more * times
        rows.append((cells[row], 1 + more))


class PackedPlan(EpochPlan):
    """Says, for every step of training on every host, which pairs stand in which row of the batch.

    The rows are laid out once, as lengths of pairs. In every epoch pairs of equal lengths change
    places at random, and the rows are put in a new order; so an epoch always has as many rows, and
    every pair exactly once. Without `shuffle` every epoch is as the first.

    Args:
        source_lengths, target_lengths: int arrays [num_pairs].
        batch_tokens: int. Most tokens, padding counted, on the longer side of a batch (but one row
            at least).
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
        cell_of, cells, room = _cells(source_lengths, target_lengths, row_lengths)
        counts = np.bincount(cell_of, minlength=len(cells[0]))
        layout = pack_cells(*cells, counts, room)
        # Places of an epoch, row by row; `_row_begins` tells where each row begins, and where the
        # last one ends.
        sizes = np.repeat([len(row) for row, _ in layout], [times for _, times in layout])
        self._row_begins = np.zeros(len(sizes) + 1, np.uint32)
        np.cumsum(sizes, out=self._row_begins[1:])
        cell_at = np.concatenate(
            [np.tile(row.astype(cell_of.dtype), times) for row, times in layout]
        )
        # Places and pairs, both by cell: the n-th pair goes to the n-th place.
        self._places = np.argsort(cell_at, kind="stable").astype(np.uint32)
        self._pairs = np.argsort(cell_of, kind="stable").astype(np.uint32)
        self._cell_ends = np.cumsum(counts)
        num_rows = len(sizes)
        per_step = max(1, int(batch_tokens) // max(row_lengths)) * num_hosts
        num_batches = -(-num_rows // per_step) * num_hosts
        self.buckets = [Bucket(-(-num_rows // num_batches), *row_lengths, num_pairs, num_batches)]
        self._num_hosts, self._num_rows = num_hosts, num_rows
        self.steps_per_epoch = num_batches // num_hosts

    def batch(self, step, host=0):
        """The batch of global step `step` on `host`: a pure function of both and of the seed.

        Returns:
            Tuple of the `Bucket`; the uint32 indices of its pairs, row by row; and the number of
            pairs in each row, int array of at most `rows` entries.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        pairs, order = self._epoch(epoch)
        bucket, number = self.buckets[0], position * self._num_hosts + host
        begin, end = (n * self._num_rows // bucket.num_batches for n in (number, number + 1))
        rows = order[begin:end].astype(np.int64)
        begins, ends = self._row_begins[rows], self._row_begins[rows + 1]
        places = [np.arange(*span) for span in zip(begins.tolist(), ends.tolist(), strict=True)]
        return (
            bucket,
            pairs[np.concatenate([np.arange(0), *places])],
            (ends - begins).astype(np.int64),
        )

    def _arrange(self, epoch):
        """The pair at each place in this epoch, and the order of the rows."""
        pairs, order = self._pairs, np.arange(self._num_rows, dtype=np.uint32)
        if self._shuffle:
            bits = self._random_bits(epoch)
            pairs, begin = pairs.copy(), 0
            for end in self._cell_ends.tolist():
                cell = pairs[begin:end]
                cell[:] = cell[np.argsort(bits.random_raw(end - begin), kind="stable")]
                begin = end
            order = np.argsort(bits.random_raw(self._num_rows), kind="stable").astype(np.uint32)
        at_place = np.empty_like(pairs)
        at_place[self._places] = pairs
        return at_place, order


def _cells(source_lengths, target_lengths, row_lengths):
    """Groups pairs by their lengths, in units of as many tokens as keep the groups few.

    Returns:
        Tuple of the cell of every pair; the cells' lengths, a pair of int64 arrays; and the row's,
        a pair of ints.
    """
    unit = -(-max(row_lengths) // MAX_LEVELS)
    while True:
        room = tuple(length // unit for length in row_lengths)
        key_of = np.empty(len(source_lengths), np.uint32)
        histogram = np.zeros((room[0] + 1) * (room[1] + 1), np.int64)
        for part in corpus_parts(len(key_of)):
            # What is rounded up beyond the room is a pair that has the row for itself.
            sources, targets = (
                np.minimum(-(-lengths[part].astype(np.int64) // unit), most)
                for lengths, most in zip((source_lengths, target_lengths), room, strict=True)
            )
            key_of[part] = sources * (room[1] + 1) + targets
            histogram += np.bincount(key_of[part], minlength=len(histogram))
        keys = np.flatnonzero(histogram)
        if len(keys) <= MAX_CELLS:
            break
        unit *= 2
    cell_of_key = np.zeros(len(histogram), np.uint16)  # MAX_CELLS is less than 65,536.
    cell_of_key[keys] = np.arange(len(keys))
    cell_of = np.empty(len(key_of), np.uint16)
    for part in corpus_parts(len(key_of)):
        cell_of[part] = cell_of_key[key_of[part]]
    return cell_of, divmod(keys, room[1] + 1), room


def segment_numbers(lengths, counts, shape):
    """Which pair of its row each token belongs to, counted from 1; 0 is padding.

    Args:
        lengths: int array [n], the tokens of each pair.
        counts: int array, the number of pairs in each row, in all n.
        shape: `(rows, length)` of the result.

    Returns:
        int32 array [rows, length].

    Example:

    >>> segment_numbers(np.array([2, 1, 3]), np.array([2, 1]), (3, 4))
    array([[1, 1, 2, 0],
           [1, 1, 1, 0],
           [0, 0, 0, 0]], dtype=int32)
    """
    row_begins = np.cumsum(counts) - counts
    numbers = 1 + np.arange(len(lengths)) - np.repeat(row_begins, counts)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    totals = ends[row_begins + counts] - ends[row_begins]
    segments = np.zeros(shape, np.int32)
    segments[: len(counts)][np.arange(shape[1]) < totals[:, None]] = np.repeat(numbers, lengths)
    return segments
