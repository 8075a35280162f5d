"""Records of a batch found by their numbers, stepping over those before them by their lengths: 0.1 us each."""

from __future__ import annotations

from collections.abc import Sequence

from core_log.batch_header import HEADER_BYTES, BatchHeader
from core_log.errors import CorruptBatch
from core_log.record_decoder import RecordRun
from core_log.varint import read_varint


def is_dense(header: BatchHeader) -> bool:
    """Whether each offset of the batch has a record."""
    return header.next_offset - header.base_offset == header.record_count


def find_records(data: bytes, header: BatchHeader, offsets: Sequence[int]) -> list[RecordRun]:
    """The records at the rising `offsets`, none behind the batch, that are in an uncompressed batch.

    Raises CorruptBatch.
    """
    found: list[RecordRun] = []
    base, count, dense = header.base_offset, header.record_count, is_dense(header)
    at = HEADER_BYTES
    remaining = iter(offsets)
    wanted = next(remaining) - base
    try:
        index = 0
        while index < count:
            if dense and index < wanted:
                at = step_over(data, at, min(wanted, count) - index)
                index = min(wanted, count)
                continue
            delta, position, after = _open(data, at)
            while delta > wanted:
                wanted = next(remaining) - base
            if delta == wanted:
                found.append(_take(data, position, after, base + delta))
                wanted = next(remaining) - base
            at = after
            index += 1
    except StopIteration:
        pass
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    return found


def step_over(data: bytes, at: int, count: int) -> int:
    """Where the record after `count` from `at` on begins. Raises IndexError at the data's end."""
    for _ in range(count):
        byte = data[at]
        if byte < 128:
            at += 1 + (byte >> 1)
            continue
        second = data[at + 1]
        if second < 128:
            at += 2 + ((byte & 127 | second << 7) >> 1)
        else:
            length, at = read_varint(data, at, len(data))
            at += length
    return at


def record_at(data: bytes, at: int, base_offset: int) -> RecordRun:
    """The record that begins at `at`. Raises CorruptBatch, IndexError at the data's end."""
    delta, position, after = _open(data, at)
    return _take(data, position, after, base_offset + delta)


def _open(data: bytes, at: int) -> tuple[int, int, int]:
    """Of the record that begins at `at`: its offset delta, where its key's length is, and where it ends."""
    end = len(data)
    length, at = read_varint(data, at, end)
    position = at + 2  # attributes, and a first byte of the time
    while data[position - 1] >= 128:
        position += 1
    delta, position = read_varint(data, position, end)
    return delta, position, at + length


def _take(data: bytes, position: int, end: int, offset: int) -> RecordRun:
    """The record whose key's length is at `position`."""
    key, position = _bytes(data, position, end)
    value, position = _bytes(data, position, end)
    if position >= end or end > len(data):
        raise CorruptBatch("a record is cut short")
    return RecordRun(offset, 1, key, data[position:end], [value])


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length < 0:
        return None, position
    if length > end - position:
        raise CorruptBatch("a field is longer than its record")
    return data[position : position + length], position + length
