"""Single records from anywhere in a log: what a queue wants that gives out messages in another order than they came.

Reading a batch as a whole costs microseconds a record; here the records before the wanted ones are stepped over by
their lengths (0.2 us each), once for all that are wanted of a batch, and only these are taken out. Uncompressed batches
only, which those of home partitions are. Blocks: for threads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from core_log.batch_header import HEADER_BYTES, BatchHeader, parse_header
from core_log.errors import CorruptBatch
from core_log.files import File
from core_log.record_decoder import RecordRun
from core_log.segment import Segment, check_batch
from core_log.segment_index import read_positions
from core_log.varint import read_varint

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog

_PIECE_BYTES = 16 << 10
_POSITIONS_MAX = 64

Positions = dict[str, tuple[Sequence[int], Sequence[int]]]
"""Indexes of closed segments that were read before: some 32 bytes for each MiB of log."""


def read_records(log: PartitionLog, offsets: Sequence[int], bytes_max: int, positions: Positions) -> list[RecordRun]:
    """The records at the rising `offsets` that are on disk, as runs of one, until they have `bytes_max` bytes; at
    least one. Those that the log does not hold are left out. `positions` is the caller's to keep.

    Raises CorruptBatch, OSError.
    """
    found: list[RecordRun] = []
    total = 0
    for run in _records(log, offsets, positions):
        found.append(run)
        total += len(run.values[0] or b"") + len(run.header_block)
        if total >= bytes_max:
            break
    return found


def _records(log: PartitionLog, offsets: Sequence[int], positions: Positions) -> Iterator[RecordRun]:
    at = 0
    while at < len(offsets):
        segments = log.segments_from(offsets[at])
        if not segments:
            return
        segment = segments[0]
        end = segments[1].base_offset if len(segments) > 1 else log.written_offset
        stop = at
        while stop < len(offsets) and offsets[stop] < end:
            stop += 1
        if stop > at:
            file = log.files.open(segment.log_path, create=False)
            try:
                yield from _of_segment(_position_in(log, segment, positions), segment, file, offsets[at:stop])
            finally:
                file.close()
        elif len(segments) == 1:
            return
        else:
            stop += 1  # before the log's start
        at = stop


def _position_in(log: PartitionLog, segment: Segment, positions: Positions) -> Callable[[int], int]:
    """Gives the position from which to look for an offset."""
    index = segment.index
    if index is not None:
        return lambda offset: index.position_of(offset - segment.base_offset)
    known = positions.get(segment.stem)
    if known is None:
        if len(positions) >= _POSITIONS_MAX:
            positions.clear()
        known = positions[segment.stem] = read_positions(log.files, segment.stem)
    relative, places = known

    def position_of(offset: int) -> int:
        at = bisect_right(relative, offset - segment.base_offset)
        return places[at - 1] if at else 0

    return position_of


def _of_segment(
    position_of: Callable[[int], int], segment: Segment, file: File, offsets: Sequence[int]
) -> Iterator[RecordRun]:
    at = 0
    while at < len(offsets):
        data, header = _batch_of(position_of(offsets[at]), segment, file, offsets[at])
        if header is None:
            return
        stop = bisect_left(offsets, header.next_offset, at)
        if not header.is_control:
            yield from find_records(data, header, offsets[at:stop])
        at = stop


def _batch_of(position: int, segment: Segment, file: File, offset: int) -> tuple[bytes, BatchHeader | None]:
    """The batch that holds an offset, or the first behind it, looked for from a position on."""
    end = segment.written_bytes
    while position < end:
        data = file.pread(min(_PIECE_BYTES, end - position), position)
        at = 0
        while len(data) - at >= HEADER_BYTES:
            try:
                size, _, next_offset, _ = check_batch(data, at, len(data), check_crc=False)
                if next_offset > offset:
                    whole = data[at : at + size] if at + size <= len(data) else file.pread(size, position + at)
                    check_batch(whole, 0, size)
                    return whole, parse_header(whole)
            except CorruptBatch as error:
                raise CorruptBatch(f"{segment.log_path} at position {position + at}: {error}") from None
            at += size
        position += at or HEADER_BYTES
    return b"", None


def find_records(data: bytes, header: BatchHeader, offsets: Sequence[int]) -> list[RecordRun]:
    """The records at the rising `offsets`, none behind the batch, that are in an uncompressed batch.

    Raises CorruptBatch.
    """
    found: list[RecordRun] = []
    base, count = header.base_offset, header.record_count
    is_dense = header.next_offset - base == count
    at, end = HEADER_BYTES, len(data)
    remaining = iter(offsets)
    wanted = next(remaining) - base
    try:
        index = 0
        while index < count:
            if is_dense and index < wanted:
                at = _step_over(data, at, min(wanted, count) - index)
                index = min(wanted, count)
                continue
            length, at = read_varint(data, at, end)
            position = at + 2  # attributes, and a first byte of the time
            while data[position - 1] >= 128:
                position += 1
            delta, position = read_varint(data, position, end)
            while delta > wanted:
                wanted = next(remaining) - base
            if delta == wanted:
                found.append(_take(data, position, at + length, base + delta))
                wanted = next(remaining) - base
            at += length
            index += 1
    except StopIteration:
        pass
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    return found


def _step_over(data: bytes, at: int, count: int) -> int:
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
