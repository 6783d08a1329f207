"""Scores of a unigram model that add up exactly.

Releases of SentencePiece look for the best path in different floating-point widths (the one inside
tensorflow-text compares a double with a stored float, later ones two floats). Where two paths are
of equal worth, as for "aaa" cut into "a" + "aa" or "aa" + "a", the rounding of their sums decides,
and so each release may cut in another way. Scores that are multiples of 1/64 have no rounding:
their sums are exact in a float up to 2^18 in size, some 20,000 pieces, and equal paths are equal
for every release, which then all take the same one.

Imported models get the finer multiples of 1/1024, which are exact up to 2^14, more pieces than
their models read at
once: so fine that a path which was better by a bare margin stays better.
"""

import struct

_STEPS = 64
IMPORT_STEPS = 1024
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of SentencePiece's ModelProto and of the SentencePiece message inside it.
_PIECES_FIELD, _SCORE_FIELD = 1, 2


def quantize_scores(model, steps=_STEPS):
    """A serialised SentencePiece model with each score rounded to a multiple of 1/64 (a probability
    to 0.8 %).

    The scores of a BPE model are whole numbers and stay.

    The bytes are edited where they stand: reading them with the protobuf library would tie kformer
    to the release of protobuf that SentencePiece's Python module was generated for.

    Args:
        model: bytes.
        steps: int, the multiples are those of 1/steps; a power of two.

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
    """(field number, wire type, start and end of its content) of each field of a protobuf message."""
    while position < end:
        tag, position = _varint(data, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, stop = _varint(data, position)
        elif wire_type == _BYTES:
            length, position = _varint(data, position)
            stop = position + length
        else:
            stop = position + {_FIXED64: 8, _FIXED32: 4}[wire_type]
        yield tag >> 3, wire_type, position, stop
        position = stop


def _varint(data, position):
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
