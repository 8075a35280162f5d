"""What is left of a log that is compacted, against a plain map; and wherever it stops."""

from __future__ import annotations

import itertools
import random

import pytest

from core_log import checkpoint
from core_log.batch_header import HEADER_BYTES
from core_log.compaction.compactor import CompactionLimits, look
from core_log.compaction.state import CompactionState, load
from core_log.errors import CorruptBatch
from core_log.files import FaultyFiles, MemoryFiles, OsFiles
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import Compression, Record, parse_header, validate
from tests.core_log.compaction.helpers import (
    Clock,
    HandFlusher,
    batches_of,
    fill,
    finish,
    inline,
    keyed,
    of_producer,
    open_compacted,
    pass_over,
    put,
    records,
    write_all,
)
from tests.core_log.helpers import DIRECTORY
from tests.core_log.test_segment_index import check_as_kafka

DAY_MS = 86_400_000


def check(log: PartitionLog, rows: list[Record]) -> None:
    """A reader gets of each key the last record, and nothing that was not written."""
    left = records(log)
    known = {record.offset: record for record in rows}
    for record in left:
        assert record == known[record.offset]
    assert [record.offset for record in left] == sorted({record.offset for record in left})
    last = {record.key: record for record in rows}
    there = {record.key: record for record in left}
    for key, record in last.items():
        if record.value is not None:
            assert there[key] == record, key
        else:
            assert key not in there or there[key].value is None
    end = 0
    for batch in batches_of(log):
        header = validate(batch, may_be_empty=True)
        assert header.base_offset >= end
        end = header.next_offset
    assert end <= log.log_end_offset
    assert log.verify() == []
    check_as_kafka(log.files, log)


@pytest.mark.parametrize("seed", range(16))
def test_the_last_record_of_each_key_stays(seed: int) -> None:
    dice = random.Random(seed)
    files, clock = MemoryFiles(), Clock()
    settings = {
        "segment_bytes": dice.choice([400, 1500, 20_000]),
        "index_interval_bytes": dice.choice([0, 200]),
        "delete_retention_ms": dice.choice([0, 1000, DAY_MS]),
        "cleanup_policy": dice.choice(["compact", "compact,delete"]),
    }
    limits = CompactionLimits(memory_bytes_max=dice.choice([8000, 1 << 20]))
    log = open_compacted(files, clock, **settings)
    rows: list[Record] = []
    for _ in range(6):
        rows += fill(log, dice, dice.randrange(1, 40))
        for _ in range(dice.randrange(3)):
            clock.now_ms += dice.choice([0, 500, 2000, DAY_MS])
            pass_over(log, limits=limits)
            check(log, rows)
        if dice.random() < 0.3:
            log.close()
            log = open_compacted(files, clock, **settings)
            check(log, rows)
    log.roll()
    write_all(log)
    for _ in range(2000):
        clock.now_ms += DAY_MS
        pass_over(log, limits=limits)
        dirt = look(log, load(files, DIRECTORY), clock.now_ms)
        if dirt.first == log.log_end_offset:
            break
    clock.now_ms += DAY_MS
    pass_over(log, limits=limits)
    pass_over(log, limits=limits)
    check(log, rows)
    live = {record.key: record for record in rows}
    wanted = sorted(record.offset for record in live.values() if record.value is not None)
    assert [record.offset for record in records(log)] == wanted, "no tombstone, and nothing that has a successor"
    assert not [name for name in files.list(DIRECTORY) if name.endswith(".new")]
    again = open_compacted(files.crash(), clock, **settings)
    check(again, rows)
    assert again.log_end_offset == log.log_end_offset
    assert not again.damaged


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_instruction_leaves_the_old_or_the_new(seed: int) -> None:
    dice = random.Random(seed)
    for step in itertools.count(dice.randrange(5), 5):
        disk, clock = MemoryFiles(), Clock()
        files = FaultyFiles(disk)
        log = open_compacted(files, clock, segment_bytes=700)
        rows = fill(log, random.Random(seed), 25)
        if seed % 2:
            log.close()
            log = open_compacted(files, clock, segment_bytes=700)
            rows += fill(log, random.Random(seed + 100), 20)
            pass_over(log)
            rows += fill(log, random.Random(seed + 200), 20)
        left = step

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss

        files.hook = hook
        try:
            pass_over(log)
            write_all(log)
            crashed = False
        except PowerLoss:
            crashed = True
        files.hook = None
        again = open_compacted(disk.crash(random.Random(step)), clock, segment_bytes=700)
        check(again, rows)
        assert again.log_end_offset == log.log_end_offset
        assert not again.damaged
        names = {f"{DIRECTORY}/{name}" for name in again.files.list(DIRECTORY) if name.endswith(".log")}
        assert names <= {segment.log_path for segment in again.segments}, "no left-overs"
        pass_over(again)
        write_all(again)
        check(again, rows)
        if not crashed:
            return


