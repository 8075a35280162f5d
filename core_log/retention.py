"""What makes a log shorter: age, size, and the truncation of a follower.

Segments go whole and oldest first, and never beyond the high watermark. When even the active segment is too old it is
rolled first, so that an idle log empties, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_log.flush_job import RecoveryPoint
from core_log.recovery import recover
from core_log.segment import scan

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog


def apply(log: PartitionLog, now_ms: int) -> None:
    """See `PartitionLog.apply_retention`."""
    config = log.config
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return
    start = log.log_start_offset
    excess = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    segments = log.segments.copy()
    for at, segment in enumerate(segments):
        expired = False
        if config.retention_ms >= 0:
            largest_ms = segment.largest_timestamp_ms(log.files)
            expired = bool(segment.size) and largest_ms >= 0 and largest_ms < now_ms - config.retention_ms
        if not expired and excess < max(segment.size, 1):
            break
        if at == len(segments) - 1:
            if not expired:
                break
            log.roll()
            start = log.log_end_offset
        else:
            start = segments[at + 1].base_offset
        excess -= segment.size
    log.delete_prefix(start)


def truncate(log: PartitionLog, end_offset: int) -> None:
    """Cut a log that has nothing under way; see `PartitionLog.truncate`. Blocks. Raises OSError."""
    files = log.files
    keep = log.segments_from(end_offset)[0]
    # First, and durably: a recovery point beyond the cut would point into the middle of what is appended later.
    RecoveryPoint.at_start_of(keep.base_offset).save(files, log.directory, sync_name=True)
    for segment in reversed(log.segments):
        segment.close_file()
        if segment.base_offset > keep.base_offset:
            segment.remove(files)
    file = keep.writable(files)
    position = 0
    for place in scan(file, keep.log_path, 0, keep.written_bytes):
        if place.next_offset > end_offset:
            break
        position = place.position + place.size
    file.truncate(position)
    file.sync()
    keep.close_file()
    files.sync_directory(log.directory)
    log.reset(recover(files, log.directory, log.config, log.wall_clock_ms()))
