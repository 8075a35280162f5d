"""What makes a log shorter at its beginning: age, size, and whoever deletes records.

Segments go whole and oldest first, and never beyond the high watermark; what is due above it is synced, and goes with
the next look. When even the active segment is too old it is
rolled first, so that an idle log empties, too. A segment without a time, as compaction may leave one of headers alone,
goes with the next one that is too old. Who deletes records moves the log start to any offset, also within a
batch: readers are refused below it at once, and bytes go when a whole segment is below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_log.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from core_log.flusher import Flusher
    from core_log.partition_log import PartitionLog


def apply(log: PartitionLog, now_ms: int, needed_from: int | None) -> None:
    """See `PartitionLog.apply_retention`."""
    config = log.config
    if not config.deletes or (config.retention_ms < 0 and config.retention_bytes < 0):
        return
    start = log.log_start_offset
    excess = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    segments = log.segments.copy()
    for at, segment in enumerate(segments):
        expired, largest_ms = False, -1
        if config.retention_ms >= 0:
            largest_ms = segment.largest_timestamp_ms(log.files)
            expired = bool(segment.size) and 0 <= largest_ms < now_ms - config.retention_ms
            if expired:  # nothing goes because a bit of an index has flipped
                expired = segment.largest_timestamp_ms(log.files, checked=True) < now_ms - config.retention_ms
        nothing_left = not segment.size and at < len(segments) - 1  # compacted
        if not (expired or nothing_left) and excess < max(segment.size, 1):
            if config.retention_ms < 0 or segment.largest_timestamp_ms(log.files, checked=largest_ms < 0) >= 0:
                break
            excess -= segment.size
            continue
        end = segments[at + 1].base_offset if at < len(segments) - 1 else log.log_end_offset
        if needed_from is not None and needed_from < end:
            break
        if at == len(segments) - 1:
            if not expired:
                break
            log.roll()
            start = log.log_end_offset
        else:
            start = segments[at + 1].base_offset
        excess -= segment.size
    if start > log.high_watermark:
        log.request_sync()  # nobody else may ever want it: the next look finds it committed
    log.delete_prefix(start)


def delete_prefix(log: PartitionLog, before_offset: int) -> None:
    """See `PartitionLog.delete_prefix`."""
    before_offset = min(before_offset, log.high_watermark)
    if before_offset > log.log_start_offset:
        log.drop_segments(before_offset)


async def delete_records(log: PartitionLog, flusher: Flusher, before_offset: int) -> int:
    """See `PartitionLog.delete_records`."""
    if before_offset == -1:
        before_offset = log.high_watermark
    if not 0 <= before_offset <= log.high_watermark:
        raise OffsetOutOfRange(before_offset, log.log_start_offset, log.high_watermark)
    delete_prefix(log, before_offset)
    await flusher.wait_shortened(log, log.log_start_offset)
    return log.log_start_offset
