"""Walking the records of a batch that differ in everything: field by field, nothing is looked for.

1. The varints of one and two bytes, which nearly all are, are read in place; a call for each would cost more than all
   the rest.
2. A batch that has a record for each of its offsets, as every batch of a producer has, is *dense*: its offset deltas
   are known, so they are compared with a table and not decoded.
3. A record is checked once it is read: nothing of it may reach beyond its end, which may not be beyond that of the
   data. Whatever the bytes are, only CorruptBatch and IndexError come out; who calls makes the one of the other.

Header blocks come unchecked: `decode_header_block` checks one that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, NamedTuple

from core_log.errors import CorruptBatch
from core_log.varint import HIGH_BYTES, LOW_BYTES, TWO_BYTES_BELOW, encode_varint, read_varint

_NO_HEADERS = b"\0"


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
    if first_delta + count == last_delta + 1:
        found = _dense(data, position, first_delta, last_delta + 1, with_times)
    else:
        found = _sparse(data, position, first_delta, count, last_delta)
    return found


def _dense(data: bytes, position: int, delta: int, stop_delta: int, with_times: bool) -> Walked:
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    blocks: list[bytes] = []
    add_time, add_key, add_value, add_block = times.append, keys.append, values.append, blocks.append
    end = len(data)
    pairs: Iterable[tuple[int, Any]] = zip(LOW_BYTES[delta:stop_delta], HIGH_BYTES[delta:stop_delta])
    if stop_delta > TWO_BYTES_BELOW:
        longer = range(max(delta, TWO_BYTES_BELOW), stop_delta)
        pairs = chain(pairs, zip(repeat(-1), map(encode_varint, longer)))
    for low, high in pairs:
        size = data[position]
        if size < 128:
            at = position + 2
            position += 1 + (size >> 1)
        elif data[position + 1] < 128:
            at = position + 3
            position += 2 + ((size + (data[position + 1] << 7) - 128) >> 1)
        else:
            length, at = read_varint(data, position, end)
            position, size = at + length, length >> 63 & 1
            at += 1
        if size & 1 or position > end:
            raise CorruptBatch(f"a record reaches to {position} of {end} bytes")
        if with_times:
            time = data[at]
            if time < 128:
                add_time((time >> 1) ^ -(time & 1))
                at += 1
            else:
                time, at = read_varint(data, at, position)
                add_time(time)
        else:
            while data[at] > 127:
                at += 1
            at += 1
        if data[at] == low:
            at += 1
            if low > 127:
                if data[at] != high:
                    raise CorruptBatch("an offset delta that is not the next one")
                at += 1
        elif low < 0 and data.startswith(high, at):
            at += len(high)
        else:
            raise CorruptBatch("an offset delta that is not the next one")
        size = data[at]
        if size < 128 and not size & 1:
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
        if size & 1:
            value, at = _piece(data, at, position)
            add_value(value)
        elif size < 128:
            start = at + 1
            at = start + (size >> 1)
            add_value(data[start:at])
        elif data[at + 1] < 128:
            start = at + 2
            at = start + ((size + (data[at + 1] << 7) - 128) >> 1)
            add_value(data[start:at])
        else:
            value, at = _piece(data, at, position)
            add_value(value)
        if position - at == 1 and not data[at]:
            add_block(_NO_HEADERS)
        elif at < position:
            add_block(data[at:position])
        else:
            raise CorruptBatch("key and value of a record are longer than the record")
    if position != end:
        raise CorruptBatch(f"{end - position} bytes after the last record")
    return Walked(list(range(delta, stop_delta)), times, keys, values, blocks)


def _sparse(data: bytes, position: int, first_delta: int, count: int, last_delta: int) -> Walked:
    found = Walked([], [], [], [], [])
    end = len(data)
    before = first_delta - 1
    for _ in range(count):
        size, at = read_varint(data, position, end)
        position = at + size
        if size < 0 or position > end:
            raise CorruptBatch(f"a record reaches to {position} of {end} bytes")
        time, at = read_varint(data, at + 1, position)
        delta, at = read_varint(data, at, position)
        if not before < delta <= last_delta:
            raise CorruptBatch(f"offset delta {delta} after {before} of at most {last_delta}")
        before = delta
        key, at = _piece(data, at, position)
        value, at = _piece(data, at, position)
        if at >= position:
            raise CorruptBatch("key and value of a record are longer than the record")
        found.deltas.append(delta)
        found.times.append(time)
        found.keys.append(key)
        found.values.append(value)
        found.header_blocks.append(data[at:position])
    if position != end:
        raise CorruptBatch(f"{end - position} bytes after the last record")
    return found


def _piece(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """A key or value, and the position behind it."""
    size, at = read_varint(data, at, stop)
    if size < -1 or size > stop - at:
        raise CorruptBatch(f"a key or value of {size} bytes")
    return (None, at) if size < 0 else (data[at : at + size], at + size)
