"""Compaction of a log: of each key the last record stays, at its offset.

1. What may be compacted is closed, below the high watermark, older than `compaction_lag_min_ms`, and in front of the
   first transaction that is not decided, durably: else its marker might go with the power, and what it replaced would
   be gone already. What was compacted before is *clean*, the rest *dirty*.
2. A pass reads headers (`survey.py`), then the keys of what is dirty (`key_map.py`), then writes every segment again up
   to there (`rewrite.py`), several small ones as one. Each is put in the place of what it was made of as one step
   (`core_log/replacement.py`): a crash leaves either, and readers of the old files read on.
3. All of it is decided from the log's own bytes, so replicas compact each for itself. Below what is clean they may
   differ in which records are still there, never in what a record is, nor in the last record of a key.
4. What says that something is gone (a tombstone, the end of a transaction) stays while a replica is not in sync: it may
   have that something and nothing else, and would bring it back when it leads. A transaction would be open for good.
5. Everything that reads or writes files runs in a thread, and calls `pause` often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.compaction import state as states
from core_log.compaction.batches import Pause
from core_log.compaction.key_map import read_key_map
from core_log.compaction.rewrite import Filter, Rewritten, remove_unfinished, rewrite
from core_log.compaction.state import CompactionState
from core_log.compaction.survey import survey
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import CorruptBatch
from core_log.replacement import Replacement
from core_log.segment import Segment
from core_log.segment_names import parse

if TYPE_CHECKING:
    from core_log.flusher import Flusher
    from core_log.partition_log import PartitionLog

MEMORY_BYTES_MAX = 128 << 20
PRODUCER_MS = 24 * 3_600_000

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Dirt(NamedTuple):
    """What there is to be done for a log."""

    first: int
    end: int
    ratio: float
    """The share of its bytes up to `end` that was never compacted."""
    is_due: bool


class Compacted(NamedTuple):
    """What a pass has done."""

    end: int
    records: int
    """Whose keys were read."""
    dropped_records: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, kw_only=True)
class CompactionLimits:
    """What a pass may take."""

    memory_bytes_max: int = MEMORY_BYTES_MAX
    """For keys: 208 bytes each at most, and a byte for each offset. What does not fit is for the next pass."""
    producer_ms: int = PRODUCER_MS
    """A producer that sends nothing for so long is forgotten."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """A batch that is larger without its compression stays as it is."""


def look(log: PartitionLog, state: CompactionState, now_ms: int) -> Dirt:
    """What there is to be done; blocks. Raises OSError."""
    config = log.config
    state.believe(log.epochs, log.log_end_offset)
    first = max(state.clean_before, log.log_start_offset)
    segments = log.segments.copy()
    end, clean_bytes, dirty_bytes, oldest_ms = log.log_start_offset, 0, 0, -1
    for segment, after in pairwise(segments):
        if segment.index is not None or after.base_offset > log.high_watermark:
            break
        if after.base_offset <= first:
            clean_bytes += segment.size
        else:
            if config.compaction_lag_min_ms and segment.size:
                largest_ms = segment.largest_timestamp_ms(log.files)
                if largest_ms > now_ms - config.compaction_lag_min_ms:
                    break
            if oldest_ms < 0 and segment.size:
                oldest_ms = _first_timestamp(log, segment)
            dirty_bytes += segment.size
        end = after.base_offset
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    is_due = dirty_bytes > 0 and (
        ratio >= config.dirty_ratio_min or 0 <= oldest_ms < now_ms - config.compaction_lag_max_ms
    )
    before = _tombstones_before(log, state, now_ms)
    is_due = is_due or (state.tombstones and before > max(state.tombstones_dropped_before, log.log_start_offset))
    return Dirt(first, max(end, first), ratio, is_due)


def _tombstones_before(log: PartitionLog, state: CompactionState, now_ms: int) -> int:
    """Tombstones below may go: rule 4."""
    if log.is_everywhere is not None and not log.is_everywhere():
        return 0
    return state.tombstones_before(now_ms, log.config.delete_retention_ms)


def _first_timestamp(log: PartitionLog, segment: Segment) -> int:
    file = log.files.open(segment.log_path, create=False)
    try:
        return parse_header(file.pread(HEADER_BYTES, 0)).max_timestamp_ms
    finally:
        file.close()


async def compact(
    log: PartitionLog,
    flusher: Flusher,
    state: CompactionState,
    *,
    limits: CompactionLimits,
    in_thread: InThread,
    pause: Pause,
) -> Compacted | None:
    """One pass; `state` is brought up to date and saved. None: there was nothing to be done, or the log was cut
    meanwhile, or its prefix deleted.

    Raises CorruptBatch naming file and position, OSError; what was done by then stays done.
    """
    cuts, start, bytes_before = log.cuts, log.log_start_offset, log.size_bytes
    try:
        work = await in_thread(partial(_read, log, state, limits, pause))
        kept: Filter = work.kept
        if work.is_empty:
            return None
        candidates = [pair for pair in _closed(log) if pair[0].base_offset < kept.keys.end]
        while candidates:
            made: Rewritten = await in_thread(partial(_rewrite, log, candidates, kept, pause))
            some, candidates = candidates[: made.taken], candidates[made.taken :]
            if made.segment is None:
                continue
            sources = [source for source, _ in some]
            offer = Replacement(sources, made.segment, made.temporary, some[-1][1], cuts)
            await flusher.replace(log, offer)
            if not offer.named:
                await in_thread(partial(remove_unfinished, log.files, made))
                return None
    except (CorruptBatch, FileNotFoundError):
        if log.cuts == cuts and log.log_start_offset == start and not log.closed:
            log.unreadable = True
            raise
        return None
    if log.cuts != cuts or log.closed:
        return None
    end = kept.keys.end
    state.tombstones, state.producers = kept.tombstones_left, work.producers
    state.tombstones_dropped_before = kept.tombstones_before
    state.passed(end, log.epochs, log.wall_clock_ms(), log.config.delete_retention_ms)
    await in_thread(partial(states.save, log, state))
    return Compacted(end, kept.keys.records, kept.dropped_records, bytes_before, log.size_bytes)


class _Work(NamedTuple):
    kept: Filter
    producers: bool
    is_empty: bool


def _read(log: PartitionLog, state: CompactionState, limits: CompactionLimits, pause: Pause) -> _Work:
    now_ms = log.wall_clock_ms()
    dirt = look(log, state, now_ms)
    durable = min(log.high_watermark, max(log.flushed_offset, dirt.end))
    found = survey(log, 0 if state.producers else dirt.first, durable, pause)
    end = max(min([dirt.end, *found.undecided.values()]), dirt.first)
    keys = read_key_map(log, dirt.first, end, found, limits.memory_bytes_max, limits.decompressed_bytes_max, pause)
    before = _tombstones_before(log, state, now_ms)
    since_ms = now_ms - limits.producer_ms
    ends = {log.log_end_offset, *(first for _, first in log.epochs.entries.copy())}
    kept = Filter(keys, found, before, since_ms, limits.decompressed_bytes_max, ends, keys.has_tombstones)
    is_empty = keys.end <= dirt.first and not (state.tombstones and before > state.tombstones_dropped_before)
    return _Work(kept, bool(found.last_data or found.decided), is_empty)


def _rewrite(log: PartitionLog, candidates: list[tuple[Segment, int]], kept: Filter, pause: Pause) -> Rewritten:
    names = map(parse, log.files.list(log.directory))
    generation = max((name.generation for name in names if name is not None), default=0) + 1
    return rewrite(log.files, log.directory, candidates, generation, log.config, kept, pause)


def _closed(log: PartitionLog) -> list[tuple[Segment, int]]:
    """The closed segments, and where the one behind each begins."""
    found = []
    for segment, after in pairwise(log.segments.copy()):
        if segment.index is not None:
            break
        found.append((segment, after.base_offset))
    return found