class PowerLoss(BaseException):
    """Raised in the middle of a pass."""


def test_what_is_active_is_left_alone_and_so_is_what_nobody_may_read_yet() -> None:
    log = open_compacted(MemoryFiles())
    put(log, *[keyed([(b"k", b"%d" % n)]) for n in range(10)])
    assert len(log.segments) == 1
    assert pass_over(log) is None
    assert len(records(log)) == 10
    log.roll()
    log.append(keyed([(b"k", b"new")]))
    assert pass_over(log) is None, "the roll is not written"
    write_all(log)
    assert pass_over(log) is not None
    assert [(record.offset, record.value) for record in records(log)] == [(9, b"9"), (10, b"new")]


def test_segments_are_joined_and_nothing_is_written_twice_for_nothing() -> None:
    files = MemoryFiles()
    log = open_compacted(files, segment_bytes=1000)
    for n in range(100):
        put(log, keyed([(b"k%d" % (n % 7), b"x" * 50)]))
    before = len(log.segments)
    assert before > 10
    done = pass_over(log)
    assert done is not None
    assert (len(log.segments), done.bytes_after < done.bytes_before / 4) == (2, True)
    write_all(log)
    names = files.list(DIRECTORY)
    put(log, keyed([(b"k1", b"")]))
    assert pass_over(log) is None
    assert files.list(DIRECTORY) == names


def test_readers_of_the_old_segments_read_on() -> None:
    log = open_compacted(MemoryFiles())
    for n in range(50):
        put(log, keyed([(b"k%d" % (n % 3), b"%d" % n * 20)]))
    old = log.segments.copy()
    pass_over(log)
    write_all(log)
    for segment in old[:-1]:
        assert not log.files.exists(segment.log_path)
    segments_from, calls = log.segments_from, 0

    def stale(offset: int) -> list[object]:
        nonlocal calls
        calls += 1
        return old if calls == 1 else segments_from(offset)  # type: ignore[return-value]

    log.segments_from = stale  # type: ignore[method-assign,assignment]
    assert parse_header(log.read_blocking(0, 1)[0]).base_offset > 0
    calls = 0
    assert log.offset_for_timestamp(0) is not None


def test_a_header_that_was_left_alone_does_not_keep_what_is_too_old() -> None:
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, segment_bytes=400, cleanup_policy="compact,delete", retention_ms=1000)
    put(log, of_producer(keyed([(b"again", b"x" * 330)]), 7))
    for key in (b"a", b"b", b"again", b"c"):
        put(log, keyed([(key, b"x" * 320)]))
    pass_over(log)
    assert log.segments[0].size == HEADER_BYTES
    clock.now_ms += 500
    log.apply_retention(clock.now_ms, None)
    assert log.log_start_offset == 0
    clock.now_ms += 1000
    log.apply_retention(clock.now_ms, None)
    assert log.log_start_offset == log.log_end_offset


def test_times_sizes_and_ratio_decide() -> None:
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, dirty_ratio_min=0.5, compaction_lag_min_ms=1000)
    for n in range(50):
        put(log, keyed([(b"k%d" % n, b"x" * 50)], time_ms=clock.now_ms))
    state = CompactionState()
    assert look(log, state, clock.now_ms).end == 0, "too young"
    clock.now_ms += 2000
    dirt = look(log, state, clock.now_ms)
    assert (dirt.first, dirt.ratio, dirt.is_due) == (0, 1.0, True)
    assert pass_over(log, state) is not None
    assert not look(log, state, clock.now_ms).is_due
    for n in range(30):
        put(log, keyed([(b"k%d" % n, b"y" * 50)], time_ms=clock.now_ms))
    clock.now_ms += 2000
    dirt = look(log, state, clock.now_ms)
    assert 0 < dirt.ratio < 0.5
    assert not dirt.is_due
    log.configure(LogConfig(cleanup_policy="compact", dirty_ratio_min=0.1))
    assert look(log, state, clock.now_ms).is_due, "obeyed at once"
    log.configure(LogConfig(cleanup_policy="compact", compaction_lag_max_ms=1000))
    assert look(log, state, clock.now_ms).is_due, "too old"


