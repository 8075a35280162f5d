"""Zigzag varints of the record format (protobuf's sint32 and sint64), with ready tables for the hot path.

A varint holds seven bits a byte, lowest first, the top bit set on all but the last; zigzag maps 0, -1, 1, -2
to 0, 1, 2, 3.
https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from core_log.errors import CorruptBatch

ONE_BYTE_BELOW = 64
TWO_BYTES_BELOW = 8192


def encode_varint(value: int) -> bytes:
    """The zigzag varint of a number of up to 64 bits."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


VARINTS = [encode_varint(value) for value in range(TWO_BYTES_BELOW)]
"""Ready varints of 0 to 8191, all there are of one and two bytes."""

LOW_BYTES = bytes(item[0] for item in VARINTS)
"""First bytes of `VARINTS`, to compare whole columns of consecutive offset deltas with."""

HIGH_BYTES = bytes(item[-1] for item in VARINTS)
"""Last bytes of `VARINTS`."""


def varint(value: int) -> bytes:
    """The zigzag varint of a number, from the table when it is small."""
    return VARINTS[value] if 0 <= value < TWO_BYTES_BELOW else encode_varint(value)


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """(value, position after it) of a varint of up to 64 bits that ends before `end`. Raises CorruptBatch."""
    result = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            if result >> 64:
                raise CorruptBatch("a varint does not fit in 64 bits")
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise CorruptBatch("a varint is longer than 10 bytes")
    raise CorruptBatch("a varint is cut short")
