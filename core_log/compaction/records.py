"""What compaction looks at in the records of a batch: keys, which of them are without a value, and where they lie.

Values and headers are stepped over. Whatever the bytes are, only CorruptBatch is raised. A batch is *dense* if it has a
record for each of its offsets, as every batch has that comes from a producer: its records need not name theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from core_log.batch_header import HEADER_BYTES, BatchHeader
from core_log.compression import decompress
from core_log.errors import CorruptBatch
from core_log.record_walk import walk
from core_log.varint import read_varint


class Keys(NamedTuple):
    """Of all records of a batch, in order."""

    keys: list[bytes | None]
    deltas: list[int] | range
    """Their offsets, from that of the batch on."""
    tombstones: list[int]
    """Which of them have no value."""


def payload(batch: bytes, header: BatchHeader, decompressed_bytes_max: int) -> tuple[bytes, int]:
    """The bytes that hold the records of a whole batch, and where these begin. Raises CorruptBatch."""
    if header.compression:
        return decompress(header.compression, batch[HEADER_BYTES:], decompressed_bytes_max), 0
    return batch, HEADER_BYTES


def read_keys(data: bytes, at: int, header: BatchHeader) -> Keys:
    """The keys of the records of `data` from `at` on. Raises CorruptBatch."""
    count, last_delta = header.record_count, header.last_offset_delta
    try:
        if count == last_delta + 1:
            keys, tombstones = _dense(data, at, count)
            return Keys(keys, range(count), tombstones)
        found = walk(data, at, 0, count, last_delta)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    tombstones = [index for index, value in enumerate(found.values) if value is None] if None in found.values else []
    return Keys(found.keys, found.deltas, tombstones)


def _dense(data: bytes, at: int, count: int) -> tuple[list[bytes | None], list[int]]:
    """Keys and tombstones. As in `record_walk.py`, where the last record ends says that none reaches further."""
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    add = keys.append
    end = len(data)
    signs = 0
    for index in range(count):
        size = data[at]
        if size < 128:
            position = at + 2
            at += 1 + (size >> 1)
        elif (high := data[at + 1]) < 128:
            position = at + 3
            at += (size >> 1) + (high << 6) - 62
        else:
            length, position = read_varint(data, at, end)
            at = position + max(length, 0)
            position += 1
        signs |= size
        while data[position] > 127:  # the time
            position += 1
        position += 1
        while data[position] > 127:  # the offset
            position += 1
        position += 1
        size = data[position]
        if not size & 129:
            stop = position + 1 + (size >> 1)
            add(data[position + 1 : stop])
        elif size == 1:
            stop = position + 1
            add(None)
        else:
            length, position = read_varint(data, position, end)
            if length < -1:
                raise CorruptBatch(f"a key of {length} bytes")
            stop = position + max(length, 0)
            add(None if length < 0 else data[position:stop])
        if stop + 2 > at:
            raise CorruptBatch("the key of a record is longer than the record")
        if data[stop] == 1:  # the length -1
            tombstones.append(index)
    if signs & 1 or at != end:
        raise CorruptBatch(f"records of negative sizes, or that end at {at} of {end} bytes")
    return keys, tombstones


def bounds(data: bytes, at: int, count: int) -> list[int]:
    """Where each record begins, and the end. Raises CorruptBatch."""
    found: list[int] = []
    add = found.append
    end = len(data)
    try:
        for _ in range(count):
            add(at)
            size = data[at]
            if size < 128:
                at += 1 + (size >> 1)
            elif (high := data[at + 1]) < 128:
                at += (size >> 1) + (high << 6) - 62
            else:
                size, position = read_varint(data, at, end)
                if size < 0:
                    raise CorruptBatch(f"a record of {size} bytes")
                at = position + size
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    if at != end:
        raise CorruptBatch(f"{end - at} bytes after the last record")
    add(at)
    return found


def timestamp_delta(data: bytes, start: int, end: int) -> int:
    """Of the record that begins there, in ms. Raises CorruptBatch."""
    at = start + 1
    while data[at - 1] > 127:
        at += 1
    value = data[at + 1]
    return read_varint(data, at + 1, end)[0] if value > 127 else (value >> 1) ^ -(value & 1)
