"""What compaction looks at in the records of a batch: keys, which of them are without a value, and where they lie.

Values and headers are stepped over. Whatever the bytes are, only CorruptBatch is raised. A batch is *dense* if it has a
record for each of its offsets, as every batch has that comes from a producer: its records need not name theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from core_log.batch_header import HEADER_BYTES, BatchHeader
from core_log.compression import decompress
from core_log.errors import CorruptBatch
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
    try:
        if header.record_count == header.last_offset_delta + 1:
            keys, tombstones = _dense(data, at, header.record_count)
            return Keys(keys, range(header.record_count), tombstones)
        return _sparse(data, at, header)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _dense(data: bytes, at: int, count: int) -> tuple[list[bytes | None], list[int]]:
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    add = keys.append
    end = len(data)
    for index in range(count):
        size = data[at]
        if size < 128:
            position = at + 2
            at += 1 + (size >> 1)
        elif data[at + 1] < 128:
            position = at + 3
            size += (data[at + 1] << 7) - 128
            at += 2 + (size >> 1)
        else:
            size, position = read_varint(data, at, end)
            at = position + size
            size = -1 if size < 0 else 0
            position += 1
        while data[position] > 127:  # the time
            position += 1
        position += 1
        while data[position] > 127:  # the offset
            position += 1
        position += 1
        key_size = data[position]
        if key_size & 1 or key_size > 127:
            length, position = read_varint(data, position, end)
            stop = position + max(length, 0)
            add(None if length < 0 else data[position:stop])
        else:
            stop = position + 1 + (key_size >> 1)
            add(data[position + 1 : stop])
        if stop + 2 > at or size & 1:
            raise CorruptBatch("the key of a record is longer than the record")
        if data[stop] == 1:  # the length -1
            tombstones.append(index)
    if at != end:
        raise CorruptBatch(f"{end - at} bytes after the last record")
    return keys, tombstones


def _sparse(data: bytes, at: int, header: BatchHeader) -> Keys:
    keys: list[bytes | None] = []
    deltas: list[int] = []
    tombstones: list[int] = []
    end = len(data)
    before = -1
    for index in range(header.record_count):
        size, position = read_varint(data, at, end)
        at = position + size
        if size < 0 or at > end:
            raise CorruptBatch(f"a record of {size} bytes")
        _, position = read_varint(data, position + 1, at)
        delta, position = read_varint(data, position, at)
        if not before < delta <= header.last_offset_delta:
            raise CorruptBatch(f"offset delta {delta} after {before} of at most {header.last_offset_delta}")
        before = delta
        deltas.append(delta)
        size, position = read_varint(data, position, at)
        stop = position + max(size, 0)
        keys.append(None if size < 0 else data[position:stop])
        if stop + 2 > at:
            raise CorruptBatch("the key of a record is longer than the record")
        if data[stop] == 1:
            tombstones.append(index)
    if at != end:
        raise CorruptBatch(f"{end - at} bytes after the last record")
    return Keys(keys, deltas, tombstones)


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
            elif data[at + 1] < 128:
                at += 2 + ((size + (data[at + 1] << 7) - 128) >> 1)
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
