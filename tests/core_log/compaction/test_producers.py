"""Compaction and producers that have an id: transactions that were aborted, and what a producer goes on from."""

from __future__ import annotations

import pytest

from core_log.batch_header import TRANSACTIONAL_BIT
from core_log.compaction.compactor import CompactionLimits
from core_log.compaction.state import CompactionState
from core_log.files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import Compression, decode_columns, decode_runs, iterate_records, parse_header
from core_log.record_fields import decode_fields
from core_log.replica_log import ReplicaLog
from tests.core_log.compaction.helpers import (
    Clock,
    batches_of,
    keyed,
    marker,
    of_producer,
    open_compacted,
    pass_over,
    put,
    records,
    write_all,
)
from tests.core_log.helpers import DIRECTORY, write

DAY_MS = 86_400_000


def transactional(key: bytes, value: bytes | None, producer_id: int, sequence: int = 0) -> bytes:
    return of_producer(keyed([(key, value)]), producer_id, sequence, bits=TRANSACTIONAL_BIT)


def closed(log: PartitionLog) -> None:
    log.roll()
    put(log, keyed([(b"end", b"")]))


def replica_for(log: PartitionLog) -> ReplicaLog:
    return ReplicaLog.open_replica(
        MemoryFiles(),
        DIRECTORY,
        log.config,
        log._flusher,
        wall_clock_ms=log.wall_clock_ms,  # type: ignore[arg-type]
    )


def left(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]


def test_what_was_aborted_replaces_nothing_and_goes() -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=1 << 20)
    put(log, keyed([(b"k", b"committed before")]))
    put(log, transactional(b"k", b"aborted", 7), transactional(b"k", b"in between", 8))
    put(log, marker(7, commits=False), transactional(b"j", b"7 again", 7, 1), marker(8, commits=True))
    put(log, marker(7, commits=True))
    closed(log)
    assert pass_over(log) is not None
    assert left(log) == [(2, b"k", b"in between"), (4, b"j", b"7 again"), (7, b"end", b"")]
    controls = [header.base_offset for header in map(parse_header, batches_of(log)) if header.is_control]
    assert controls == [3, 5, 6]


def test_nothing_is_compacted_behind_a_transaction_that_is_open() -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=1 << 20)
    put(log, keyed([(b"k", b"1")]), keyed([(b"k", b"2")]), transactional(b"k", b"3", 7), keyed([(b"k", b"4")]))
    closed(log)
    state = CompactionState()
    assert pass_over(log, state) is not None
    assert [value for _, _, value in left(log)] == [b"2", b"3", b"4", b""]
    assert state.clean_before == 2
    put(log, marker(7, commits=True))
    pass_over(log, state)
    assert [value for _, _, value in left(log)] == [b"4", b""]
    assert state.clean_before == 4


def test_what_a_marker_replaces_goes_when_that_is_durable() -> None:
    """The power took the marker of a topic that syncs now and then; the value that it had replaced was gone, too."""
    disk = MemoryFiles()
    log = open_compacted(disk, segment_bytes=1 << 20, fsync="interval")
    put(log, keyed([(b"k", b"1")]), transactional(b"k", b"2", 7))
    log.roll()
    log.append(marker(7, commits=True))
    write(log)
    assert (log.high_watermark, log.flushed_offset) == (3, 0), "but a full segment is synced"
    pass_over(log)
    found = open_compacted(disk.crash())
    put(found, marker(7, commits=False))
    closed(found)
    pass_over(found)
    assert (0, b"k", b"1") in left(found)
    log.request_interval_sync()
    write(log)
    assert pass_over(log) is not None
    assert left(log) == [(1, b"k", b"2")]


def test_the_last_batch_of_a_producer_stays_as_a_header() -> None:
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, segment_bytes=1 << 20, dirty_ratio_min=0.0)
    put(log, *[of_producer(keyed([(b"k", b"%d" % n)]), 5, n) for n in range(3)])
    put(log, of_producer(keyed([(b"k", b"other")]), 6, 0), keyed([(b"k", b"last")]))
    closed(log)
    state = CompactionState()
    assert pass_over(log, state) is not None
    headers = [parse_header(batch) for batch in batches_of(log)]
    assert [(header.base_offset, header.record_count) for header in headers] == [(2, 0), (3, 0), (4, 1), (5, 1)]
    assert (headers[0].producer_id, headers[0].base_sequence, headers[0].next_offset) == (5, 2, 3)
    empty = batches_of(log)[0]
    assert decode_runs(empty) == list(iterate_records(empty)) == []
    assert decode_fields(empty).offsets == decode_columns(empty).offsets == []
    assert log.verify() == []
    write_all(log)
    again = open_compacted(log.files.crash(), clock)  # type: ignore[attr-defined]
    assert again.log_end_offset == 6
    assert not again.damaged
    clock.now_ms += 2 * DAY_MS
    put(log, keyed([(b"k", b"new")], time_ms=clock.now_ms))
    closed(log)
    assert pass_over(log, state, CompactionLimits(producer_ms=DAY_MS)) is not None
    assert [parse_header(batch).record_count for batch in batches_of(log)].count(0) == 0, "forgotten by now"


