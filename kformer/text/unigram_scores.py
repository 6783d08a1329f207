"""Scores of a unigram model whose sums are exact.

Releases of SentencePiece search the best segmentation in different floating-point widths: the one
inside tensorflow-text compares a double with a stored float, later ones compare two floats. If two
segmentations have equal scores, as "a" + "aa" and "aa" + "a" for "aaa", the rounding of the sums
decides, and releases may differ. Sums of multiples of 1/64 are exact in a float up to 2^18, some
20,000 pieces, so all releases choose the same segmentation.

Imported models get multiples of 1/1024, which are exact up to 2^14, more pieces than these models
read at once. They are so fine that a slightly better segmentation stays better.
"""

import struct

_STEPS = 64
IMPORT_STEPS = 1024
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of SentencePiece's ModelProto and of the SentencePiece message inside it.
_PIECES_FIELD, _SCORE_FIELD = 1, 2


def quantize_scores(model, steps=_STEPS):
    """A serialized SentencePiece model with each score rounded to a multiple of 1/64.

    This changes a probability by at most 0.8 %. The scores of a BPE model are integers and stay.

    The bytes are edited in place. To parse them with the protobuf library would tie kformer to the
    protobuf release of SentencePiece's Python module.

    Args:
        model: bytes.
        steps: int, default 64. A power of two; scores become multiples of 1/steps.

    Returns:
        bytes of the same length.
    """
    edited = bytearray(model)
    for field, wire_type, start, end in message_fields(model, 0, len(model)):
        if (field, wire_type) != (_PIECES_FIELD, _BYTES):
            continue
        for inner, inner_type, inner_start, _ in message_fields(model, start, end):
            if (inner, inner_type) == (_SCORE_FIELD, _FIXED32):
                (score,) = struct.unpack_from("<f", model, inner_start)
                struct.pack_into("<f", edited, inner_start, round(score * steps) / steps)
    return bytes(edited)


def message_fields(data, position, end):
    """(field number, wire type, start, end) of each field of a protobuf message."""
    while position < end:
        tag, position = varint(data, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, stop = varint(data, position)
        elif wire_type == _BYTES:
            length, position = varint(data, position)
            stop = position + length
        else:
            stop = position + {_FIXED64: 8, _FIXED32: 4}[wire_type]
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
