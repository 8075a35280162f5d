"""The record with the largest timestamp of a log, as Kafka's clients may ask for it.

What segments know of theirs is enough, unless it is of a record that readers do not see (any more, or yet): then the
headers of the batches at both ends are looked through, and if that is not enough, of all: what compaction leaves of a
producer's batch is a header with the time of records that are gone. Files that are gone, deleted or compacted, have it
begin anew.
"""

from __future__ import annotations

from core_log.batch_header import HEADER_BYTES
from core_log.cold_reader import find_timestamp
from core_log.noticing import noticed, noticing
from core_log.readable_log import ReadableLog
from core_log.record_batch import decode_columns
from core_log.segment import Segment, scan

_NONE_MS = -1
_ATTEMPTS = 10


def find_largest_timestamp(log: ReadableLog) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that has it, below the high watermark; None when there is none.

    Blocks; raises CorruptBatch, OSError.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _find(log)
        except FileNotFoundError as error:
            gone = error
    with noticing(log):
        raise gone


def _find(log: ReadableLog) -> tuple[int, int] | None:
    start, limit = log.log_start_offset, log.high_watermark
    segments = [segment for segment in log.segments_from(start) if segment.base_offset < limit]
    if not segments:
        return None
    largest_ms = max(segment.largest_timestamp_ms(log.files, checked=True) for segment in segments)
    found = find_timestamp(log, largest_ms)
    if found is None:
        seen_ms = [segment.largest_timestamp_ms(log.files, checked=True) for segment in segments[1:-1]]
        seen_ms += [_largest_seen(log, segment, start, limit) for segment in {segments[0], segments[-1]}]
        found = find_timestamp(log, max(seen_ms))
    if found is None:
        found = find_timestamp(log, max(_largest_seen(log, segment, start, limit) for segment in segments))
    return found


def _largest_seen(log: ReadableLog, segment: Segment, start: int, limit: int) -> int:
    file = log.files.open(segment.log_path, create=False)
    largest_ms = _NONE_MS
    try:
        for place in noticed(log, scan(file, segment.log_path, 0, segment.written_bytes, check_crc=False)):
            if place.next_offset > limit:
                break
            if place.next_offset <= start or place.max_timestamp_ms <= largest_ms or place.size == HEADER_BYTES:
                continue
            seen_ms = place.max_timestamp_ms
            if place.base_offset < start:
                columns = decode_columns(file.pread(place.size, place.position))
                rest = [at for offset, at in zip(columns.offsets, columns.timestamps_ms) if offset >= start]
                seen_ms = max(rest, default=_NONE_MS)
            largest_ms = max(largest_ms, seen_ms)
    finally:
        file.close()
    return largest_ms
