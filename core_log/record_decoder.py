"""Reading the records of a batch, run by run.

1. Only CorruptBatch is raised, whatever the bytes are. Counts and lengths are checked against the bytes left before
   anything is allocated; compressed records are bounded by `decompressed_bytes_max`. The CRC is not looked at here:
   `validate` does that.
2. One record is parsed in full, then its successors are compared with it: as long as key, header block, timestamp and
   value size repeat, records lie at a fixed stride and every constant byte of the format is a *column*, checked for
   hundreds of records by one strided slice. That costs a tenth of a microsecond a record, parsing more than one.
3. Header blocks are only checked for structure, once per distinct block; `decode_header_block` decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from core_log.batch_header import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader, parse_header
from core_log.compression import DECOMPRESSED_BYTES_MAX, decompress
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.header_blocks import Header, decode_header_block, header_spans
from core_log.record_walk import Walked, walk
from core_log.varint import HIGH_BYTES, LOW_BYTES, ONE_BYTE_BELOW, TWO_BYTES_BELOW, VARINTS, read_varint

_COMPARED_FIRST = 16
_STRETCHES_LOOKED_AT = 8
_STRETCH_RECORDS_MIN = 4
"""Where stretches are shorter than that on average it costs less not to look for them."""
_STRIDES_MAX = 4
"""A stretch ends where so many records one after the other differ in size."""
_WINDOW_BYTES_MAX = 1 << 20
_FIRST_FIELDS_BYTES = 64
"""More than all of a record before its value takes, without a key."""


class RecordRun(NamedTuple):
    """Records of consecutive offsets with equal key and header block. `values` is empty when not asked for."""

    first_offset: int
    count: int  # type: ignore[assignment]
    key: bytes | None
    header_block: bytes
    values: list[bytes | None]


class Record(NamedTuple):
    """One record, fully decoded."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(slots=True)
