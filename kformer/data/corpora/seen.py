"""Which pairs were there before: duplicates and near duplicates, by hashes."""

import hashlib

import numpy as np

from kformer.data.corpora.characters import SPACE, characters


class Seen:
    """The pairs of a direction that were there before, and which of new ones repeat them.

    A pair takes 8 bytes for each of the two rules, for a moment twice that.

    Args:
        rules: collection of str. `"duplicates"`, `"near_duplicates"` or both; others are ignored.

    Call arguments:
        hashes: uint64 array `[N, 2]`, from `hashes_of`. Pairs that pass all other rules.

    Returns:
        Tuple of two bool arrays `[N]`: the duplicates, and the near duplicates that are none. All
        other pairs are remembered. The pairs alone that were remembered, in any order, make the
        same state again.
    """

    def __init__(self, rules):
        self._exact = _Table() if "duplicates" in rules else None
        self._near = _Table() if "near_duplicates" in rules else None

    def __call__(self, hashes):
        exact, near = hashes.T
        repeats = np.zeros(len(hashes), bool)
        if self._near is not None:
            repeats = self._near.repeats(near)
            self._near.add(near[~repeats])
        elif self._exact is not None:
            repeats = self._exact.repeats(exact)
        if self._exact is None:
            return repeats & False, repeats
        # A pair that repeats another one repeats its letters, too.
        self._exact.add(exact[~repeats])
        is_exact = repeats & self._exact.contains(exact)
        return is_exact, repeats & ~is_exact

    @staticmethod
    def hashes_of(sources, targets):
        """Returns the hashes of pairs, which are the same in every process.

        Args:
            sources, targets: lists of str of one length N.

        Returns:
            uint64 array `[N, 2]`: of the texts, and of their letters alone without regard to case.
        """
        exact = [
            f"{source}\n{target}".encode("utf-8", "surrogatepass")
            for source, target in zip(sources, targets, strict=True)
        ]
        near = map(b"\n\0".join, zip(letters(sources), letters(targets), strict=True))
        return np.stack([hash_bytes(exact), hash_bytes(near)], axis=1)


def letters(texts):
    """Returns the letters of each text without regard to case, as bytes.

    A text without letters is returned without its spaces.

    Args:
        texts: list of str.

    Returns:
        List of bytes.
    """
    points, classes, ends = characters([text.casefold() for text in texts])
    counts = np.cumsum(np.concatenate([[0], classes > SPACE]))[np.concatenate([[0], ends])]
    letters = points[classes > SPACE].tobytes()
    spans = zip((counts[:-1] * 4).tolist(), (counts[1:] * 4).tolist(), texts, strict=True)
    return [
        letters[begin:end] or "".join(text.split()).encode("utf-8", "surrogatepass")
        for begin, end, text in spans
    ]


def hash_bytes(values):
    """Returns 8-byte hashes of values.

    Args:
        values: iterable of bytes.

    Returns:
        uint64 array.
    """
    digests = [hashlib.blake2b(value, digest_size=8).digest() for value in values]
    return np.frombuffer(b"".join(digests), "<u8")


class _Table:
    """A growing set of hashes: sorted arrays, each more than twice as long as the next."""

    def __init__(self):
        self._arrays = []

    def contains(self, hashes):
        """Which of some hashes are there."""
        order = np.argsort(hashes)  # Searches in order stay within the caches.
        is_there = np.zeros(len(hashes), bool)
        for array in self._arrays:
            indices = np.searchsorted(array, hashes[order])
            is_there |= array[np.minimum(indices, len(array) - 1)] == hashes[order]
        return is_there[np.argsort(order)]

    def repeats(self, hashes):
        """Which of some hashes are there, or stand among them for a second time."""
        repeats = np.ones(len(hashes), bool)
        repeats[np.unique(hashes, return_index=True)[1]] = False
        return repeats | self.contains(hashes)

    def add(self, hashes):
        if len(hashes):
            self._arrays.append(np.sort(hashes))
        while len(self._arrays) > 1 and len(self._arrays[-2]) <= 2 * len(self._arrays[-1]):
            merged = np.concatenate(self._arrays[-2:])
            del self._arrays[-2:]
            merged.sort()
            self._arrays.append(merged)