def test_a_tombstone_stays_for_its_time() -> None:
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, delete_retention_ms=10_000, segment_bytes=200)
    put(log, *[keyed([(b"gone", b"x" * 100)]) for _ in range(3)], keyed([(b"gone", None)]))
    put(log, *[keyed([(b"there", b"x" * 100)]) for _ in range(3)])
    state = CompactionState()
    assert pass_over(log, state) is not None
    assert {record.key: record.value is None for record in records(log)} == {b"gone": True, b"there": False}
    clock.now_ms += 9_999
    assert not look(log, state, clock.now_ms).is_due
    assert pass_over(log, state) is None
    clock.now_ms += 1
    assert look(log, state, clock.now_ms).is_due
    assert pass_over(log, state) is not None
    assert {record.key for record in records(log)} == {b"there"}
    assert not state.tombstones
    assert not look(log, state, clock.now_ms + DAY_MS).is_due


def test_a_tombstone_goes_in_its_time_though_the_clock_was_ahead_at_a_pass() -> None:
    """No pass after that one grew old, where they came more often than that: each took the place of the one before."""
    clock = Clock()
    log = open_compacted(MemoryFiles(), clock, delete_retention_ms=10_000, segment_bytes=200)
    state = CompactionState()
    clock.now_ms += 400 * DAY_MS
    put(log, *[keyed([(b"there", b"x" * 100)]) for _ in range(3)])
    assert pass_over(log, state) is not None
    clock.now_ms -= 400 * DAY_MS
    put(log, keyed([(b"gone", None)]))
    for _ in range(30):
        put(log, *[keyed([(b"there", b"x" * 100)]) for _ in range(3)])
        assert pass_over(log, state) is not None
        clock.now_ms += 1000
    assert {record.key for record in records(log)} == {b"there"}


def test_records_without_a_key_go() -> None:
    log = open_compacted(MemoryFiles())
    put(log, keyed([(None, b"x"), (b"", b"empty"), (b"k", b"v"), (None, None)]))
    log.roll()
    write_all(log)
    pass_over(log)
    assert [(record.key, record.value) for record in records(log)] == [(b"", b"empty"), (b"k", b"v")]


@pytest.mark.parametrize("compression", Compression)
def test_what_stays_of_a_batch_stays_as_it_was(compression: Compression) -> None:
    log = open_compacted(MemoryFiles())
    put(log, keyed([(b"k%d" % (n % 4), b"%d" % n * 30) for n in range(40)], compression=compression))
    (before,) = batches_of(log)
    put(log, keyed([(b"k0", b"later")]))
    log.roll()
    write_all(log)
    pass_over(log)
    after = batches_of(log)[0]
    old, new = parse_header(before), validate(after)
    largest_ms = max(record.timestamp_ms for record in records(log)[:3])
    assert largest_ms == new.max_timestamp_ms
    same = {name: getattr(old, name) for name in ("length", "crc", "record_count", "max_timestamp_ms")}
    assert new._replace(**same) == old
    assert new.record_count == 3
    assert [record.offset for record in records(log)] == [37, 38, 39, 40]


def test_batches_whose_records_cannot_be_read_stay() -> None:
    from crc32c import crc32c

    from core_log.batch_header import CRC_START

    log = open_compacted(MemoryFiles())
    broken = bytearray(keyed([(b"k", b"v" * 20), (b"k", b"w")]))
    broken[61] = 255  # the length of the first record
    broken[CRC_START - 4 : CRC_START] = crc32c(bytes(broken[CRC_START:])).to_bytes(4, "big")
    put(log, bytes(broken), keyed([(b"k", b"1"), (b"k", b"2")]))
    log.roll()
    write_all(log)
    pass_over(log)
    first, second = batches_of(log)
    assert first[61:] == broken[61:]
    assert parse_header(second).record_count == 1
    # And what is too large to be unpacked.
    log = open_compacted(MemoryFiles())
    put(log, keyed([(b"k", bytes(5000)), (b"k", b"")], compression=Compression.ZSTD), keyed([(b"k", b"2")]))
    log.roll()
    write_all(log)
    pass_over(log, limits=CompactionLimits(decompressed_bytes_max=1000))
    assert [record.offset for record in records(log)] == [0, 1, 2]