class RecordColumns:
    """The records of a batch as parallel lists. Equal header blocks share one decoded list: do not change it."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[Header]]


class Stretch(NamedTuple):
    """What rule 2 finds: a run within which the timestamp and the value size repeat, too."""

    delta: int
    count: int  # type: ignore[assignment]
    timestamp_delta_ms: int
    key: bytes | None
    header_block: bytes
    values: list[bytes | None]
    end: int
    """Where the record behind it begins."""


def decode_runs(
    batch: BytesLike, *, with_values: bool = True, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[RecordRun]:
    """The records of a whole batch as maximal runs. Raises CorruptBatch."""
    header, data, start = open_records(batch, decompressed_bytes_max)
    base_offset = header.base_offset
    runs: list[RecordRun] = []
    first = count = read = 0
    key: bytes | None = None
    block = b""
    values: list[bytes | None] = []
    for seen, stretch in enumerate(stretches(data, start, header, with_values), 1):
        read += stretch.count
        if count and stretch.delta == first + count and stretch.key == key and stretch.header_block == block:
            values += stretch.values
            count += stretch.count
        else:
            if count:
                runs.append(RecordRun(base_offset + first, count, key, block, values))
            first, count, _, key, block, values, _ = stretch
        if seen % _STRETCHES_LOOKED_AT == 0 and read < seen * _STRETCH_RECORDS_MIN and read < header.record_count:
            runs.append(RecordRun(base_offset + first, count, key, block, values))
            found = _rest(data, stretch, header, read)
            for each in set(found.header_blocks):
                header_spans(each, 0, len(each))
            return _join(runs, _runs_of(found, base_offset, with_values))
    if count:
        runs.append(RecordRun(base_offset + first, count, key, block, values))
    return runs


def _rest(data: bytes, stretch: Stretch, header: BatchHeader, read: int, *, with_times: bool = False) -> Walked:
    """What follows a stretch: records that have too little in common to be looked at for that."""
    first, count = stretch.delta + stretch.count, header.record_count - read
    try:
        return walk(data, stretch.end, first, count, header.last_offset_delta, with_times=with_times)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _runs_of(found: Walked, base_offset: int, with_values: bool) -> list[RecordRun]:
    runs: list[RecordRun] = []
    deltas, _, keys, values, blocks = found
    start = 0
    key, block, due = keys[0], blocks[0], deltas[0]
    for at, (delta, next_key, next_block) in enumerate(zip(deltas, keys, blocks)):
        if next_key != key or next_block != block or delta != due:
            runs.append(RecordRun(base_offset + due - at + start, at - start, key, block, values[start:at]))
            start, key, block, due = at, next_key, next_block, delta
        due += 1
    count = len(deltas) - start
    runs.append(RecordRun(base_offset + due - count, count, key, block, values[start:]))
    return runs if with_values else [run._replace(values=[]) for run in runs]


def _join(runs: list[RecordRun], more: list[RecordRun]) -> list[RecordRun]:
    """Both; the first of `more` may go on where the last of `runs` ends."""
    last, first = runs[-1], more[0]
    if (last.first_offset + last.count, last[2:4]) == (first.first_offset, first[2:4]):
        both = [*last.values, *first.values]
        runs[-1:], more = [last._replace(count=last.count + first.count, values=both)], more[1:]
    return runs + more


def decode_columns(batch: BytesLike, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> RecordColumns:
    """The records of a whole batch as parallel lists. Raises CorruptBatch."""
    header, data, start = open_records(batch, decompressed_bytes_max)
    columns = RecordColumns([], [], [], [], [])
    decoded: dict[bytes, list[Header]] = {}
    read = 0
    for seen, stretch in enumerate(stretches(data, start, header, True), 1):
        delta, count, timestamp_delta_ms, key, block, values, _ = stretch
        read += count
        first = header.base_offset + delta
        columns.offsets += range(first, first + count)
        columns.timestamps_ms += [_timestamp(header, timestamp_delta_ms)] * count
        columns.keys += [key] * count
        columns.values += values
        columns.headers += [_headers_of(block, decoded)] * count
        if seen % _STRETCHES_LOOKED_AT == 0 and read < seen * _STRETCH_RECORDS_MIN and read < header.record_count:
            found = _rest(data, stretch, header, read, with_times=True)
            columns.offsets += [header.base_offset + delta for delta in found.deltas]
            columns.timestamps_ms += [_timestamp(header, delta_ms) for delta_ms in found.times]
            columns.keys += found.keys
            columns.values += found.values
            columns.headers += [_headers_of(block, decoded) for block in found.header_blocks]
            break
    return columns


def _headers_of(block: bytes, decoded: dict[bytes, list[Header]]) -> list[Header]:
    headers = decoded.get(block)
    if headers is None:
        headers = decoded[block] = decode_header_block(block)
    return headers


def first_value(batch: BytesLike) -> bytes:
    """The value of the first record of a whole batch that is not compressed; nothing else is looked at.

    Raises CorruptBatch.
    """
    end = len(batch)
    head = bytes(batch[HEADER_BYTES : HEADER_BYTES + _FIRST_FIELDS_BYTES])
    _, position = read_varint(head, 0, len(head))  # length; one byte of attributes follows
    _, position = read_varint(head, position + 1, len(head))  # timestamp delta
    _, position = read_varint(head, position, len(head))  # offset delta
    size, position = read_varint(head, position, len(head))
    if size > 0:
        raise CorruptBatch(f"a key of {size} bytes where none is expected")
    size, position = read_varint(head, position, len(head))
    start = HEADER_BYTES + position
    if not 0 <= size <= end - start:
        raise CorruptBatch(f"value of {size} bytes")
    return bytes(batch[start : start + size])


def iterate_records(batch: BytesLike, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of a whole batch, one by one. Raises CorruptBatch."""
    header, stretches = _open(batch, True, decompressed_bytes_max)
    for delta, _, timestamp_delta_ms, key, block, values, _ in stretches:
        timestamp_ms = _timestamp(header, timestamp_delta_ms)
        headers = decode_header_block(block)
        for offset, value in enumerate(values, header.base_offset + delta):
            yield Record(offset, timestamp_ms, key, value, headers)


def _timestamp(header: BatchHeader, delta_ms: int) -> int:
    """With the timestamp type "log append time" (bit 3) all records have the batch's."""
    return header.max_timestamp_ms if header.attributes & 8 else header.base_timestamp_ms + delta_ms


