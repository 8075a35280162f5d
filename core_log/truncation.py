"""Cutting a log's end off, as a follower does whose leader has other records there.

1. The log takes no appends and gives the flusher no jobs while it is cut; what was under way is waited for, and what is
   written is synced. If that fails it counts as a job that failed: the log writes it again from memory, as no later
   sync would tell.
2. The place of the cut is found through the index: an index interval is read, whatever the size of the segment. All
   that touches files happens in a thread.
3. What stays is synced and the recovery point set to the cut before anything goes: one beyond it would point into the
   middle of what is appended later, and vouch for indexes that are cut next. Then later segments go, the last first,
   and, when these are gone for good, the rest of the one that is cut. A crash in between leaves a log that is longer
   than asked for, but whole.
4. The high watermark does not fall: readers have seen what is below it, so nothing of that is cut; but where an
   unclean election has given up what was committed (`committed`).
5. What the disk refused is done again from the start, with the same files, or those that are left. They may be
   neither what they were nor what they are to be (`half_cut`), so the log stays closed to appends and jobs until it has
   been done: what came then would be behind a hole.
6. The note of a clean stop goes first: it would say that bytes are missing.

`restart` drops everything, as a follower does whose leader's log begins behind its own end.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_log.closed_indexes import CLOSED_INDEXES
from core_log.errors import BelowHighWatermark, LogUnavailable
from core_log.flush_job import RecoveryPoint, bases_before, save_epochs, save_log_start
from core_log.segment import BatchPlace, Segment, scan
from core_log.segment_index import NO_TIMESTAMP_MS, SegmentIndex
from core_log.segment_names import SegmentName, parse
from core_log.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_log.flusher import Flusher
    from core_log.partition_log import PartitionLog
    from core_log.replica_log import ReplicaLog


@dataclass(slots=True)
class Cut:
    """Where a log ends after it was cut: what is active then, and its state there."""

    segment: Segment
    index: SegmentIndex
    position: int
    next_offset: int
    max_timestamp_ms: int
    max_timestamp_last: int


async def truncate(log: PartitionLog, flusher: Flusher, end_offset: int, *, committed: bool = False) -> None:
    """See `PartitionLog.truncate`."""
    _close_to_appends(log)
    try:
        await _drain(log, flusher)
        if end_offset >= log.log_end_offset:
            return
        if committed:
            log.high_watermark = log.committed_offset = min(log.high_watermark, end_offset)
        elif end_offset < log.high_watermark:
            raise BelowHighWatermark(f"{log.directory}: {end_offset} is below the high watermark {log.high_watermark}")
        log.shorten(await _in_files(log, flusher, lambda: cut_files(log, end_offset)))
        if log.transactions is not None and not log.transactions.cut(log.log_end_offset):
            log.transactions = await flusher.in_thread(lambda: TransactionIndex.read(log))
    finally:
        log.truncating = log.cutting = log.half_cut
        flusher.enlist(log)


async def restart(log: ReplicaLog, flusher: Flusher, offset: int) -> None:
    """See `ReplicaLog.restart_at`."""
    _close_to_appends(log)
    try:
        await _drain(log, flusher)
        log.started_anew(await _in_files(log, flusher, lambda: restart_files(log, offset)))
        if log.transactions is not None:
            log.transactions = TransactionIndex.read(log)  # which is empty
    finally:
        log.truncating = log.cutting = log.half_cut
        flusher.enlist(log)


def _close_to_appends(log: PartitionLog) -> None:
    if log.truncating and not log.half_cut:
        raise LogUnavailable(f"{log.directory}: being truncated")
    log.truncating = True


async def _drain(log: PartitionLog, flusher: Flusher) -> None:
    await flusher.drain(log)
    if log.error is not None or log.closed:
        raise LogUnavailable(f"{log.directory}: {log.error or 'closed'}")


async def _in_files(log: PartitionLog, flusher: Flusher, change: Callable[[], Cut]) -> Cut:
    again, log.half_cut = log.half_cut, False
    log.cutting = True
    if not again:
        await _sync(log, flusher)
    try:
        return await flusher.in_thread(change)
    except BaseException as error:
        log.half_cut = again or isinstance(error, OSError)
        raise


async def _sync(log: PartitionLog, flusher: Flusher) -> None:
    try:
        await flusher.in_thread(lambda: log.segments[-1].writable(log.files).sync())
    except OSError as error:
        log.sync_failed(error)
        raise


def restart_files(log: PartitionLog, offset: int) -> Cut:
    """Drop the files of a log that has nothing under way, to go on at `offset`. Blocks. Raises OSError.

    A crash in between leaves a log as it was, or one that begins at `offset`: empty, or with what it had behind it.
    """
    files, directory = log.files, log.directory
    log.segments[-1].writable(files).sync()
    save_epochs(files, directory, log.epochs.encode())
    save_log_start(files, directory, offset)
    RecoveryPoint.at_start_of(offset).save(files, directory, sync_name=True)
    for segment in log.segments:
        segment.close_file()
    for name in reversed(files.list(directory)):
        if name.endswith((".log", ".index", ".timeindex", ".keys")):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    index = SegmentIndex()
    segment = Segment(log.directory, offset, log.config.index_interval_bytes, index)
    return Cut(segment, index, 0, offset, NO_TIMESTAMP_MS, 0)


def cut_files(log: PartitionLog, end_offset: int) -> Cut:
    """Cut the files of a log that has nothing under way. Blocks. Raises OSError."""
    files = log.files
    keep = log.segments_from(end_offset)[0]
    cut = _find(log, keep, end_offset)
    file = keep.writable(files)
    file.sync()
    save_epochs(files, log.directory, log.epochs.encode())
    index = cut.index
    point = RecoveryPoint(
        keep.base_offset,
        cut.position,
        cut.next_offset,
        cut.max_timestamp_ms,
        keep.created_ms,
        len(index.offsets),
        len(index.times),
        max_timestamp_last=cut.max_timestamp_last,
        closed=bases_before(log.segments, keep.base_offset),
    )
    point.save(files, log.directory, sync_name=True)
    index.save(files, keep.stem, len(index.offsets), len(index.times))
    for segment in reversed(log.segments):
        if segment.base_offset > keep.base_offset:
            segment.close_file()
            segment.remove(files)
    files.sync_directory(log.directory)
    file.truncate(cut.position)
    keep.index, keep.written_bytes = index, cut.position
    CLOSED_INDEXES.forget(keep)
    keep.room_end = 0
    keep.missing = False
    file.sync()
    _forget_compaction(log, keep)
    files.sync_directory(log.directory)
    return cut


def _forget_compaction(log: PartitionLog, keep: Segment) -> None:
    """What is appended to a compacted segment may go beyond the end in its name: it gets the name of one that is
    written. What a compaction has left over of others, or never came to use, goes before.
    """
    files, directory = log.files, log.directory
    for file_name in files.list(directory):
        name = parse(file_name)
        if name is None or f"{directory}/{name}" == keep.stem:
            continue
        if name.base_offset >= keep.base_offset or name.end > keep.base_offset:
            Segment(directory, name, 0, None).remove(files)
    plain = f"{directory}/{SegmentName(keep.base_offset)}"
    if keep.stem != plain:
        keep.close_file()
        if files.exists(keep.stem + ".keys"):
            files.remove(keep.stem + ".keys")
        for suffix in (".index", ".timeindex", ".log"):
            if files.exists(keep.stem + suffix):
                files.rename(keep.stem + suffix, plain + suffix)
        keep.stem = plain
        keep.keys = None


def _find(log: PartitionLog, keep: Segment, end_offset: int) -> Cut:
    """Where the first batch that reaches beyond `end_offset` begins, with the index entries before it."""
    files = log.files
    if keep.missing:
        return Cut(keep, SegmentIndex(), 0, keep.base_offset, NO_TIMESTAMP_MS, 0)
    full = keep.index or keep.by_index(files, lambda: SegmentIndex.of_closed(files, keep.stem), SegmentIndex())
    # From the entry before the last one that is sure to stay: what is before that, an entry says the largest time of.
    at = bisect_left(full.offsets, end_offset - keep.base_offset) - 2
    position = full.positions[at] if at >= 0 else 0
    scanned: list[BatchPlace] = []
    file = files.open(keep.log_path, create=False)
    try:
        for place in scan(file, keep.log_path, position, keep.written_bytes, check_crc=False):
            if place.next_offset > end_offset:
                next_offset = scanned[-1].next_offset if scanned else min(place.base_offset, end_offset)
                break
            scanned.append(place)
            position = place.position + place.size
        else:
            next_offset = scanned[-1].next_offset if scanned else -1
    finally:
        file.close()
    next_offset = max(next_offset, keep.base_offset)
    index = SegmentIndex()  # All of it is saved again: that cuts the files, too.
    index.take(full, position, next_offset - keep.base_offset)
    max_timestamp_ms, last = (index.times[-1], index.time_offsets[-1]) if index.times else (NO_TIMESTAMP_MS, 0)
    for place in scanned:
        if place.max_timestamp_ms > max_timestamp_ms:
            max_timestamp_ms, last = place.max_timestamp_ms, place.next_offset - 1 - keep.base_offset
    return Cut(keep, index, position, next_offset, max_timestamp_ms, last)
