"""The ids of records that a partition has taken within the last while: one with an id that is known is left out.

1. The id of a record is the value of the first of `NAMES` among its headers, as bytes; a record without one, or with an
   empty one, is always new. So are dead letters and records that come again, which were taken once before.
2. Of a batch only what is new is appended. Its records keep their offsets and sequence numbers, as in a log that was
   compacted; of a batch of which nothing is new the header is, so that its producer's next batch follows, and what is
   confirmed lies behind the original in the log.
3. A record of a transaction counts once that is committed, and at once within the transaction. Until then nobody knows
   whether it will be there, so that another's copy is taken.
4. What is known is what the log has: it is read from there when the first record is to be appended in a leader epoch
   that others may have written in, from the window's begin on and at most `deduplication_ids_max` records. As long as
   one process appends it is the time of the append that counts, after that of the record, but not before that of a
   record in front of it.
5. Ids stand as numbers in tables with a limit (`routing/seen_ids.py`), those of queues as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import trio

from core_log.batch_header import BatchHeader, parse_header
from core_log.compaction.rewrite import left_of
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import LogError, LogUnavailable
from core_log.files import BytesLike
from core_log.header_blocks import header_spans
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_fields import header_blocks_of
from core_log.threads import in_thread
from core_log.transaction_marker import is_commit
from core_log.varint import ONE_BYTE_BELOW, VARINTS
from routing.message import RESERVED_HEADER_PREFIX
from routing.runs import Run, cut_out
from routing.seen_ids import ID_HEADERS, SeenIds, hashes_of

_READ_BYTES = 1 << 20
_UNKNOWN = -1
NAMES = tuple(name.encode() for name in (f"{RESERVED_HEADER_PREFIX}message-id", *ID_HEADERS))
"""Of the headers that may hold an id: the first is what AMQP and MQTT call a message."""
_TAKEN_BEFORE = -1
_RANKS = dict.fromkeys((b"x-death", b"x-retry-group", b"x-dead-letter-reason"), _TAKEN_BEFORE)
"""Of those that only records have which were taken once before, and of `NAMES`."""
_RANKS.update((name, rank) for rank, name in enumerate(NAMES))
_ONE_HEADER = VARINTS[1]


class _Ids:
    """What was appended, up to `end`."""

    def __init__(self, config: LogConfig, end: int) -> None:
        self.seen = SeenIds(config.deduplication_window_ms, config.deduplication_ids_max)
        self.end = end
        self._in_transactions: dict[int, set[int]] = {}
        """What is not committed yet, by producer id."""
        self._pending_max = config.deduplication_ids_max

    def admit(self, header: BatchHeader, hashes: array[int], now_ms: int) -> list[bool]:
        """For each record whether it is new; new ones are known from now on."""
        seen = self.seen
        if not header.is_transactional:
            return seen.admit(hashes, now_ms)
        seen.expire(now_ms)
        mine = self._in_transactions.setdefault(header.producer_id, set())
        known = seen.known(hashes)
        fresh = []
        for value in hashes:
            is_new = not value or not (value in mine or value in known)
            fresh.append(is_new)
            if is_new and value and len(mine) < self._pending_max:
                mine.add(value)
        return fresh

    def forget(self, hashes: Sequence[int], header: BatchHeader | None) -> None:
        """These were not appended after all, as a part of this batch or of none."""
        if header is None or not header.is_transactional:
            self.seen.forget(hashes)
        else:
            self._in_transactions[header.producer_id].difference_update(hashes)

    def end_transaction(self, producer_id: int, committed: bool, now_ms: int) -> None:
        """A producer's transaction has ended."""
        mine = self._in_transactions.pop(producer_id, None)
        if mine and committed:
            self.seen.admit(list(mine), now_ms)


