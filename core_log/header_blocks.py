"""Header blocks: the headers of a record, as they stand at its end (`record_batch.py` draws them).

Lengths of one byte, which nearly all are, are read in place. Whatever the bytes are, only CorruptBatch is raised.
"""

from __future__ import annotations

from collections.abc import Iterable

from core_log.errors import CorruptBatch
from core_log.varint import read_varint

Header = tuple[str, bytes | None]


def decode_header_block(block: bytes) -> list[Header]:
    """Names and values of a header block. Raises CorruptBatch."""
    if block == b"\0":
        return []
    return [
        (block[name:name_end].decode("utf-8", "surrogateescape"), None if value < 0 else block[value:end])
        for name, name_end, value, end in header_spans(block, 0, len(block))
    ]


def header_spans(data: bytes, position: int, end: int) -> list[tuple[int, int, int, int]]:
    """Where name and value of each header of a block that fills [position, end) begin and end: (name start, name end,
    value start, value end); a value that is not there starts at -1. Raises CorruptBatch.
    """
    count, at = read_varint(data, position, end)
    if not 0 <= count <= (end - at) // 2:
        raise CorruptBatch(f"{count} headers in {end - at} bytes")
    spans = []
    try:
        for _ in range(count):
            size, name = data[at], at + 1
            if size & 129:
                size, name = _long_size(data, at, end, 0)
            at = name_end = name + (size >> 1)
            size, value = data[at], at + 1
            if size & 129:
                size, value = _long_size(data, at, end, -1)
            if size < 0:
                at, value = value, -1
            else:
                at = value + (size >> 1)
            spans.append((name, name_end, value, at))
    except IndexError:
        raise CorruptBatch("a header is cut short") from None
    if at != end:
        raise CorruptBatch(f"the headers of a record end {at - end} bytes behind it")
    return spans


def _long_size(data: bytes, at: int, end: int, least: int) -> tuple[int, int]:
    """The size at `at`, times two, and where what has it begins."""
    size, start = read_varint(data, at, end)
    if not least <= size <= end - start:
        raise CorruptBatch(f"a header's name or value of {size} bytes")
    return size << 1, start


def are_short(blocks: Iterable[bytes]) -> bool:
    """Whether all header blocks are whole, with counts and lengths of one byte each.
    False is no answer: then they have to be decoded.
    """
    lengths = 0
    try:
        for block in blocks:
            count = block[0]
            lengths |= count
            at = 1
            for _ in range(count >> 1):
                size = block[at]
                lengths |= size
                at += 1 + (size >> 1)
                size = block[at]
                if size & 129 and size != 1:
                    return False
                at += 1 + (size >> 1)
            if at != len(block):
                return False
    except IndexError:
        return False
    return not lengths & 129