def _open(batch: BytesLike, with_values: bool, bytes_max: int) -> tuple[BatchHeader, Iterator[Stretch]]:
    header, data, start = open_records(batch, bytes_max)
    return header, stretches(data, start, header, with_values)


def open_records(batch: BytesLike, decompressed_bytes_max: int) -> tuple[BatchHeader, bytes, int]:
    """The header of a whole batch, the bytes that hold its records, and where these begin. Raises CorruptBatch."""
    data = batch if type(batch) is bytes else bytes(batch)
    header = parse_header(data)
    if header.size != len(data):
        raise CorruptBatch(f"batch length {header.length} in {len(data)} bytes")
    start = HEADER_BYTES
    if header.compression:
        data = decompress(header.compression, data[HEADER_BYTES:], decompressed_bytes_max)
        start = 0
    if header.record_count > (len(data) - start) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{header.record_count} records in {len(data) - start} bytes")
    return header, data, start


def stretches(data: bytes, position: int, header: BatchHeader, with_values: bool) -> Iterator[Stretch]:
    """Walk the records of `data`; see the module's rule 2. Raises CorruptBatch."""
    end = len(data)
    remaining = header.record_count
    next_delta = 0
    block = b"\0"  # the last header block that was checked
    while remaining:
        # One record in full. The names say where each field begins.
        length, body = read_varint(data, position, end)
        stop = body + length
        if length < RECORD_BYTES_MIN - 1 or stop > end:
            raise CorruptBatch(f"record of {length} bytes in {end - body}")
        timestamp_delta_ms, delta_start = read_varint(data, body + 1, stop)
        delta, middle = read_varint(data, delta_start, stop)
        if not next_delta <= delta <= header.last_offset_delta:
            raise CorruptBatch(f"offset delta {delta} is not in [{next_delta}, {header.last_offset_delta}]")
        size, key_start = read_varint(data, middle, stop)
        if size < -1 or size > stop - key_start:
            raise CorruptBatch(f"key of {size} bytes")
        key = None if size < 0 else data[key_start : key_start + size]
        key_end = key_start + max(size, 0)
        size, value_start = read_varint(data, key_end, stop)
        if size < -1 or size > stop - value_start:
            raise CorruptBatch(f"value of {size} bytes")
        value_end = value_start + max(size, 0)
        # Most records have the block of the one before; comparing it is much cheaper than checking it again.
        if stop - value_end != len(block) or not data.startswith(block, value_end):
            header_spans(data, value_end, stop)
            block = data[value_end:stop]
        values: list[bytes | None] = []
        if with_values:
            values.append(None if size < 0 else data[value_start:value_end])
        stride, position = stop - position, stop
        remaining -= 1
        count = 1
        limit = min(remaining, header.last_offset_delta - delta, TWO_BYTES_BELOW - 1 - delta)
        if limit > 0:
            wanted = values if with_values else None
            shape = data[body:delta_start], data[middle:key_end], block
            more, position = _siblings(data, position, limit, delta + 1, stride, shape, wanted)
            count += more
            remaining -= more
        yield Stretch(delta, count, timestamp_delta_ms, key, block, values, position)
        next_delta = delta + count
    if position != end:
        raise CorruptBatch(f"{end - position} bytes after the last record")


