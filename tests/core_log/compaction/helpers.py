"""What the tests of compaction share: a log that is compacted without threads, and records to put into it."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from core_log.batch_header import HEADER, TRANSACTIONAL_BIT
from core_log.compaction.compactor import Compacted, CompactionLimits, compact
from core_log.compaction.state import CompactionState, load
from core_log.files import Files
from core_log.flush_job import execute
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder, Compression, Record, iterate_records
from core_log.replacement import Replacement
from tests.core_log.helpers import DIRECTORY, TIME_MS

T = TypeVar("T")
Row = tuple[bytes | None, bytes | None]


class HandFlusher(LogFlusher):
    """Jobs are done by whoever asks for them."""

    async def replace(self, log: PartitionLog, offer: Replacement) -> None:
        log.offer(offer)
        while (job := log.take_job()) is not None:
            execute(job)
            log.complete(job)


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


async def inline(work: Callable[[], T]) -> T:
    return work()


def nothing() -> None:
    """A pause that is none."""


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now_ms = TIME_MS

    def __call__(self) -> int:
        return self.now_ms


def open_compacted(files: Files, clock: Clock | None = None, **settings: Any) -> PartitionLog:
    """A log that compacts, with small segments."""
    known = {"segment_bytes": 1000, "cleanup_policy": "compact", "index_interval_bytes": 100, "tail_cache_bytes": 0}
    config = LogConfig(**{**known, **settings})
    return PartitionLog.open(files, DIRECTORY, config, HandFlusher(), wall_clock_ms=clock or Clock())


def pass_over(
    log: PartitionLog, state: CompactionState | None = None, limits: CompactionLimits | None = None
) -> Compacted | None:
    """Compact it once."""
    state = state if state is not None else load(log.files, log.directory)
    flusher = log._flusher
    return finish(compact(log, flusher, state, limits=limits or CompactionLimits(), in_thread=inline, pause=nothing))


def keyed(
    rows: Sequence[Row], *, time_ms: int = TIME_MS, compression: Compression = Compression.NONE, first: int = 0
) -> bytes:
    """A batch of (key, value)."""
    builder = BatchBuilder(first, 0, time_ms, compression=compression)
    for offset, (key, value) in enumerate(rows, first):
        headers = [("n", b"%d" % offset)] if offset % 3 else []
        builder.add(offset, key, value, headers, time_ms + offset % 5)
    return builder.build()


def of_producer(batch: bytes, producer_id: int, sequence: int = 0, *, bits: int = 0) -> bytes:
    """The same batch, sent by a producer that has an id."""
    from crc32c import crc32c

    from core_log.batch_header import CRC_START, HEADER_BYTES, parse_header
    from core_log.record_batch import validate

    header = parse_header(batch)
    fields = header._replace(
        producer_id=producer_id, producer_epoch=0, base_sequence=sequence, attributes=header.attributes | bits
    )
    head = bytearray(HEADER.pack(*fields))
    crc = crc32c(batch[HEADER_BYTES:], crc32c(bytes(head[CRC_START:])))
    head[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    whole = bytes(head) + batch[HEADER_BYTES:]
    validate(whole)
    return whole


def marker(producer_id: int, *, commits: bool) -> bytes:
    """The control batch that ends a transaction."""
    builder = BatchBuilder(0, 0, TIME_MS, control=True)
    builder.add(0, b"\0\0\0" + bytes([commits]), b"\0\0\0\0\0\0")
    return of_producer(builder.build(), producer_id, -1, bits=TRANSACTIONAL_BIT)


def put(log: PartitionLog, *batches: bytes) -> None:
    """Append and sync."""
    for batch in batches:
        log.append(batch)
    write_all(log)


def write_all(log: PartitionLog) -> None:
    log.request_sync()
    while (job := log.take_job()) is not None:
        execute(job)
        log.complete(job)


def batches_of(log: PartitionLog) -> list[bytes]:
    """All batches, from the disk."""
    from core_log.record_batch import parse_header

    found: list[bytes] = []
    offset = log.log_start_offset
    while batches := log.read_blocking(offset, 500):
        found += map(bytes, batches)
        offset = parse_header(found[-1]).next_offset
    return found


def records(log: PartitionLog) -> list[Record]:
    """All records that a reader from the beginning gets, control batches left out."""
    from core_log.record_batch import parse_header

    return [
        record
        for batch in batches_of(log)
        if not parse_header(batch).is_control
        for record in iterate_records(batch)
        if record.offset >= log.log_start_offset
    ]


def fill(log: PartitionLog, dice: random.Random, batches: int, keys: int = 12) -> list[Record]:
    """Append batches of all codecs, some with gaps; the records."""
    rows: list[Record] = []
    for _ in range(batches):
        some: list[Row] = [
            (
                b"key-%d" % dice.randrange(keys) * dice.choice([1, 1, 1, 9]),
                None if dice.random() < 0.15 else dice.randbytes(dice.choice([0, 5, 60])),
            )
            for _ in range(dice.randrange(1, 9))
        ]
        base = log.log_end_offset + dice.choice([0, 0, 0, 4])
        batch = keyed(some, first=base, compression=dice.choice([*Compression]))
        if dice.random() < 0.3:
            batch = of_producer(batch, dice.randrange(3), len(rows))
        log.append(batch, base_offset=base)
        rows += iterate_records(batch)
    write_all(log)
    return rows
