"""Walking the records of a batch that differ in everything: field by field, nothing is looked for.

1. The varints of one and two bytes, which nearly all are, are read in place; a call for each would cost more than all
   the rest.
2. What is checked once for all records costs least: that no length is negative (the lowest bit of a zigzag varint says
   so), that the last record ends where the data does (each begins where the one before ends, so none reaches further),
   that offset deltas rise.
3. A batch that has a record for each of its offsets, as every batch of a producer has, is *dense*: its offset deltas
   are known, so they are compared with a table and not decoded.
4. Within a record, key and value must end before it does. Whatever the bytes are, only CorruptBatch and IndexError
   come out; who calls makes the one of the other.

Header blocks come unchecked: `header_blocks.py` checks those that are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from operator import lt
from typing import NamedTuple

from core_log.errors import CorruptBatch
from core_log.varint import HIGH_BYTES, LOW_BYTES, TWO_BYTES_BELOW, read_varint


class Walked(NamedTuple):
    """Fields of records as parallel lists; no times unless they were asked for."""

    deltas: list[int]
    times: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    header_blocks: list[bytes]


def walk(
    data: bytes, position: int, first_delta: int, count: int, last_delta: int, *, with_times: bool = False
) -> Walked:
    """The next `count` records, which are the last of a batch; their deltas are `first_delta` or above.

    Raises CorruptBatch, IndexError.
    """
    deltas: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    blocks: list[bytes] = []
    add_delta, add_key, add_value, add_block = deltas.append, keys.append, values.append, blocks.append
    timed: list[int] = []
    signs = 0
    for low, high in _expected(first_delta, count, last_delta):
        size = data[position]
        if size < 128:
            at = position + 2
            position += 1 + (size >> 1)
        elif (more := data[position + 1]) < 128:
            at = position + 3
            position += (size >> 1) + (more << 6) - 62
        else:
            position, at = _long_record(data, position)
        signs |= size
        if with_times:
            timed.append(at)
        while data[at] > 127:
            at += 1
        at += 1
        if data[at] == low:
            at += 1
            if low > 127:
                signs |= data[at] != high
                at += 1
        else:
            delta, at = _offset_delta(data, at, position, low)
            add_delta(delta)
        size = data[at]
        if not size & 129:
            start = at + 1
            at = start + (size >> 1)
            add_key(data[start:at])
        elif size == 1:
            at += 1
            add_key(None)
        else:
            key, at = _piece(data, at, position)
            add_key(key)
        size = data[at]
        if size < 128 and not size & 1:
            start = at + 1
            at = start + (size >> 1)
            add_value(data[start:at])
        elif size > 127 and (more := data[at + 1]) < 128:
            signs |= size
            start = at + 2
            at = start + (size >> 1) + (more << 6) - 64
            add_value(data[start:at])
        else:
            value, at = _piece(data, at, position)
            add_value(value)
        if at >= position:
            raise CorruptBatch("key and value of a record are longer than the record")
        add_block(data[at:position])
    if signs & 1 or position != len(data):
        raise CorruptBatch(f"records with wrong sizes or offset deltas, or that end at {position} of {len(data)} bytes")
    deltas = _all_deltas(deltas, first_delta, count, last_delta)
    return Walked(deltas, _times(data, timed), keys, values, blocks)


def _expected(first_delta: int, count: int, last_delta: int) -> Iterable[tuple[int, int]]:
    """The bytes of the next records' offset deltas: those of dense records as far as they have two, else -1."""
    stop = first_delta + count
    if stop <= last_delta:
        return repeat((-1, -1), count)
    if stop > last_delta + 1:
        raise CorruptBatch(f"{count} records from offset delta {first_delta} to {last_delta}")
    known = zip(LOW_BYTES[first_delta:stop], HIGH_BYTES[first_delta:stop])
    if stop <= TWO_BYTES_BELOW:
        return known
    return chain(known, repeat((-1, -1), stop - max(first_delta, TWO_BYTES_BELOW)))


def _offset_delta(data: bytes, at: int, stop: int, expected: int) -> tuple[int, int]:
    """A delta that is not in the table, and the position behind it."""
    if expected >= 0:
        raise CorruptBatch("an offset delta that is not the next one")
    low = data[at]
    if low < 128:
        return (low >> 1) ^ -(low & 1), at + 1
    high = data[at + 1]
    if high < 128:
        return ((low >> 1) + (high << 6) - 64) ^ -(low & 1), at + 2
    return read_varint(data, at, stop)


def _all_deltas(read: list[int], first_delta: int, count: int, last_delta: int) -> list[int]:
    """Those that were expected, and then those that were read, which must rise up to the batch's last."""
    if not read:
        return list(range(first_delta, first_delta + count))
    before = first_delta + count - len(read)
    if not (read[0] >= before and read[-1] <= last_delta and all(map(lt, read, read[1:]))):
        raise CorruptBatch(f"offset deltas that do not rise from {before} to at most {last_delta}")
    return [*range(first_delta, before), *read] if len(read) < count else read


def _times(data: bytes, places: list[int]) -> list[int]:
    """The zigzag varints at these places."""
    found = []
    for at in places:
        low = data[at]
        if low < 128:
            found.append((low >> 1) ^ -(low & 1))
        elif (high := data[at + 1]) < 128:
            found.append(((low >> 1) + (high << 6) - 64) ^ -(low & 1))
        else:
            found.append(read_varint(data, at, len(data))[0])
    return found


def _long_record(data: bytes, position: int) -> tuple[int, int]:
    """Where a record ends whose length takes more than two bytes, and where its time begins."""
    size, at = read_varint(data, position, len(data))
    if not 0 <= size <= len(data) - at:
        raise CorruptBatch(f"a record of {size} bytes in {len(data) - at}")
    return at + size, at + 1


def _piece(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """A key or value, and the position behind it."""
    size, at = read_varint(data, at, stop)
    if size < -1 or size > stop - at:
        raise CorruptBatch(f"a key or value of {size} bytes")
    return (None, at) if size < 0 else (data[at : at + size], at + size)
