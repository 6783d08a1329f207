"""TensorFlow's checkpoints, read without TensorFlow.

A checkpoint is `PREFIX.index`, a sorted table of names (a LevelDB table of blocks, in which each
name is stored without what it shares with the one before it), and `PREFIX.data-00000-of-00001`, the
numbers. The table's values are protocol buffers: a tensor's dtype, its shape, and where it is.
"""

import functools
import math
import pathlib
import struct
from typing import NamedTuple

import ml_dtypes
import numpy as np

from kformer.interop.limits import MOST_LIST_BYTES
from kformer.text.protobuf import message_fields, varint
from kformer.utils.checks import shown
from kformer.utils.files import read_bytes

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# After a block: its compression, and the checksum of both.
_TRAILER_BYTES = 5
_MOST_TENSORS = 200_000
_MOST_NAME_BYTES = 4096
_MOST_NAMES_BYTES = 64 << 20
# Of a tensor's entry: some ten numbers.
_MOST_ENTRY_BYTES = 1024
_MOST_AXES = 16
# By their numbers in TensorFlow's `DataType`; numbers of other types are not read.
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype("<f2"),
}
# Fields of `BundleHeaderProto` and of `BundleEntryProto`.
_NUM_SHARDS, _ENDIANNESS = 1, 2
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _SLICES = 1, 2, 3, 4, 5, 7


class StoredTensor(NamedTuple):
    """A tensor in a checkpoint.

    Attributes:
        path: `pathlib.Path` of its file.
        dtype: NumPy dtype, or `None` for one that is not read.
        shape: tuple of int.
        offset: int. Its first byte in the file.
    """

    path: pathlib.Path
    dtype: np.dtype | None
    shape: tuple
    offset: int

    def read(self):
        """The tensor as a NumPy array over the mapped file.

        Raises:
            TypeError: it has a dtype that is not read.
        """
        if self.dtype is None:
            raise TypeError("its numbers are neither floats nor whole numbers")
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def read_checkpoint(prefix):
    """The tensors of a checkpoint.

    Args:
        prefix: str or path, such as "run/ckpt-700".

    Returns:
        Dict of name to `StoredTensor`, and the bytes of the files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or no checkpoint.
    """
    index = pathlib.Path(f"{prefix}.index")
    if not index.is_file():
        raise FileNotFoundError(f"There is no {index}: give a checkpoint with its index and data.")
    content = read_bytes(index, MOST_LIST_BYTES, remedy="copy the checkpoint again")
    try:
        entries = list(_entries(content))
        header = dict(_fields(entries[0][1])) if entries and entries[0][0] == b"" else None
        if header is None:
            raise ValueError("it has no header")
        if header.get(_ENDIANNESS, 0) != 0:
            raise ValueError("its numbers are big-endian")
        return _tensors(pathlib.Path(prefix), entries[1:], header.get(_NUM_SHARDS, 1))
    except (LookupError, ValueError, TypeError, struct.error) as error:
        reason = str(error) if isinstance(error, ValueError) else "its table is cut or damaged"
        raise ValueError(f"{index} is no sound checkpoint: {reason}. Copy it again.") from None


def _tensors(prefix, entries, num_shards):
    shards, tensors = {}, {}
    for key, value in entries:
        name = key.decode("utf-8")  # A UnicodeDecodeError is a ValueError.
        fields = dict(_fields(value))
        if _SLICES in fields:
            raise ValueError(f"{shown(name)} is stored in slices, which are not read")
        shard = fields.get(_SHARD, 0)
        if not 0 <= shard < num_shards <= 100_000:
            raise ValueError(f"{shown(name)} is in a file that the checkpoint does not have")
        if shard not in shards:
            path = prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{num_shards:05}")
            if not path.is_file():
                raise FileNotFoundError(f"There is no {path}, the data of {prefix}.index.")
            shards[shard] = path, path.stat().st_size
        path, num_bytes = shards[shard]
        shape = _shape(fields.get(_SHAPE, b""))
        offset, size = fields.get(_OFFSET, 0), fields.get(_SIZE, 0)
        dtype = _DTYPES.get(fields.get(_DTYPE))
        if dtype is not None and math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{shown(name)} has {size} bytes for the shape {list(shape)}")
        if not 0 <= offset <= offset + size <= num_bytes:
            raise ValueError(f"{path.name} ends before the tensor {shown(name)}")
        tensors[name] = StoredTensor(path, dtype, shape, offset)
    return tensors, sum(size for _, size in shards.values())


def _shape(message):
    """The shape of a `TensorShapeProto`."""
    shape = []
    for field, value in _fields(message):
        if field == 2:  # an axis
            shape.append(dict(_fields(value)).get(1, 0))
    if len(shape) > _MOST_AXES:
        raise ValueError(f"a tensor has {len(shape)} axes")
    return tuple(shape)


def _fields(message):
    """(field number, value) of each field of a protocol buffer: an int, or bytes."""
    for number, wire_type, start, end in message_fields(message, 0, len(message)):
        if end > len(message):
            raise ValueError("an entry is cut off")
        value = message[start:end]
        yield number, varint(value, 0)[0] if wire_type == 0 else value


def _entries(table):
    """(key, value) of each entry of a LevelDB table, bytes."""
    if len(table) < _FOOTER_BYTES or table[-8:] != struct.pack("<Q", _MAGIC):
        raise ValueError("it does not end as one (an index of TensorFlow 0.x is not read)")
    footer = table[-_FOOTER_BYTES:]
    _, position = _handle(footer, 0)  # of the block of further data, which is empty
    handle, _ = _handle(footer, position)
    count = names_size = blocks_size = 0
    for _, value in _block(table, *handle):
        (offset, size), _ = _handle(value, 0)
        blocks_size += size
        if blocks_size > len(table):
            raise ValueError("the blocks of its table overlap")
        for key, entry in _block(table, offset, size):
            count, names_size = count + 1, names_size + len(key)
            if count > _MOST_TENSORS or names_size > _MOST_NAMES_BYTES:
                raise ValueError("it lists more tensors than any published model has")
            if len(entry) > _MOST_ENTRY_BYTES:
                raise ValueError(f"the entry of {shown(key)} is too long")
            yield key, entry


def _handle(data, position):
    """Offset and size of a block, and the position after them."""
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _block(table, offset, size):
    """(key, value) of each entry of a block."""
    end = offset + size
    if end + _TRAILER_BYTES > len(table):
        raise ValueError("a block of its table is cut off")
    if table[end]:
        raise ValueError("its table is compressed, which TensorFlow's own never are")
    (checksum,) = struct.unpack_from("<I", table, end + 1)
    if _masked_checksum(table[offset : end + 1]) != checksum:
        raise ValueError("the checksum of its table is wrong")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    end -= 4 + 4 * num_restarts
    position, key = offset, b""
    while position < end:
        shared, position = varint(table, position)
        unshared, position = varint(table, position)
        length, position = varint(table, position)
        size = shared + unshared
        if shared > len(key) or size > _MOST_NAME_BYTES or position + unshared + length > end:
            raise ValueError("an entry of its table is damaged")
        key = key[:shared] + table[position : position + unshared]
        position += unshared
        yield key, table[position : position + length]
        position += length


def _masked_checksum(data):
    """The CRC-32C of bytes, as LevelDB stores it."""
    table, crc = _checksum_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _checksum_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table
