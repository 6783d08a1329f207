"""Protocol buffers, such as SentencePiece's models, as bytes that are read and written here.

The protobuf library would tie kformer to the release that SentencePiece's Python module was
generated for.
"""

import struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def message_fields(data, position, end):
    """(field number, wire type, start, end) of each field of a protobuf message."""
    while position < end:
        tag, position = varint(data, position)
        wire_type = tag & 7
        if wire_type == VARINT:
            _, stop = varint(data, position)
        elif wire_type == BYTES:
            length, position = varint(data, position)
            stop = position + length
        else:
            stop = position + {FIXED64: 8, FIXED32: 4}[wire_type]
        yield tag >> 3, wire_type, position, stop
        position = stop


def varint(data, position):
    """A number of up to ten bytes, and the position after it; IndexError for another."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("a number has more than ten bytes")


def message(fields):
    """A message of pairs of field number and value: bytes, a float, a whole number, or the dict of
    a message inside.
    """
    out = bytearray()
    for number, value in fields:
        content = message(value.items()) if isinstance(value, dict) else value
        if isinstance(content, bytes):
            out += _varint(number << 3 | 2) + _varint(len(content)) + content
        elif isinstance(content, float):
            out += _varint(number << 3 | 5) + struct.pack("<f", content)
        else:  # A negative number takes the two's complement of 64 bits.
            out += _varint(number << 3) + _varint(int(content) & (1 << 64) - 1)
    return bytes(out)


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