def test_a_prefix_that_goes_meanwhile_stays_gone(tmp_path: object) -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=500, cleanup_policy="compact,delete")
    for n in range(60):
        put(log, keyed([(b"k%d" % (n % 20), b"x" * 50)]))

    class Deleting(HandFlusher):
        async def replace(self, log: PartitionLog, offer: object) -> None:
            log.delete_prefix(log.segments[3].base_offset + 1)
            await super().replace(log, offer)  # type: ignore[arg-type]

    from core_log.compaction.compactor import compact

    flusher = Deleting()
    start = log.segments[3].base_offset + 1
    finish(compact(log, flusher, CompactionState(), limits=CompactionLimits(), in_thread=inline, pause=lambda: None))
    write_all(log)
    assert log.log_start_offset >= start
    again = open_compacted(log.files.crash(), segment_bytes=500)  # type: ignore[attr-defined]
    assert again.log_start_offset == log.log_start_offset
    assert [record.offset for record in records(again)] == [record.offset for record in records(log)]
    assert again.size_bytes == log.size_bytes


def test_a_disk_that_refuses_leaves_all_as_it_was() -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_compacted(files)
    rows = fill(log, random.Random(3), 60)
    names = files.list(DIRECTORY)
    for operation in ("write", "sync", "rename"):
        files.failing[operation] = 28
        if operation == "rename":
            assert pass_over(log) is None
        else:
            with pytest.raises(OSError):
                pass_over(log)
        files.failing.clear()
        assert files.list(DIRECTORY) == names
        check(log, rows)
    assert log.error is None
    assert pass_over(log) is not None
    check(log, rows)


def test_on_a_real_disk(tmp_path: object) -> None:
    files = OsFiles(tmp_path)  # type: ignore[arg-type]
    log = open_compacted(files)
    rows = fill(log, random.Random(5), 100)
    assert pass_over(log) is not None
    log.close()
    again = open_compacted(files)
    check(again, rows)
    for segment in again.segments:
        segment.close_file()


def test_an_old_recovery_point_does_not_speak_of_what_was_compacted() -> None:
    """A loss of power may bring one back, and a start trusts what it finds behind it without moving it."""
    files = MemoryFiles()
    log = open_compacted(files, recovery_bytes=1)
    rows = fill(log, random.Random(1), 3)
    assert len(log.segments) == 1
    path = f"{DIRECTORY}/recovery-point"
    old = checkpoint.load(files, path)
    assert old is not None
    rows += fill(log, random.Random(2), 60)
    checkpoint.save(files, path, old)
    again = open_compacted(files.crash())
    check(again, rows)
    assert pass_over(again) is not None
    check(again, rows)
    for last in (open_compacted(again.files.crash()), open_compacted(again.files)):  # type: ignore[attr-defined]
        check(last, rows)
        assert not last.damaged
        assert last.log_end_offset == log.log_end_offset


def test_offsets_are_not_given_twice_though_the_last_ones_are_gone() -> None:
    files = MemoryFiles()
    log = open_compacted(files)
    put(log, keyed([(b"k", b"v")]), keyed([(None, b"goes"), (None, b"too")]))
    log.roll()
    write_all(log)
    assert pass_over(log) is not None
    assert [record.offset for record in records(log)] == [0]
    log.close()
    for name in ("recovery-point", "leader-epochs", "00000000000000000003.log"):
        files.remove(f"{DIRECTORY}/{name}")
    again = open_compacted(files)
    assert again.log_end_offset == 3
    assert again.append(keyed([(b"k", b"w")])) == 3
    write_all(again)
    assert [record.offset for record in records(open_compacted(files))] == [0, 3]


@pytest.mark.parametrize("left", [0, 1, 60, 61, 62, 100, 130])
def test_a_pass_over_a_file_that_was_cut_ends(left: int) -> None:
    files = MemoryFiles()
    log = open_compacted(files)
    put(log, keyed([(b"k", bytes(50))]), keyed([(b"k", bytes(50))]))
    log.roll()
    put(log, keyed([(b"k", b"w")]))
    files.open(log.segments[0].log_path).truncate(left)
    with pytest.raises(CorruptBatch, match=log.segments[0].log_path if left > 60 else None):
        pass_over(log)
