"""Files that may be compressed: gzip, bzip2, xz and zstd, known by their first bytes."""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import pathlib
import zipfile
import zlib

from kformer_options.installed import check_extra
from kformer_options.text_files import COMPRESSIONS

_BUFFER_BYTES = 1 << 20
_ENDINGS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_DAMAGE = (
    *(EOFError, OSError, UnicodeDecodeError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)


def plain_name(path):
    """Returns the path without the ending of a compression, such as `.gz`.

    Args:
        path: path.

    Returns:
        `pathlib.Path`.
    """
    path = pathlib.Path(path)
    return path.with_suffix("") if path.suffix in _ENDINGS else path


def check_compression(path):
    """Checks that what decompresses a file is installed, by the end of its name.

    Args:
        path: path.

    Raises:
        ImportError: the file is compressed by zstd, and pyarrow is not installed.
    """
    if pathlib.Path(path).suffix == ".zst":
        _pyarrow(path)


@contextlib.contextmanager
def naming_damage(path):
    """Makes the errors of decompressors, and of readers of Parquet, one sentence about the file.

    Args:
        path: path of the file.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        yield
    except Exception as error:
        # A damaged archive leads to places before its begin.
        is_of_system = getattr(error, "errno", None) not in (None, errno.EINVAL)
        is_damage = isinstance(error, _DAMAGE) and not is_of_system
        if not is_damage and not type(error).__module__.startswith("pyarrow"):
            raise
        reason = " ".join(str(error).split())
        message = f"{path} is damaged, or not what its name says ({reason})."
        raise ValueError(message) from error


@contextlib.contextmanager
def naming_archive(path):
    """Makes the errors of reading a ZIP archive one sentence about it.

    Args:
        path: path of the archive, or what it is, for messages.

    Raises:
        ValueError: it is damaged, has a password, or is packed in a way that Python does not know.
    """
    try:
        with naming_damage(path):
            yield
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}): pack it again.") from error


@contextlib.contextmanager
def open_binary(path):
    """Opens a file for reading, decompressed.

    The first bytes show how a file is compressed; if they do not, the end of its name (`.gz`,
    `.bz2`, `.xz`, `.zst`) does. The file may be a pipe: nothing is read twice.

    Args:
        path: path.

    Yields:
        A buffered binary file.

    Raises:
        ImportError: the file is compressed by zstd, and pyarrow is not installed.
        OSError: the file cannot be read.
        ValueError: the file is damaged. The block of the `with` statement raises this too.
    """
    with naming_damage(path), open(path, "rb", _BUFFER_BYTES) as file:
        start = file.peek(6)
        kinds = (kind for mark, kind in COMPRESSIONS.items() if start.startswith(mark))
        kind = next(kinds, _ENDINGS.get(pathlib.Path(path).suffix))
        if kind is None:
            yield file
            return
        # The modules' own readers of lines are slow: they are written in Python.
        yield io.BufferedReader(_decompressed(file, kind, path), _BUFFER_BYTES)


@contextlib.contextmanager
def create_binary(path):
    """Opens a file for writing, compressed as the end of its name says.

    Args:
        path: path. The same content makes the same bytes each time.

    Yields:
        A binary file.

    Raises:
        ImportError: the name ends in `.zst`, and pyarrow is not installed.
        OSError: the file cannot be written.
    """
    kind = _ENDINGS.get(pathlib.Path(path).suffix)
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(path, "wb"))
        if kind == "gzip":  # No name and time in it.
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, out, mtime=0))
        elif kind == "bzip2":
            out = stack.enter_context(bz2.BZ2File(out, "wb"))
        elif kind == "xz":
            out = stack.enter_context(lzma.LZMAFile(out, "wb"))
        elif kind == "zstd":
            out = stack.enter_context(_pyarrow(path).CompressedOutputStream(out, "zstd"))
        yield out


def _decompressed(file, kind, path):
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file)
    if kind == "bzip2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return lzma.LZMAFile(file)
    return _pyarrow(path).CompressedInputStream(file, "zstd")


def _pyarrow(path):
    check_extra(f"{path}, a file of zstd,", "corpora", ("pyarrow",))
    import pyarrow

    return pyarrow
