"""The tensors in Marian's own files: archives of NumPy arrays (`.npz`) and its binary format
(`.bin`), with 8-bit matrices or without. Nothing in them is run, and a tensor is read when it is
asked for.
"""

import gzip
import mmap
import struct
import tokenize
import zipfile
import zlib

import numpy as np

from kformer.interop.toolkits.archives import open_zip, read_gzip, reading_archive
from kformer.utils.checks import shown

SETTINGS = "special:model.yml"
# The longest settings, and the most tensors, with the longest name and the most axes of one.
_MOST_SETTINGS_BYTES = 1 << 20
_MOST_TENSORS = 20_000
_MOST_NAME = 1000
_MOST_RANK = 8
# Weights hardly compress, so a file that does holds something else.
_MOST_RATIO = 20
_FREE_BYTES = 16 << 20
_FLOATS = {0x402: "<f2", 0x404: "<f4", 0x408: "<f8"}
_INT8 = 0x101
# Types of 8-bit matrices for every CPU, and whether they are of Firefox's fork of Marian.
_PACKED = {0x10001: False, 0x4101: True}
_VERSION = 1
# What NumPy raises for a damaged header, beside ValueError and TypeError.
_HEADER_ERRORS = (SyntaxError, tokenize.TokenError, RecursionError, MemoryError)
_FORMAT_ERRORS = (struct.error, zlib.error, zipfile.BadZipFile)
_GZIP = b"\x1f\x8b"


def is_marian_file(path):
    """Whether a file begins as Marian's do. It is not read whole, and nothing is raised."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            if start == b"PK\x03\x04" and path.suffix == ".npz":
                with zipfile.ZipFile(path) as archive:
                    return f"{SETTINGS}.npy" in archive.namelist()
            file.seek(0)
            if start[:2] == _GZIP:
                file = gzip.GzipFile(fileobj=file)
            version, count = struct.unpack("<2Q", file.read(16))
            return version == _VERSION and 0 < count <= _MOST_TENSORS
    except (OSError, EOFError, ValueError, RuntimeError, *_FORMAT_ERRORS):
        return False


def open_tensors(path):
    """The tensors of a file.

    Args:
        path: `pathlib.Path` of a `.npz`, `.bin` or `.bin.gz`.

    Returns:
        Settings, bytes; dict of name to pair of shape and function without arguments, which returns
        an array; and whether matrices have 8 bits.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        if path.suffix == ".npz":
            tensors, is_packed = _open_npz(path), False
        else:
            tensors, is_packed = _open_binary(path)
        if SETTINGS not in tensors:
            raise ValueError(f"{path} has no {SETTINGS}, so it is not Marian's.")
        shape, read = tensors.pop(SETTINGS)
        if _count(shape) > _MOST_SETTINGS_BYTES:
            raise ValueError(f"{path} has settings of {_count(shape):,} bytes: it is damaged.")
        settings = read().tobytes()
    except (*_HEADER_ERRORS, OverflowError, TypeError, ValueError, struct.error) as error:
        text = str(error)
        if str(path) not in text:
            text = f"{path} is damaged ({shown(text)}): copy it again."
        raise ValueError(text) from None
    # Several NULs end the settings.
    return settings.partition(b"\0")[0], tensors, is_packed


def _open_npz(path):
    with reading_archive(path), open_zip(path):  # It checks the list of members.
        archive = zipfile.ZipFile(path)
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > _MOST_TENSORS or size > _MOST_RATIO * path.stat().st_size + _FREE_BYTES:
        raise ValueError(f"it would unpack to {size:,} bytes")
    tensors = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        with reading_archive(path), archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"{name} has the version {version}")
            read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, is_fortran, dtype = read_header(file)
            header = file.tell()
        stored = member.file_size - header
        if dtype.hasobject or dtype.itemsize * _count(shape) != stored or name in tensors:
            raise ValueError(f"{name} has the shape {shape}, but {stored:,} bytes")

        def read(member=member, header=header, shape=shape, dtype=dtype, is_fortran=is_fortran):
            with reading_archive(path), archive.open(member) as file:
                content = file.read()[header:]
            return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")

        tensors[name] = (shape, read)
    return tensors


def _count(shape):
    """The number of numbers in a shape that a file states."""
    if len(shape) > _MOST_RANK or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"a tensor has the shape {shown(shape)}")
    count = 1
    for size in shape:
        count *= size
    return count


def _content(path):
    with open(path, "rb") as file:
        if file.read(2) != _GZIP:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return read_gzip(path)


def _open_binary(path):
    content = _content(path)
    version, count = struct.unpack_from("<2Q", content)
    if version != _VERSION or count > _MOST_TENSORS:
        raise ValueError(f"it has the version {version} and {count:,} tensors")
    position = 16 + 32 * count
    headers = [struct.unpack_from("<4Q", content, 16 + 32 * i) for i in range(count)]
    names, shapes = [], []
    for length, _, rank, _ in headers:
        if length > _MOST_NAME or rank > _MOST_RANK or position + length > len(content):
            raise ValueError("a tensor has too long a name or too many dimensions")
        names.append(content[position : position + length].rstrip(b"\0").decode())
        position += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", content, position))
        position += 4 * rank
    (padding,) = struct.unpack_from("<Q", content, position)
    position += 8 + padding
    tensors, is_packed = {}, False
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        number = _count(shape)
        if kind in _PACKED:
            needed, is_packed = number + 4, True
        elif kind == _INT8:
            needed = number
        elif kind in _FLOATS:
            needed = number * (kind & 0xFF)
        else:
            raise ValueError(
                f"{path} stores {shown(name)} as the type {kind:#x}, which is for one kind of CPU: "
                "give the file that it was converted from."
            )
        if needed > size or position + size > len(content) or name in tensors:
            raise ValueError(f"{name} has the shape {shape}, but {size:,} bytes")

        def read(kind=kind, shape=shape, number=number, start=position, name=name):
            if kind not in _PACKED:
                dtype = _FLOATS.get(kind, "i1")
                return np.frombuffer(content, dtype, number, start).reshape(shape)
            (factor,) = struct.unpack_from("<f", content, start + number)
            if not (np.isfinite(factor) and factor > 0):
                raise ValueError(f"{path}: {name} has the multiplier {factor}, so it is damaged.")
            whole = np.frombuffer(content, "i1", number, start)
            # Matrices are stored transposed, except the tables in Firefox's files.
            is_table = _PACKED[kind] and "Wemb" in name
            whole = whole.reshape(shape) if is_table else whole.reshape(shape[::-1]).T
            return whole.astype("float32") / np.float32(factor)

        tensors[name] = (shape, read)
        position += size
    return tensors, is_packed
