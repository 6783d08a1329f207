"""A writer of TensorFlow's checkpoints, without checksums of the numbers, for files that TensorFlow
would not write.
"""

import struct

import numpy as np

from kformer.interop.toolkits.tf_checkpoint import _MAGIC, _masked_checksum

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19, "object": 7}


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields):
    """A protocol buffer of pairs of field number and int or bytes."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def tensor_entry(array, offset, *more):
    axes = [(2, message((1, size))) for size in array.shape]
    fields = [(1, DTYPES[array.dtype.name]), (2, message(*axes)), (4, offset), (5, array.nbytes)]
    return message(*fields, *more)


def block(entries):
    """A block of pairs of key and value, with its trailer."""
    out, last = b"", b""
    for key, value in entries:
        shared = 0
        while shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        rest = key[shared:]
        out += varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        last = key
    return sealed(out + struct.pack("<2I", 0, 1) + b"\0")


def sealed(content):
    return content + struct.pack("<I", _masked_checksum(content))


def table(entries):
    """A table of one block."""
    return table_of(block(entries))


def table_of(data, handles=1):
    """A table whose index names one block several times."""
    handle = varint(0) + varint(len(data) - 5)
    index = block([(b"\xff" * (1 + number), handle) for number in range(handles)])
    empty = block([])
    footer = b"".join(
        varint(number)
        for number in (len(data), len(empty) - 5, len(data) + len(empty), len(index) - 5)
    )
    return data + empty + index + footer.ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def write_checkpoint(prefix, tensors, more=()):
    """Writes arrays by name, and pairs of key and value as they are."""
    entries, content = [(b"", message((1, 1)))], b""
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        entries.append((name.encode(), tensor_entry(array, len(content))))
        content += array.tobytes()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table([*entries, *more]))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(content)