class KnownIds:
    """See the module. One of a log with `deduplication_window_ms`, which it is told of everything that is appended."""

    def __init__(self, log: PartitionLog, duplicates: int = 0) -> None:
        self.duplicates = duplicates
        """Records that were left out."""
        self._log = log
        self._epoch = _UNKNOWN
        self._ids = _Ids(log.config, 0)
        self._reading = trio.Lock()
        self._last: tuple[Sequence[int], BatchHeader | None] = (), None

    def follow(self) -> None:
        """The log has another window now."""
        self._ids.seen.window_ms = self._log.config.deduplication_window_ms

    def begin(self) -> None:
        """What the log has now need not be known."""
        self._epoch, self._ids = self._log.leader_epoch, _Ids(self._log.config, self._log.log_end_offset)

    # --- what is known -----------------------------------------------------------------

    def are_known(self) -> bool:
        """Whether records may be appended; else `read` first."""
        log = self._log
        if self._epoch == log.leader_epoch:
            return True
        if log.log_start_offset == log.log_end_offset:
            self.begin()
        elif self._is_true and self._ids.end == log.log_end_offset:
            self._epoch = log.leader_epoch
        else:
            return False
        return True

    @property
    def _is_true(self) -> bool:
        """Whether all that was read or appended is still there: what replaced it would be of a later epoch."""
        log = self._log
        found = log.epochs.end_of(self._epoch, log.log_end_offset) if self._epoch != _UNKNOWN else None
        return found is not None and self._ids.end <= found[1]

    async def read(self) -> None:
        """Get to know what the log has. Raises LogUnavailable."""
        log = self._log
        while not self.are_known():
            async with self._reading:
                epoch = log.leader_epoch
                if self._epoch == epoch:
                    continue
                await log.wait_written(log.log_end_offset)
                if not self._is_true:
                    self._epoch, self._ids = _UNKNOWN, _Ids(log.config, _UNKNOWN)
                ids = self._ids
                try:
                    await in_thread(self._read, ids)
                except (OSError, LogError) as error:
                    raise LogUnavailable(f"{log.directory}: {error}") from None
                if ids is self._ids:
                    self._epoch = epoch

    def _read(self, ids: _Ids) -> None:
        log = self._log
        now_ms = log.wall_clock_ms()
        time_ms = now_ms - log.config.deduplication_window_ms
        if ids.end == _UNKNOWN:
            found = log.offset_for_timestamp(time_ms)
            first = log.high_watermark if found is None else found[0]
            ids.end = max(first, log.written_offset - log.config.deduplication_ids_max)
        at = max(ids.end, log.log_start_offset)
        while at < log.written_offset and (batches := log.read_blocking(at, _READ_BYTES, unsynced=True)):
            for batch in batches:
                header = parse_header(batch)
                time_ms = max(time_ms, min(header.max_timestamp_ms, now_ms))
                if header.is_control:
                    ids.end_transaction(header.producer_id, is_commit(batch) is True, time_ms)
                elif (hashes := _hashes_of(header, bytes(batch))) is not None:
                    ids.admit(header, hashes, time_ms)
                at = max(at, header.next_offset)
        ids.end = max(at, log.written_offset)

    # --- what is new -------------------------------------------------------------------

    def left_of(self, header: BatchHeader, batch: BytesLike) -> BytesLike:
        """What is to be appended of a producer's batch. Raises CorruptBatch."""
        data = bytes(batch)
        hashes = _hashes_of(header, data)
        self._last = (), None
        if hashes is None:
            return batch
        fresh = self._ids.admit(header, hashes, self._log.wall_clock_ms())
        self._last = _new(hashes, fresh), header
        if all(fresh):
            return batch
        self.duplicates += fresh.count(False)
        return left_of(header, data, bytes(fresh), DECOMPRESSED_BYTES_MAX)

    def left_of_runs(self, runs: Iterable[Run]) -> list[Run]:
        """What is to be appended of these."""
        left: list[Run] = []
        noted: list[int] = []
        now_ms = self._log.wall_clock_ms()
        for run in runs:
            blocks = run.header_blocks
            hashes = _hashes([blocks]) * len(run.bodies) if isinstance(blocks, bytes) else _hashes(blocks)
            fresh = self._ids.seen.admit(hashes, now_ms) if any(hashes) else []
            noted += _new(hashes, fresh)
            left += cut_out(run, fresh) if False in fresh else (run,)
            self.duplicates += fresh.count(False)
        self._last = noted, None
        return left

    def appended(self) -> None:
        """Something was, and is known."""
        self._ids.end = self._log.log_end_offset

    def take_back(self) -> None:
        """What was new last was not appended."""
        self._ids.forget(*self._last)

    def end_transaction(self, marker: BytesLike, producer_id: int) -> None:
        """The end of a producer's transaction was appended."""
        self._ids.end_transaction(producer_id, is_commit(marker) is True, self._log.wall_clock_ms())


def _new(hashes: Iterable[int], fresh: Iterable[bool]) -> list[int]:
    return [one for one, new in zip(hashes, fresh) if new and one]


def _hashes_of(header: BatchHeader, batch: bytes) -> array[int] | None:
    """A number for the id of each record; None if none has one. Raises CorruptBatch."""
    if not header.record_count or not (header.compression or any(name in batch for name in NAMES)):
        return None
    hashes = _hashes(header_blocks_of(batch))
    return hashes if any(hashes) else None


def _hashes(blocks: Iterable[bytes]) -> array[int]:
    """A number for the id in each header block, 0 where none is. Raises CorruptBatch."""
    blocks = list(blocks)
    return hashes_of(_only_headers(blocks) or [_id(block) for block in blocks])


def _only_headers(blocks: list[bytes]) -> list[bytes]:
    """The ids where each block has nothing but one, of less than 64 bytes and under the same name; else nothing."""
    first = blocks[0] if blocks else b""
    end = 2 + (first[1] >> 1) if len(first) > 1 else 0
    head = first[:end]
    if head[:1] != _ONE_HEADER or head[2:] not in NAMES:
        return []
    start = end + 1
    longest = start + ONE_BYTE_BELOW
    found = [
        block[start:]
        for block in blocks
        if block[:end] == head and start < len(block) < longest and block[end:start] == VARINTS[len(block) - start]
    ]
    return found if len(found) == len(blocks) else []


def _id(block: bytes) -> bytes | None:
    if not any(name in block for name in NAMES):
        return None
    name_end = 2 + (block[1] >> 1)
    if block[:1] == _ONE_HEADER and block[2:name_end] in NAMES:
        rest = block[name_end + 1 :]
        if len(rest) < ONE_BYTE_BELOW and block[name_end : name_end + 1] == VARINTS[len(rest)]:
            return rest or None
    best, found = len(NAMES), None
    for name, name_end, value, end in header_spans(block, 0, len(block)):
        rank = _RANKS.get(block[name:name_end], best)
        if rank == _TAKEN_BEFORE:
            return None
        if rank < best and 0 <= value < end:
            best, found = rank, block[value:end]
    return found
