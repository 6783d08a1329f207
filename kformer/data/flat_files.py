"""Folders of flat files of numbers, which a `meta.json` with checksums describes."""

import os
import weakref

import numpy as np

from kformer.utils.checksums import file_checksum, is_damaged
from kformer.utils.files import read_json


class FlatFile:
    """A file of numbers that any threads read at any positions, without keeping it in memory.

    A memory map would need less code. But the system maps large parts of a cached file around each
    number (385 MB for one batch of a corpus of 10 million pairs), which count as memory of the
    process."""

    def __init__(self, path, dtype):
        self._path, self.dtype = path, dtype
        self._size = os.path.getsize(path) // dtype.itemsize
        if hasattr(os, "pread"):
            self._file = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)
        else:  # Windows
            self._map = np.memmap(path, dtype, mode="r")

    def __reduce__(self):
        # A copy opens the file anew: the number of the open one may be another file's by then.
        return type(self), (self._path, self.dtype)

    def __len__(self):
        return self._size

    def read(self, spans):
        """Returns the numbers of some spans, one span after the other.

        Args:
            spans: iterable of pairs (begin, count).
        """
        if not hasattr(os, "pread"):
            return np.concatenate(
                [self._map[begin : begin + count] for begin, count in spans] or [self._map[:0]]
            )
        size = self.dtype.itemsize
        return np.frombuffer(
            b"".join([os.pread(self._file, count * size, begin * size) for begin, count in spans]),
            self.dtype,
        )


def read_meta(folder, kind, remedy, newest, is_complete):
    """Reads the `meta.json` of a folder.

    Args:
        folder: `pathlib.Path`.
        kind: str. What the folder holds, for messages, such as "prepared corpus".
        remedy: str. How it is made, for messages.
        newest: int. The newest format version that this code reads.
        is_complete: function from the content to whether it has all that is needed.

    Returns:
        dict.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or has a newer format.
    """
    path = folder / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(f"'{folder}' holds no {kind} (no meta.json); {remedy}.")
    try:
        meta = read_json(path)
        version = int(meta["format_version"])
    except (ValueError, KeyError, TypeError):
        meta, version = {}, 0
    if version > newest:
        raise ValueError(
            f"'{folder}' ({kind}) has format version {version}, but this kformer reads up to "
            f"version {newest}; upgrade kformer, or {remedy}."
        )
    has_checksums = {"checksums", "checksum"} <= meta.keys()
    if not has_checksums or is_damaged(meta) or not is_complete(meta):
        raise ValueError(
            f"'{path}' is damaged, or not the meta.json of any {kind}; remove the folder and "
            f"{remedy}."
        )
    return meta


def open_file(folder, name, dtype, count, meta, remedy):
    """Opens a file of a folder.

    Args:
        folder: `pathlib.Path`.
        name: str. The name of the file.
        dtype: NumPy dtype.
        count: int. The numbers that the file should have.
        meta: dict, as `read_meta` returns it.
        remedy: str. How the folder is made, for messages.

    Returns:
        `FlatFile`.

    Raises:
        ValueError: the file has another size or another checksum.
    """
    path, expected, fault = folder / name, count * dtype.itemsize, None
    size = path.stat().st_size if path.is_file() else -1
    if size != expected:
        fault = "is missing" if size < 0 else f"has {size} bytes instead of {expected}"
    elif meta["checksums"].get(name) != file_checksum(path):
        fault = "has a wrong checksum"
    if fault is not None:
        raise damaged(folder, f"its file '{name}' {fault}", remedy)
    return FlatFile(path, dtype)


def damaged(folder, fault, remedy):
    """Returns the error for a folder with a fault."""
    return ValueError(f"'{folder}' is damaged: {fault}; remove the folder and {remedy}.")
