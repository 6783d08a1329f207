"""A parallel corpus as flat arrays of token ids on disk."""

import json
import mmap
import os
import pathlib

import numpy as np

FORMAT_VERSION = 1
SIDES = ("source", "target")
# A closed list: nothing in a folder chooses how its bytes are read beyond these two.
ID_TYPES = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}
OFFSET_TYPE = np.dtype("<u8")


class PreparedCorpus:
    """Token ids of both sides of a corpus, mapped into memory from a folder that `prepare` wrote.

    The folder holds, for each side, `SIDE.ids` (all ids of all pairs, one after the other), `SIDE.offsets` (where each
    pair begins, and the end of the last), and `meta.json`. Ids stand as the tokenizer gives them with its special
    tokens; the shift between decoder input and labels is made when a batch is put together. Only the pages that are
    read occupy memory, so a corpus may be far larger than memory.

    Args:
        folder: path of the folder. Use `PreparedCorpus.load`.

    Attributes:
        num_pairs: pairs kept, which is what training sees.
        num_lines: pairs of lines read.
        num_too_long, num_empty: pairs left out because a side has more than `max_length` tokens, or none.
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
        self._maps = []
        self._ids, self._offsets = {}, {}
        for side in SIDES:
            id_type = ID_TYPES[meta[f"{side}_id_type"]]
            self._ids[side] = self._map(f"{side}.ids", id_type, meta[f"num_{side}_tokens"])
            self._offsets[side] = self._map(f"{side}.offsets", OFFSET_TYPE, self.num_pairs + 1)

    @classmethod
    def load(cls, folder):
        """Opens a folder that `prepare` wrote.

        Raises:
            FileNotFoundError: when the folder holds no prepared corpus.
            ValueError: when it was written by a newer version, or a file of it is cut short.
        """
        return cls(folder)

    def __len__(self):
        return self.num_pairs

    def ids(self, side, index):
        """Token ids of pair `index` on `side` (`"source"` or `"target"`), special tokens included: int array [L]."""
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"Pair {index} is not in a corpus of {self.num_pairs} pairs.")
        begin, end = self._offsets[side][index : index + 2].tolist()
        return np.array(self._ids[side][begin:end])

    def lengths(self, side, pairs=None):
        """Number of tokens on `side`, special tokens included, of every pair or of some: uint32 array."""
        offsets = self._offsets[side]
        if pairs is None:
            return np.diff(offsets).astype(np.uint32)
        return (offsets[np.asarray(pairs, np.int64) + 1] - offsets[pairs]).astype(np.uint32)

    def gather(self, side, pairs, shape, dtype=np.int32):
        """Puts the token ids of some pairs into the rows of one padded array.

        Args:
            side: `"source"` or `"target"`.
            pairs: int array [n] of pair indices, n at most `shape[0]`.
            shape: `(rows, length)` of the result, with room for the longest pair.
            dtype: type of the result.

        Returns:
            Array [rows, length]; `pad_id` right of each pair's tokens and in the rows below the last pair.
        """
        batch = np.full(shape, self.pad_id, dtype)
        if len(pairs):
            offsets = self._offsets[side]
            pairs = np.asarray(pairs, np.int64)
            begins = offsets[pairs].astype(np.int64)
            lengths = offsets[pairs + 1].astype(np.int64) - begins
            # Position of every token in the flat file, row after row: one gather instead of one copy per row.
            ends = np.cumsum(lengths)
            positions = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
            real = np.arange(shape[1]) < lengths[:, None]
            batch[: len(pairs)][real] = self._ids[side][positions]
        return batch

    def release(self):
        """Lets go of the mapped pages that were read; they are read from the files again when they are needed.

        Pages of a mapped file count as this process's memory until the system wants them back. An epoch in random
        order touches all of them, so a long training would otherwise seem to grow to the size of the corpus.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, name, dtype, count):
        path = self.folder / name
        size = path.stat().st_size if path.exists() else -1
        if size != count * dtype.itemsize:
            raise ValueError(
                f"The prepared corpus '{self.folder}' is damaged: its file '{name}' "
                f"{'is missing' if size < 0 else f'has {size} bytes instead of {count * dtype.itemsize}'}; remove the "
                "folder and prepare it again."
            )
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype)


def is_prepared(folder):
    """Whether `folder` is one that `prepare` wrote (so that it may be replaced)."""
    return os.path.isfile(os.path.join(folder, "meta.json")) and os.path.isfile(os.path.join(folder, "source.offsets"))


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
        raise ValueError(f"'{path}' is not the meta.json of a prepared corpus; prepare it again.") from None
    if version > FORMAT_VERSION:
        raise ValueError(
            f"The prepared corpus '{folder}' has format version {version}, but this kformer reads up to version "
            f"{FORMAT_VERSION}; upgrade kformer or prepare it again."
        )
    return meta
