"""A parallel corpus as flat arrays of token ids on disk."""

import hashlib
import json
import os
import pathlib
import weakref

import numpy as np

FORMAT_VERSION = 1
CHUNK_PAIRS = 1 << 20
SIDES = ("source", "target")
# A closed list: nothing in a folder chooses how its bytes are read beyond these two.
ID_TYPES = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}
OFFSET_TYPE = np.dtype("<u8")


class PreparedCorpus:
    """Token ids of both sides of a corpus, read from a folder that `prepare` wrote.

    The folder holds, for each side, `SIDE.ids` (all ids of all pairs, one after the other),
    `SIDE.offsets` (where each pair begins, and the end of the last), and `meta.json`. Ids stand as
    the tokenizer gives them with its special tokens; the shift between decoder input and labels is
    made when a batch is put together. Nothing of them stays in memory, so a corpus may be far
    larger than that.

    Args:
        folder: path of the folder. Use `PreparedCorpus.load`.

    Attributes:
        num_pairs: pairs kept, which is what training sees.
        num_lines: pairs of lines read.
        num_too_long, num_empty: pairs left out because a side has more than `max_length` tokens, or
            none.
        too_long_examples, empty_examples: the first few line numbers of those, counted from 1.
        num_source_tokens, num_target_tokens: real tokens of each side, special tokens included.
        max_length, pad_id, start_id, end_id, vocabulary_size, target_vocabulary_size: as prepared.

    Example:

    >>> corpus = PreparedCorpus.load("data/train")
    >>> corpus.num_pairs, corpus.num_too_long
    (28990, 10)
    >>> corpus.ids("target", 0)             # the first pair's target tokens
    array([412,  87,   9,   3], dtype=uint16)
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        meta = _read_meta(self.folder)
        for name in (
            "num_pairs", "num_lines", "num_too_long", "num_empty", "too_long_examples", "empty_examples",
            "num_source_tokens", "num_target_tokens", "max_length", "pad_id", "start_id", "end_id",
            "vocabulary_size", "target_vocabulary_size",
        ):  # fmt: skip
            setattr(self, name, meta[name])
        self._vocabulary = meta.get("vocabulary")
        self._ids, self._offsets = {}, {}
        for side in SIDES:
            id_type = ID_TYPES[meta[f"{side}_id_type"]]
            self._ids[side] = self._open(f"{side}.ids", id_type, meta[f"num_{side}_tokens"])
            self._offsets[side] = self._open(f"{side}.offsets", OFFSET_TYPE, self.num_pairs + 1)

    @classmethod
    def load(cls, folder):
        """Opens a folder that `prepare` wrote.

        Raises:
            FileNotFoundError: when the folder holds no prepared corpus.
            ValueError: when it was written by a newer version, or a file of it is cut short.
        """
        return cls(folder)

    def check_tokenizer(self, tokenizer):
        """Makes sure that the corpus was prepared with this tokenizer, as far as can be known.

        Args:
            tokenizer: a `kformer.Tokenizer`.

        Raises:
            ValueError: it has other pieces.
        """
        pieces = vocabulary_fingerprint(tokenizer)
        if None not in (pieces, self._vocabulary) and pieces != self._vocabulary:
            raise ValueError(
                f"'{self.folder}' was prepared with another tokenizer than the one given: prepare it again with this one."
            )

    def __len__(self):
        return self.num_pairs

    def ids(self, side, index):
        """Token ids of pair `index` on `side` (`"source"` or `"target"`), special tokens included:
        int array [L].
        """
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"Pair {index} is not in a corpus of {self.num_pairs} pairs.")
        begin, end = self._offsets[side].read([(index, 2)]).tolist()
        return self._ids[side].read([(begin, end - begin)])

    def lengths(self, side):
        """Number of tokens of every pair on `side`, special tokens included: uint32 array
        [num_pairs].
        """
        lengths = np.empty(self.num_pairs, np.uint32)
        for begin in range(
            0, self.num_pairs, CHUNK_PAIRS
        ):  # piece by piece: the offsets are twice as wide
            part = lengths[begin : begin + CHUNK_PAIRS]
            part[:] = np.diff(self._offsets[side].read([(begin, len(part) + 1)]))
        return lengths

    def spans(self, side, pairs):
        """Where the tokens of some pairs begin among all of a side, and how many they are: two
        int64 arrays [n].

        Args:
            side: `"source"` or `"target"`.
            pairs: int array [n] of pair indices.
        """
        offsets = (
            self._offsets[side]
            .read([(pair, 2) for pair in pairs.tolist()])
            .reshape(-1, 2)
            .astype(np.int64)
        )
        return offsets[:, 0], offsets[:, 1] - offsets[:, 0]

    def gather(self, side, pairs, shape, counts=None):
        """Puts the token ids of some pairs into the rows of one padded array.

        Args:
            side: `"source"` or `"target"`.
            pairs: int array [n] of pair indices, n at most `shape[0]`.
            shape: `(rows, length)` of the result, with room for the longest pair.
            counts: int array, how many of the pairs stand behind each other in each row; `None`
                puts one in each.

        Returns:
            Tuple of an int32 array [rows, length], with `pad_id` right of each pair's tokens and in
            the rows below the last pair; and of the numbers of tokens, int array [n].
        """
        begins, lengths = self.spans(side, pairs)
        ids = self._ids[side].read(zip(begins.tolist(), lengths.tolist(), strict=True))
        return padded_rows(ids, lengths, shape, counts, self.pad_id), lengths

    def _open(self, name, dtype, count):
        path = self.folder / name
        size = path.stat().st_size if path.exists() else -1
        if size != count * dtype.itemsize:
            raise ValueError(
                f"The prepared corpus '{self.folder}' is damaged: its file '{name}' "
                f"{'is missing' if size < 0 else f'has {size} bytes instead of {count * dtype.itemsize}'}; remove the "
                "folder and prepare it again."
            )
        return FlatFile(path, dtype)


def padded_rows(ids, lengths, shape, counts, pad_id, dtype=np.int32):
    """Sequences that lie one after the other, as the rows of one padded array.

    Args:
        ids: int array, the ids of all sequences; or an array with more axes behind that one.
        lengths: int array [n], the ids of each.
        shape, counts: as for `PreparedCorpus.gather`.
        pad_id: int.
        dtype: of the result.

    Returns:
        Array of that shape (and those axes).
    """
    rows = np.full((*shape, *ids.shape[1:]), pad_id, dtype)
    totals = lengths
    if counts is not None:
        ends, row_ends = np.concatenate([[0], np.cumsum(lengths)]), np.cumsum(counts)
        totals = ends[row_ends] - ends[row_ends - counts]
    rows[: len(totals)][np.arange(shape[1]) < totals[:, None]] = ids
    return rows


class FlatFile:
    """A file of numbers, read at any positions and by any threads, of which nothing stays in
    memory.

    A memory map would do the same with less code. But the system maps large pieces of a file that
    is in its cache around each number that is touched (one batch of a corpus of 10 million pairs:
    385 MB), and these count as this process's memory."""

    def __init__(self, path, dtype):
        self.dtype = dtype
        if hasattr(os, "pread"):
            self._file = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)
        else:  # Windows
            self._map = np.memmap(path, dtype, mode="r")

    def read(self, spans):
        """The numbers of some spans, one span after the other: `spans` has pairs (begin, count)."""
        if not hasattr(os, "pread"):
            return np.concatenate(
                [self._map[begin : begin + count] for begin, count in spans] or [self._map[:0]]
            )
        size = self.dtype.itemsize
        return np.frombuffer(
            b"".join([os.pread(self._file, count * size, begin * size) for begin, count in spans]),
            self.dtype,
        )


def vocabulary_fingerprint(tokenizer):
    """Tells one vocabulary's pieces from another's: a string; `None` for a tokenizer that is none
    of this package.
    """
    if not hasattr(tokenizer, "vocabulary"):
        return None
    pieces = [tokenizer.vocabulary(side).pieces for side in SIDES]
    return hashlib.sha256(json.dumps(pieces).encode()).hexdigest()[:32]


def is_prepared(folder):
    """Whether `folder` is one that `prepare` wrote (so that it may be replaced)."""
    return os.path.isfile(os.path.join(folder, "meta.json")) and os.path.isfile(
        os.path.join(folder, "source.offsets")
    )


def _read_meta(folder):
    path = folder / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"'{folder}' holds no prepared corpus (no meta.json); write one with kformer.data.prepare(...)."
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        version = int(meta["format_version"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"'{path}' is not the meta.json of a prepared corpus; prepare it again."
        ) from None
    if version > FORMAT_VERSION:
        raise ValueError(
            f"The prepared corpus '{folder}' has format version {version}, but this kformer reads up to version "
            f"{FORMAT_VERSION}; upgrade kformer or prepare it again."
        )
    return meta
