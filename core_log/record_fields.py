"""Reading the records of a batch as columns, as fast as that goes whether they repeat or differ in everything.

`record_decoder.py` finds runs of records that repeat; where none do, looking for them costs several times what parsing
does. So a batch that begins with a run is read by runs, and any other record by record: the varints of one and two
bytes, which nearly all are, are read in place. Header blocks may come unchecked: `decode_header_block` checks one that
is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.record_decoder import Stretch, open_records, stretches
from core_log.varint import read_varint

_RUN_MIN = 16
"""So many records are worth a look whether they repeat."""


class RecordFields(NamedTuple):
    """The records of a batch as parallel lists."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    header_blocks: list[bytes]


def decode_fields(batch: BytesLike, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> RecordFields:
    """The records of a whole batch. Raises CorruptBatch, and no other error, whatever the bytes are."""
    header, data, start = open_records(batch, decompressed_bytes_max)
    try:
        if header.record_count >= _RUN_MIN:
            first = _walk(data, start, 0, 2, header.last_offset_delta, partly=True)
            if first.header_blocks[0] == first.header_blocks[1] and first.keys[0] == first.keys[1]:
                return _by_runs(header.base_offset, stretches(data, start, header, True))
        return _walk(data, start, header.base_offset, header.record_count, header.last_offset_delta)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _by_runs(base_offset: int, runs: Iterable[Stretch]) -> RecordFields:
    offsets, keys, values, blocks = fields = RecordFields([], [], [], [])
    for run in runs:
        first = base_offset + run.delta
        offsets += range(first, first + run.count)
        keys += [run.key] * run.count
        values += run.values
        blocks += [run.header_block] * run.count
    return fields


def _walk(
    data: bytes, position: int, base_offset: int, count: int, last_delta: int, *, partly: bool = False
) -> RecordFields:
    end = len(data)
    deltas: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    blocks: list[bytes] = []
    before = -1
    for _ in range(count):
        size = data[position]
        if size < 128:
            position += 1
        elif data[position + 1] < 128:
            size += (data[position + 1] << 7) - 128
            position += 2
        else:
            size, position = read_varint(data, position, end)
            size = -1 if size < 0 else size << 1
        stop = position + (size >> 1)
        if size & 1 or stop > end:
            raise CorruptBatch(f"a record reaches from {position} to {stop} of {end} bytes")
        at = position + 2
        if data[at - 1]:  # not at the time of the batch
            _, at = read_varint(data, at - 1, stop)
        delta = data[at]
        if delta < 128 and not delta & 1:
            delta >>= 1
            at += 1
        elif data[at + 1] < 128 and not delta & 1:
            delta = (delta + (data[at + 1] << 7) - 128) >> 1
            at += 2
        else:
            delta, at = read_varint(data, at, stop)
        if not before < delta <= last_delta:
            raise CorruptBatch(f"offset delta {delta} after {before} of at most {last_delta}")
        before = delta
        deltas.append(delta)
        size = data[at]
        if size < 128 and not size & 1:
            at += 1 + (size >> 1)
            keys.append(data[at - (size >> 1) : at])
        else:
            key, at = _piece(data, at, stop)
            keys.append(key)
        size = data[at]
        if size >= 128 and data[at + 1] < 128 and not size & 1:
            size = (size + (data[at + 1] << 7) - 128) >> 1
            at += 2 + size
            values.append(data[at - size : at])
        elif size < 128 and not size & 1:
            at += 1 + (size >> 1)
            values.append(data[at - (size >> 1) : at])
        else:
            value, at = _piece(data, at, stop)
            values.append(value)
        if at >= stop:
            raise CorruptBatch("key and value of a record are longer than the record")
        blocks.append(data[at:stop])
        position = stop
    if position != end and not partly:
        raise CorruptBatch(f"{end - position} bytes after the last record")
    return RecordFields([base_offset + delta for delta in deltas], keys, values, blocks)


def _piece(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """A key or value, and the position behind it."""
    size, at = read_varint(data, at, stop)
    if size < -1 or size > stop - at:
        raise CorruptBatch(f"a key or value of {size} bytes")
    return (None, at) if size < 0 else (data[at : at + size], at + size)