def _siblings(
    data: bytes,
    position: int,
    limit: int,
    delta: int,
    stride: int,
    shape: tuple[bytes, bytes, bytes],
    values: list[bytes | None] | None,
) -> tuple[int, int]:
    """(count, position after) of up to `limit` records from `delta` on like the one before, which took `stride` bytes.

    Anything unusual ends the stretch; the full parse that follows tells whether it is an error.
    """
    time_piece, key_piece, block = shape
    end = len(data)
    count = strides = 0
    while count < limit and end - position > 2 and strides < _STRIDES_MAX:
        byte = data[position]
        body = position + 1
        if byte > 127:
            body += 1
            byte += (data[position + 1] << 7) - 128
        stop = body + (byte >> 1)
        piece = time_piece + VARINTS[delta] + key_piece
        # A length of three bytes or more has bit 14 set here; a negative one has bit 0.
        if byte & 0x4001 or stop > end or not data.startswith(piece, body):
            break
        at = body + len(piece)
        if stop - at < 2:
            break
        size = data[at]
        at += 1
        if size > 127:
            size += (data[at] << 7) - 128
            at += 1
        if size & 0x4001 or at + (size >> 1) + len(block) != stop or not data.startswith(block, stop - len(block)):
            break
        more = 1
        strides += 1
        if stop - position == stride:
            strides = 0
            fixed = len(time_piece) + body - position
            bound = min(limit - count - 1, (end - stop) // stride)
            value = at - position, at - position + (size >> 1)
            more += _repeats(data, position, stride, fixed, value, delta, bound)
        if values is not None:
            size >>= 1
            values += (
                [data[a : a + size] for a in range(at, at + stride * more, stride)]
                if more > 1
                else (data[at : at + size],)
            )
        stride = stop - position
        position += stride * more
        count += more
        delta += more
    return count, position


def _repeats(
    data: bytes, start: int, stride: int, delta_column: int, value: tuple[int, int], delta: int, limit: int
) -> int:
    """How many of the next `limit` records differ from the one at `start` in nothing but value and consecutive delta.

    `delta_column` and `value` say where in the record these are. A column costs about as much as comparing half a
    record, so a window has to have half as many records as there are columns.
    """
    two_bytes = delta >= ONE_BYTE_BELOW
    limit = min(limit, (TWO_BYTES_BELOW if two_bytes else ONE_BYTE_BELOW) - 1 - delta)
    middle, (value_start, value_end) = delta_column + 1 + two_bytes, value
    head = data[start : start + delta_column]
    key_piece = data[start + middle : start + value_start]
    block = data[start + value_end : start + stride]
    window_min = (stride - value_end + value_start) // 2
    found = 0
    while found < limit:
        # Record by record, until a window of columns is worth it; a short run ends here.
        stop = min(found + _COMPARED_FIRST, limit)
        while found < stop:
            at = start + (found + 1) * stride
            piece = head + VARINTS[delta + found + 1] + key_piece
            if not data.startswith(piece, at) or not data.startswith(block, at + value_end):
                return found
            found += 1
        count = min(limit - found, max(_WINDOW_BYTES_MAX // stride, 1))
        # Look at the last record of a window first: for a run that ends before it, a smaller one will do.
        while count >= window_min:
            at = start + (found + count) * stride
            piece = head + VARINTS[delta + found + count] + key_piece
            if data.startswith(piece, at) and data.startswith(block, at + value_end):
                columns = (*range(delta_column), *range(middle, value_start), *range(value_end, stride))
                good = _window(data, start, stride, found, count, columns, delta_column, delta)
                found += good
                if good < count:
                    return found
                break
            count //= 2
    return found


def _window(
    data: bytes,
    start: int,
    stride: int,
    found: int,
    count: int,
    columns: tuple[int, ...],
    delta_column: int,
    delta: int,
) -> int:
    """How many of `count` records after the first `found` agree with the one at `start`, column by column."""
    two_bytes = delta >= ONE_BYTE_BELOW
    first = start + (found + 1) * stride
    part = data[first : first + count * stride]
    good = count
    at = delta + found + 1
    if not part[delta_column::stride].startswith(LOW_BYTES[at : at + count]) or (
        two_bytes and not part[delta_column + 1 :: stride].startswith(HIGH_BYTES[at : at + count])
    ):
        good = _consecutive(part, stride, delta_column, at, count, two_bytes)
    for column in columns:
        if not good:
            break
        byte = data[start + column : start + column + 1]
        cells = part[column::stride]
        good = min(good, count - len(cells.lstrip(byte)))
    return good


def _consecutive(part: bytes, stride: int, delta_column: int, delta: int, count: int, two_bytes: bool) -> int:
    """How many records at the front of `part` have the deltas that follow."""
    for index in range(count):
        at = index * stride + delta_column
        if part[at] != LOW_BYTES[delta + index] or (two_bytes and part[at + 1] != HIGH_BYTES[delta + index]):
            return index
    return count
