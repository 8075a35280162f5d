"""Appending, reading, rolling, indexes, timestamps, deletion: without a flusher, jobs are done by hand."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest

from core_log.errors import BatchTooLarge, CorruptBatch, OffsetOutOfRange
from core_log.files import MemoryFiles, OsFiles
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder, parse_header, validate
from core_log.segment import RELATIVE_OFFSET_MAX
from tests.core_log.helpers import DIRECTORY, TIME_MS, flush, make_batch, open_log, read_all, records_of, write


def fill(log: PartitionLog, batches: int, *, seed: int = 1) -> list[tuple[int, bytes | None]]:
    """Append batches of some records, with gaps and times that mostly rise, and write them."""
    dice = random.Random(seed)
    rows: list[tuple[int, bytes | None]] = []
    for i in range(batches):
        base = log.log_end_offset + dice.choice([0, 0, 0, 7])
        values = [dice.randbytes(dice.randrange(60)) for _ in range(dice.randrange(1, 6))]
        time_ms = TIME_MS + 10 * i - dice.choice([0, 0, 35])
        log.append(make_batch(values, base_offset=base, time_ms=time_ms), base_offset=base)
        rows += enumerate(values, base)
    log.request_sync()
    flush(log)
    return rows


@pytest.mark.parametrize("size", [10, 65_000, 70_000])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_base_offset_and_epoch_are_patched(size: int, form: type) -> None:
    log = open_log(MemoryFiles())
    log.leader_epoch = 9
    log.append(make_batch([b"one", b"two"]))
    assert log.append(form(make_batch([b"x" * size, b"y"], base_offset=77, epoch=3))) == 2
    flush(log)
    for batches in (log.read(0, 1 << 20), log.read_blocking(0, 1 << 20)):
        assert batches is not None
        headers = [validate(batch) for batch in batches]
        assert [(h.base_offset, h.leader_epoch, h.next_offset) for h in headers] == [(0, 9, 2), (2, 9, 4)]
        assert records_of(batches) == [(0, b"one"), (1, b"two"), (2, b"x" * size), (3, b"y")]


def test_a_right_batch_is_not_copied() -> None:
    log = open_log(MemoryFiles())
    batch = make_batch([b"x" * 100])
    log.append(batch)
    flush(log)
    (found,) = log.read(0, 1) or []
    assert found is batch


def test_limits_of_append() -> None:
    batch = make_batch([b"x" * 100])
    log = open_log(MemoryFiles(), LogConfig(message_bytes_max=len(batch)))
    log.append(batch)
    with pytest.raises(BatchTooLarge):
        log.append(make_batch([b"x" * 101]))
    for wrong in (b"", batch[:61], batch[:-1], b"\0" * 100, batch[:16] + b"\1" + batch[17:]):
        with pytest.raises(CorruptBatch):
            log.append(wrong)
    with pytest.raises(ValueError, match="base offset 0 is below"):
        log.append(batch, base_offset=0)
    assert (log.log_end_offset, log.size_bytes) == (1, len(batch))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LogConfig(), 1),
        (LogConfig(segment_bytes=len(make_batch([b"x" * 100])) * 2), 5),
        (LogConfig(segment_bytes=len(make_batch([b"x" * 100])) * 2 - 1), 10),
        (LogConfig(segment_ms=3), 4),
        (LogConfig(index_interval_bytes=0, index_bytes_max=24), 3),
    ],
)
def test_rolling(config: LogConfig, expected: int) -> None:
    files = MemoryFiles()
    now_ms = TIME_MS
    log = open_log(files, config, clock=lambda: now_ms)
    for _ in range(10):
        log.append(make_batch([b"x" * 100]))
        now_ms += 1
    assert len(log.segments) == expected
    flush(log)
    names = [name for name in files.list(DIRECTORY) if name.endswith(".log")]
    assert names == [f"{segment.base_offset:020d}.log" for segment in log.segments]
    assert [offset for offset, _ in read_all(log)] == list(range(10))
    assert log.verify() == []


def test_a_segment_that_began_while_the_clock_was_ahead_ends_when_it_is_old_enough_since() -> None:
    now_ms = TIME_MS + 3_600_000
    log = open_log(MemoryFiles(), LogConfig(segment_ms=3), clock=lambda: now_ms)
    log.append(make_batch([b"x"]))
    for at_ms, segments in ((TIME_MS, 1), (TIME_MS + 2, 1), (TIME_MS + 3, 2)):
        now_ms = at_ms
        log.append(make_batch([b"x"]))
        assert len(log.segments) == segments


def test_rolling_by_relative_offset() -> None:
    log = open_log(MemoryFiles())
    log.append(make_batch([b"a"]))
    log.append(make_batch([b"b"]), base_offset=RELATIVE_OFFSET_MAX - 1)
    assert len(log.segments) == 1
    log.append(make_batch([b"c"]))
    assert [segment.base_offset for segment in log.segments] == [0, RELATIVE_OFFSET_MAX]
    flush(log)
    assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    assert len(read_all(open_log(log.files))) == 3


@pytest.mark.parametrize("interval", [0, 200, 4096])
@pytest.mark.parametrize("cache", [0, 1000, 1 << 20])
def test_reads_from_everywhere(interval: int, cache: int) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=interval, tail_cache_bytes=cache)
    written = open_log(MemoryFiles(), config)
    rows = fill(written, 120)
    for log in (written, open_log(written.files, config)):
        for offset in range(log.log_end_offset):
            expected = [row for row in rows if row[0] >= offset]
            for max_bytes in (1, 500):
                found = log.read_blocking(offset, max_bytes)
                assert found
                assert sum(map(len, found)) <= max_bytes or len(found) == 1
                header = parse_header(found[0])
                assert header.next_offset > offset
                records = [row for row in records_of(found) if row[0] >= offset]
                assert records == expected[: len(records)]
                cached = log.read(offset, max_bytes)
                assert cached is None or records_of(cached)[:1] == records_of(found)[:1]
        assert log.read(log.log_end_offset, 1) == log.read_blocking(log.log_end_offset, 1) == []
        for outside in (-1, log.log_end_offset + 1):
            with pytest.raises(OffsetOutOfRange):
                log.read(outside, 1)
            with pytest.raises(OffsetOutOfRange):
                log.read_blocking(outside, 1)


def test_read_stops_before() -> None:
    log = open_log(MemoryFiles())
    for _ in range(5):
        log.append(make_batch([b"x", b"y"]))
    flush(log)
    for read in (log.read, log.read_blocking):
        assert len(read(0, 1 << 20, before=6) or []) == 3
        assert len(read(0, 1 << 20, before=7) or []) == 3, "half a batch is none"
        assert len(read(0, 1 << 20, before=100) or []) == 5
        assert read(6, 1 << 20, before=6) == read(6, 1 << 20, before=7) == []


def test_batches_larger_than_a_read() -> None:
    log = open_log(MemoryFiles(), LogConfig(message_bytes_max=20 << 20, tail_cache_bytes=0))
    large = b"x" * (9 << 20)
    for value in (b"small", large, b"small", large):
        log.append(make_batch([value]))
    flush(log)
    for offset, value in enumerate((b"small", large, b"small", large)):
        assert records_of(log.read_blocking(offset, 1)) == [(offset, value)]


def test_lost_indexes_are_rebuilt_byte_by_byte(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    log = open_log(files, config)
    rows = fill(log, 100)
    log.close()
    names = [name for name in files.list(DIRECTORY) if name.endswith("index")]
    before = {name: files.open(f"{DIRECTORY}/{name}").pread(1 << 20, 0) for name in names}
    answers = [log.offset_for_timestamp(TIME_MS + i) for i in range(0, 1100, 7)]
    assert sum(map(len, before.values())) > 500
    for i, name in enumerate(names):
        if i % 3:
            files.remove(f"{DIRECTORY}/{name}")
        else:
            files.open(f"{DIRECTORY}/{name}").truncate(max(len(before[name]) - 1, 0))
    log = open_log(files, config)
    assert "rebuilding" in caplog.text
    assert read_all(log) == rows
    assert [log.offset_for_timestamp(TIME_MS + i) for i in range(0, 1100, 7)] == answers
    log.close()
    assert {name: files.open(f"{DIRECTORY}/{name}").pread(1 << 20, 0) for name in names} == before


def test_offset_for_timestamp() -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=100)
    log = open_log(MemoryFiles(), config)
    dice = random.Random(5)
    times: list[tuple[int, int]] = []
    for i in range(100):
        builder = BatchBuilder(log.log_end_offset, 0, TIME_MS + i * 10)
        for offset in range(log.log_end_offset, log.log_end_offset + 3):
            time_ms = TIME_MS + i * 10 + dice.randrange(-30, 30)
            builder.add(offset, None, b"x" * 20, timestamp_ms=time_ms)
            times.append((offset, time_ms))
        log.append(builder.build())
    flush(log)
    log.delete_prefix(10)
    flush(log)
    for either in (log, open_log(log.files, config)):
        for timestamp_ms in range(TIME_MS - 50, TIME_MS + 1050, 3):
            expected = next(((o, t) for o, t in times if t >= timestamp_ms and o >= 10), None)
            assert either.offset_for_timestamp(timestamp_ms) == expected


def test_delete_prefix_drops_whole_segments_only() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=700)
    log = open_log(files, config)
    rows = fill(log, 60)
    starts = [segment.base_offset for segment in log.segments]
    log.delete_prefix(starts[3] + 1)
    assert log.segments[0].base_offset == starts[3]
    flush(log)
    assert files.list(DIRECTORY)[0] == f"{starts[3]:020d}.index"
    with pytest.raises(OffsetOutOfRange):
        log.read(starts[3], 1)
    log.delete_prefix(5)
    assert log.log_start_offset == starts[3] + 1
    assert read_all(log) == [row for row in rows if row[0] > starts[3]]
    again = open_log(files.crash(), config)
    assert again.log_start_offset == starts[3] + 1
    assert again.size_bytes == log.size_bytes
    again.delete_prefix(1 << 40)
    assert again.log_start_offset == again.log_end_offset == log.log_end_offset
    assert len(again.segments) == 1
    flush(again)
    assert open_log(again.files, config).log_start_offset == log.log_end_offset


def test_offsets_are_never_given_twice() -> None:
    """The tail behind a saved log start is lost: the log goes on at the start."""
    files = MemoryFiles()
    log = open_log(files)
    log.append(make_batch([b"x"] * 10))
    flush(log)
    log.delete_prefix(10)
    flush(log)
    again = open_log(files.crash())
    assert again.log_start_offset == again.log_end_offset == 10
    assert again.append(make_batch([b"y"])) == 10
    flush(again)
    assert read_all(again) == [(10, b"y")]


@pytest.mark.parametrize(
    ("config", "now_ms", "segments_left", "start"),
    [
        (LogConfig(segment_bytes=350, retention_ms=-1), TIME_MS + 10**12, 5, 0),
        (LogConfig(segment_bytes=350, retention_ms=1000), TIME_MS + 1000, 5, 0),
        (LogConfig(segment_bytes=350, retention_ms=1000), TIME_MS + 1003, 4, 2),
        (LogConfig(segment_bytes=350, retention_ms=1000), TIME_MS + 1010, 1, 10),
        (LogConfig(segment_bytes=350, retention_ms=-1, retention_bytes=1200), TIME_MS, 4, 2),
        (LogConfig(segment_bytes=350, retention_ms=-1, retention_bytes=0), TIME_MS, 1, 8),
    ],
)
def test_retention(config: LogConfig, now_ms: int, segments_left: int, start: int) -> None:
    log = open_log(MemoryFiles(), config)
    for i in range(10):
        log.append(make_batch([b"x" * 100], time_ms=TIME_MS + i))
    flush(log)
    log.apply_retention(now_ms)
    flush(log)
    assert (len(log.segments), log.log_start_offset) == (segments_left, start)
    if config.retention_bytes >= 0:
        assert log.size_bytes <= config.retention_bytes + config.segment_bytes
    assert log.append(make_batch([b"next"])) == 10


@pytest.mark.parametrize(
    "config",
    [
        LogConfig(segment_bytes=350, retention_ms=-1, retention_bytes=1200),
        LogConfig(segment_bytes=350, retention_ms=1000),
    ],
)
def test_retention_has_what_nobody_waits_for_synced(config: LogConfig) -> None:
    log = open_log(MemoryFiles(), config)
    for i in range(10):
        log.append(make_batch([b"x" * 100], time_ms=TIME_MS + i))
        write(log)
    assert log.high_watermark == 0
    for _ in range(2):
        log.apply_retention(TIME_MS + 1003)
        write(log)
    assert (len(log.segments), log.log_start_offset) == (4, 2)


def test_damage_is_named_by_reads_and_by_verify() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(segment_bytes=500, tail_cache_bytes=0))
    for i in range(10):
        log.append(make_batch([b"%d" % i * 100]))
    flush(log)
    assert log.verify() == []
    path = log.segments[1].log_path
    files.open(path).pwritev([b"!"], 100)
    with pytest.raises(CorruptBatch) as raised:
        log.read_blocking(2, 1000)
    for problem in (*log.verify(), str(raised.value)):
        assert path in problem
        assert "position 0: wrong CRC" in problem
    files.remove(log.segments[2].log_path)
    assert len(log.verify()) == 2


def test_a_read_of_a_file_that_was_cut_ends() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(tail_cache_bytes=0))
    for _ in range(3):
        log.append(make_batch([b"x" * 1000]))
    flush(log)
    file = files.open(log.segments[0].log_path)
    size = files.size(log.segments[0].log_path)
    batch_bytes = size // 3
    for left in range(size - 1, -1, -1):
        file.truncate(left)
        whole = left // batch_bytes
        assert [log.read_blocking(offset, 100) != [] for offset in range(whole)] == [True] * whole
        with pytest.raises(CorruptBatch, match=f"position {whole * batch_bytes}: batch of "):
            log.read_blocking(whole, 100)


def test_opening_after_close_reads_no_batches() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(index_interval_bytes=100))
    rows = fill(log, 50)
    log.close()
    log.close()
    file = files.open(log.segments[0].log_path)
    good = file.pread(1, 100)
    file.pwritev([b"!"], 100)
    log = open_log(files, log.config)
    assert log.flushed_offset == log.log_end_offset == rows[-1][0] + 1, "the damage was not looked at"
    file.pwritev([good], 100)
    assert read_all(log) == rows
    more = fill(log, 5, seed=2)
    assert read_all(log) == rows + more


def test_on_a_real_disk(tmp_path: object) -> None:
    files = OsFiles(str(tmp_path))
    config = LogConfig(segment_bytes=5000, index_interval_bytes=500)
    log = PartitionLog.open(files, DIRECTORY, config, LogFlusher(), wall_clock_ms=lambda: TIME_MS)
    rows = fill(log, 100)
    log.request_sync()
    log.flush_blocking()
    assert log.committed_offset == log.log_end_offset
    assert read_all(open_log(files, config)) == rows
    log.delete_prefix(50)
    log.close()
    again = open_log(files, config)
    assert read_all(again) == [row for row in rows if row[0] >= 50]
    assert again.verify() == []
    again.close()
    files.remove_directory("topics")
    assert not files.exists(DIRECTORY)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="nothing says which descriptors there are")
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_opened_holds_no_descriptor(clean: bool, tmp_path: Path) -> None:
    files = OsFiles(str(tmp_path))
    log = open_log(files)
    fill(log, 3)
    flush(log)
    if clean:
        log.close()
    before = len(os.listdir("/proc/self/fd"))
    logs = [open_log(files) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    again = fill(logs[0], 1)
    flush(logs[0])
    assert again
    assert logs[0].flushed_offset == logs[0].log_end_offset
    logs[0].close()


@pytest.mark.parametrize("setting", ["segment_bytes", "segment_ms", "message_bytes_max", "fsync_interval_ms"])
def test_settings_are_checked(setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        msgspec.convert({setting: 0}, LogConfig)
    with pytest.raises(ValueError, match="2 GiB"):
        LogConfig(segment_bytes=(1 << 31) + 1)


def test_other_settings_hold_at_once_and_take_back_no_promise() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(fsync="never"))
    log.append(make_batch([b"x" * 100]))
    log.request_sync()
    write(log)
    assert (log.high_watermark, log.flushed_offset) == (1, 0)
    log.configure(LogConfig(fsync="commit", message_bytes_max=150, segment_bytes=200))
    with pytest.raises(BatchTooLarge):
        log.append(make_batch([b"x" * 100]))
    log.append(make_batch([b"y"]))
    assert len(log.segments) == 2
    assert log.high_watermark == 1
    write(log)
    assert (log.high_watermark, log.flushed_offset) == (2, 2)
    assert len(read_all(open_log(files.crash()))) == 2
