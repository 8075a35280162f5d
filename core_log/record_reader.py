"""Single records from anywhere in a log: what a queue wants that gives out messages in another order than they came.

Reading a batch as a whole costs microseconds a record; here the records before the wanted ones are stepped over by
their lengths, once for all that are wanted of a batch, and only these are taken out. A large batch that is wanted again
is read in pieces (`record_pieces.py`). Uncompressed batches only, which those of home partitions are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from core_log.batch_header import HEADER_BYTES, BatchHeader, parse_header
from core_log.cached_file import CachedFile, NotInMemory
from core_log.closed_indexes import entries_of
from core_log.errors import CorruptBatch
from core_log.record_decoder import RecordRun
from core_log.record_finder import find_records
from core_log.record_pieces import LARGE_BYTES, KnownPieces, Readable
from core_log.segment import Segment, check_batch
from core_log.segment_index import OffsetEntries

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog

_PIECE_BYTES = 16 << 10
_EXTENT_BYTES_MAX = 64 << 10
_INDEXES_MAX = 64

Extents = Callable[[int], tuple[int, int]]
"""Says from where to where the batch that holds an offset is to be looked for."""


class KnownPlaces:
    """What was learned of a log by reading it, to be kept by who goes on reading; for several threads."""

    __slots__ = ("indexes", "pieces")

    def __init__(self) -> None:
        self.indexes: dict[str, OffsetEntries] = {}
        """Those of closed segments: 12 bytes for each interval of log."""
        self.pieces = KnownPieces()


def read_records(log: PartitionLog, offsets: Sequence[int], bytes_max: int, known: KnownPlaces) -> list[RecordRun]:
    """The records at the rising `offsets` that are on disk, as runs of one, until they have `bytes_max` bytes; at
    least one. Those that the log does not hold are left out. Blocks: for threads.

    Raises CorruptBatch, OSError.
    """
    return _some(_records(log, offsets, known, may_block=True), bytes_max)


def read_cached_records(
    log: PartitionLog, offsets: Sequence[int], bytes_max: int, known: KnownPlaces
) -> list[RecordRun]:
    """As `read_records`, but only those before the first that is not in the operating system's memory. For the event
    loop.
    """
    return _some(_records(log, offsets, known, may_block=False), bytes_max)


def _some(runs: Iterator[RecordRun], bytes_max: int) -> list[RecordRun]:
    found: list[RecordRun] = []
    total = 0
    try:
        for run in runs:
            found.append(run)
            total += len(run.values[0] or b"") + len(run.header_block)
            if total >= bytes_max:
                break
    except NotInMemory:
        pass
    return found


def _records(log: PartitionLog, offsets: Sequence[int], known: KnownPlaces, *, may_block: bool) -> Iterator[RecordRun]:
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
                reader = file if may_block else CachedFile(file)
                extent_of = _extents_in(log, segment, reader, known, may_block=may_block)
                yield from _of_segment(extent_of, segment, reader, offsets[at:stop], known.pieces)
            finally:
                file.close()
        elif len(segments) == 1:
            return
        else:
            stop += 1  # before the log's start
        at = stop


def _extents_in(log: PartitionLog, segment: Segment, file: Readable, known: KnownPlaces, *, may_block: bool) -> Extents:
    index: OffsetEntries | None = segment.index or known.indexes.get(segment.stem)
    if index is None:
        if not may_block:
            raise NotInMemory
        if len(known.indexes) >= _INDEXES_MAX:
            known.indexes.clear()
        index = entries_of(log.files, segment)
        if index.offsets:  # without any the disk may have refused them
            known.indexes[segment.stem] = index
    places, count, entry_of = index.positions, len(index.offsets), index.entry_of
    base, end, first_of = segment.base_offset, segment.written_bytes, segment.first_of(file)

    def extent_of(offset: int) -> tuple[int, int]:
        at = entry_of(offset - base, first_of)
        return places[at] if at >= 0 else 0, min(places[at + 1], end) if at + 1 < count else end

    return extent_of


def _of_segment(
    extent_of: Extents, segment: Segment, file: Readable, offsets: Sequence[int], known: KnownPieces
) -> Iterator[RecordRun]:
    at = 0
    while at < len(offsets):
        position, end = extent_of(offsets[at])
        place = segment.stem, position
        pieces = known.of(place, offsets[at])
        if pieces is not None:
            stop = bisect_left(offsets, pieces.next_offset, at)
            found = pieces.read(file, offsets[at:stop])
            if found is not None:
                yield from found
                at = stop
                continue
            known.forget(place)
        data, header, position = _batch_of(position, end - position, segment, file, offsets[at])
        if header is None:
            return
        stop = bisect_left(offsets, header.next_offset, at)
        if not header.is_control:
            yield from find_records(data, header, offsets[at:stop])
            if header.length > LARGE_BYTES:
                known.was_read(place, position, data, header)
        at = stop


def _batch_of(
    position: int, size: int, segment: Segment, file: Readable, offset: int
) -> tuple[bytes, BatchHeader | None, int]:
    """The batch that holds an offset, or the first behind it, and its position; looked for from a position on, in the
    first place in as many bytes as the index says that it lies in.
    """
    end = segment.written_bytes
    size = size if HEADER_BYTES <= size <= _EXTENT_BYTES_MAX else _PIECE_BYTES
    while position < end:
        data = file.pread(min(size, end - position), position)
        at = 0
        while len(data) - at >= HEADER_BYTES:
            try:
                bytes_here, _, next_offset, _ = check_batch(data, at, len(data), check_crc=False)
                if next_offset > offset:
                    stop = at + bytes_here
                    whole = data[at:stop] if stop <= len(data) else file.pread(bytes_here, position + at)
                    check_batch(whole, 0, bytes_here)
                    return whole, parse_header(whole), position + at
            except CorruptBatch as error:
                raise CorruptBatch(f"{segment.log_path} at position {position + at}: {error}") from None
            at += bytes_here
        position += at or HEADER_BYTES
        size = _PIECE_BYTES
    return b"", None, position
