"""Folders of flat files of numbers, which a `meta.json` with checksums describes."""

import contextlib
import json
import os
import pathlib
import weakref

import numpy as np

from kformer.utils.checksums import file_checksum, is_damaged, with_checksum
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
            parts = [self._map[begin : begin + count] for begin, count in spans]
            return np.concatenate([self._map[:0], *parts])
        size = self.dtype.itemsize
        parts = [os.pread(self._file, count * size, begin * size) for begin, count in spans]
        return np.frombuffer(b"".join(parts), self.dtype)


class FlatFolder:
    """A folder of flat files, opened by its `meta.json`.

    Args:
        folder: path.
        kind: str. What the folder holds, for messages, such as "prepared corpus".
        remedy: str. How it is made, for messages.
        newest: int. The newest format version that this code reads.
        is_complete: function from the content of `meta.json` to whether it has all that is needed.

    Attributes:
        path: `pathlib.Path`.
        meta: dict. The content of `meta.json`.

    Raises:
        FileNotFoundError: there is no `meta.json`.
        ValueError: it is damaged, or has a newer format.
    """

    def __init__(self, folder, kind, remedy, newest, is_complete):
        self.path, self._remedy = pathlib.Path(folder), remedy
        path = self.path / "meta.json"
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
        self.meta = meta

    def open(self, name, dtype, count):
        """Opens a file of the folder.

        Args:
            name: str. The name of the file.
            dtype: NumPy dtype.
            count: int. The numbers that the file should have.

        Returns:
            `FlatFile`.

        Raises:
            ValueError: the file has another size or another checksum.
        """
        path, expected = self.path / name, count * dtype.itemsize
        size = path.stat().st_size if path.is_file() else -1
        if size != expected:
            fault = "is missing" if size < 0 else f"has {size} bytes instead of {expected}"
            raise self.damaged(f"its file '{name}' {fault}")
        if self.meta["checksums"].get(name) != file_checksum(path):
            raise self.damaged(f"its file '{name}' has a wrong checksum")
        return FlatFile(path, dtype)

    def damaged(self, fault):
        """Returns the error for a folder with a fault."""
        return ValueError(f"'{self.path}' is damaged: {fault}; remove it and {self._remedy}.")


class FlatFolderWriter:
    """Base class of contexts in which the files of such a folder are open for writing.

    Args:
        folder: path of an existing folder.
        names: list of str. The files.
    """

    def __init__(self, folder, names):
        self._folder, self._names = pathlib.Path(folder), names

    def __enter__(self):
        # Not memory maps: writing to one ends the process, without an error, if the disk is full.
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(self._folder / name, "wb")) for name in self._names]
            self._files = dict(zip(self._names, files, strict=True))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._open.close()

    def write_meta(self, meta):
        """Writes `meta.json` with the checksums of the files, which are closed."""
        checksums = {name: file_checksum(self._folder / name) for name in self._names}
        text = json.dumps(with_checksum({**meta, "checksums": checksums}), indent=1) + "\n"
        (self._folder / "meta.json").write_text(text, encoding="utf-8")