def test_a_producer_that_has_written_since_leaves_nothing() -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=1 << 20, dirty_ratio_min=0.0)
    state = CompactionState()
    put(log, of_producer(keyed([(b"k", b"1")]), 5, 0), keyed([(b"k", b"2")]))
    closed(log)
    pass_over(log, state)
    assert parse_header(batches_of(log)[0]).record_count == 0
    put(log, of_producer(keyed([(b"j", b"1")]), 5, 1))
    closed(log)
    pass_over(log, state)
    assert [parse_header(batch).record_count for batch in batches_of(log)] == [1, 1, 1, 1]


def test_the_end_of_a_transaction_goes_after_its_data() -> None:
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, segment_bytes=1 << 20, delete_retention_ms=1000, dirty_ratio_min=0.0)
    state = CompactionState()
    put(log, transactional(b"k", b"1", 5), marker(5, commits=True), keyed([(b"k", b"2")]))
    put(log, transactional(b"j", b"1", 6), marker(6, commits=False))
    put(log, transactional(b"i", b"1", 5, 1), marker(5, commits=True))
    closed(log)
    for _ in range(3):
        pass_over(log, state)
        clock.now_ms += 1000
        put(log, keyed([(b"end", b"")]))
        closed(log)
    offsets = [header.base_offset for header in map(parse_header, batches_of(log)) if header.is_control]
    assert offsets == [4, 6], "an aborted one, and one of which there is data"


def test_followers_take_what_compaction_has_left() -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=1 << 20)
    put(log, *[of_producer(keyed([(b"k%d" % (n % 3), b"%d" % n)]), n, 0) for n in range(9)])
    closed(log)
    pass_over(log)
    other = replica_for(log)
    for batch in batches_of(log):
        other.append_replica(batch)
    write_all(other)
    other.advance_high_watermark(other.log_end_offset)
    assert other.log_end_offset == log.log_end_offset
    assert left(other) == left(log)
    assert pass_over(other) is None, "all of it is in the active segment"
    closed_at = other.log_end_offset
    other.roll()
    write_all(other)
    assert pass_over(other) is not None
    assert other.log_end_offset == closed_at
    assert left(other) == left(log)


@pytest.mark.parametrize(
    "last",
    [
        [keyed([(b"gone", None)])],
        [keyed([(None, b"without a key")])],
        [keyed([(None, b"a"), (None, b"b")], compression=Compression.ZSTD)],
        [transactional(b"there", b"1", 5), marker(5, commits=True), keyed([(b"there", None)])],
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_replica_of_what_is_left_knows_the_last_epoch(last: list[bytes], goes_on: bool) -> None:
    """Else its leader has it cut what it takes for somebody else's, and that it knows to be committed."""
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, segment_bytes=1 << 20, delete_retention_ms=1000, dirty_ratio_min=0.0)
    put(log, keyed([(b"stays", b"x")]), keyed([(b"there", b"x")]), keyed([(b"gone", b"x")]))
    for epoch, batches in ((3, last), (7, [keyed([(None, b"more")])])):
        log.epochs.begin(epoch, log.log_end_offset)
        log.leader_epoch = epoch
        put(log, *batches)
        if not goes_on:
            break
    log.roll()
    write_all(log)
    state = CompactionState()
    for _ in range(3):
        pass_over(log, state)
        clock.now_ms += 1000
    assert all(record.value for record in records(log)), "tombstones have gone"
    other = replica_for(log)
    for batch in batches_of(log):
        other.append_replica(batch)
        found = log.epochs.end_of(other.last_epoch, log.log_end_offset)
        assert found is not None
        assert found[1] >= other.log_end_offset
    other.skip_to(log.log_end_offset)
    assert other.last_epoch == log.epochs.latest
    assert other.log_end_offset == log.log_end_offset
