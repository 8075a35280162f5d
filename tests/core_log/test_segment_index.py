"""The sparse indexes, entry by entry as kafka-dump-log looks at them; and look-ups with those that older logs have."""

from __future__ import annotations

import random

import pytest

from core_log import checkpoint
from core_log.batch_header import HEADER_BYTES
from core_log.files import Files, read_file
from core_log.flush_job import RecoveryPoint
from core_log.log_config import LogConfig
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records
from core_log.record_reader import KnownPlaces, read_records
from core_log.segment import BatchPlace, Segment, scan
from core_log.segment_index import OFFSET_ENTRY, TIME_ENTRY
from core_log.truncation import cut_files
from tests.core_log.helpers import DIRECTORY, TIME_MS, flush, open_log

CONFIG = LogConfig(segment_bytes=12_000, index_interval_bytes=600, tail_cache_bytes=0)
OLDER_POINT_BYTES = 64
"""Of a recovery point that does not name the batch with the largest time."""


def fill(log: PartitionLog, dice: random.Random, batches: int) -> None:
    """Batches of all sizes, smaller and larger than an interval, with gaps, and with times that do not rise evenly."""
    for _ in range(batches):
        base = log.log_end_offset + dice.choice((0, 0, 0, 3))
        builder = BatchBuilder(base, 0, TIME_MS)
        size = dice.choice((1, 20, 200, 900))
        for number in range(dice.choice((1, 2, 9))):
            time_ms = TIME_MS + base * 10 + dice.randrange(-2000, 200)
            builder.add(base + number, b"k", dice.randbytes(size), timestamp_ms=time_ms)
        log.append(builder.build(), base_offset=base)
        if dice.random() < 0.2:
            flush(log)
    flush(log)


def places(files: Files, segment: Segment) -> list[BatchPlace]:
    """All batches of a segment."""
    if not segment.written_bytes:
        return []
    file = files.open(segment.log_path, create=False)
    return list(scan(file, segment.log_path, 0, segment.written_bytes))


def entries(files: Files, segment: Segment) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Those of both files, offsets as they are in the log."""
    base = segment.base_offset
    found = []
    for suffix, entry in ((".index", OFFSET_ENTRY), (".timeindex", TIME_ENTRY)):
        path = segment.stem + suffix
        found.append(list(entry.iter_unpack(read_file(files, path) if files.exists(path) else b"")))
    return [(offset + base, at) for offset, at in found[0]], [(time_ms, offset + base) for time_ms, offset in found[1]]


def check_as_kafka(files: Files, log: PartitionLog) -> int:
    """What kafka-dump-log asks of each entry; how many there are."""
    count = 0
    for segment in log.segments:
        batches = places(files, segment)
        at = {place.position: place.next_offset - 1 for place in batches}
        largest_ms = {place.next_offset - 1: place.max_timestamp_ms for place in batches}
        offsets, times = entries(files, segment)
        assert [at.get(position) for _, position in offsets] == [offset for offset, _ in offsets]
        assert [largest_ms.get(offset) for _, offset in times] == [time_ms for time_ms, _ in times]
        assert times == sorted(times)
        if segment is not log.segments[-1]:
            timed = [place.max_timestamp_ms for place in batches if place.size > HEADER_BYTES]
            assert [time_ms for time_ms, _ in times][-1:] == sorted(timed)[-1:]
        count += len(offsets) + len(times)
    return count


def make_older(files: MemoryFiles, log: PartitionLog, share: float) -> None:
    """Put what an older log has in the place of the first entries of each segment, and of the recovery point."""
    for segment in log.segments:
        base, batches = segment.base_offset, places(files, segment)
        offsets, times = entries(files, segment)
        indexed = {position for _, position in offsets[: int(len(offsets) * share)]}
        new_offsets, new_times, largest_ms = b"", b"", -1
        last_ms = -1
        for place in batches:
            if place.position in indexed:
                new_offsets += OFFSET_ENTRY.pack(place.base_offset - base, place.position)
                if largest_ms > last_ms:
                    new_times += TIME_ENTRY.pack(largest_ms, place.base_offset - base)
                    last_ms = largest_ms
            largest_ms = max(largest_ms, place.max_timestamp_ms)
        if share == 1.0 and largest_ms > last_ms:
            new_times += TIME_ENTRY.pack(largest_ms, batches[-1].next_offset - base)
        for offset, position in offsets[len(indexed) :]:
            new_offsets += OFFSET_ENTRY.pack(offset - base, position)
        if share < 1.0:
            new_times += b"".join(TIME_ENTRY.pack(time_ms, at - base) for time_ms, at in times if time_ms > last_ms)
        for suffix, data in ((".index", new_offsets), (".timeindex", new_times)):
            file = files.open(segment.stem + suffix)
            file.truncate(0)
            file.pwritev([data], 0)
    point = RecoveryPoint.load(files, DIRECTORY)
    assert point is not None
    point._replace(time_entries=len(entries(files, log.segments[-1])[1])).save(files, DIRECTORY)
    path = f"{DIRECTORY}/recovery-point"
    checkpoint.save(files, path, (checkpoint.load(files, path) or b"")[:OLDER_POINT_BYTES])


def check_look_ups(log: PartitionLog) -> None:
    """Each offset and each time is found, however it is looked for."""
    records = {}
    offset = log.log_start_offset
    while batches := log.read_blocking(offset, 5000):
        records.update({record.offset: record for batch in batches for record in iterate_records(batch)})
        offset = max(records) + 1
    assert records
    known = KnownPlaces()
    for offset in range(log.log_end_offset):
        following = min((at for at in records if at >= offset), default=None)
        if following is not None:
            batches = log.read_blocking(offset, 1)
            assert following in [record.offset for record in iterate_records((batches or [b""])[0])]
        found = read_records(log, [offset], 1, known)
        assert [run.values[0] for run in found] == [records[offset].value for _ in [0] if offset in records]
    by_offset = sorted(records.values(), key=lambda record: record.offset)
    for time_ms in range(TIME_MS - 2001, TIME_MS + log.log_end_offset * 10 + 300, 97):
        first = next(((one.offset, one.timestamp_ms) for one in by_offset if one.timestamp_ms >= time_ms), None)
        assert log.offset_for_timestamp(time_ms) == first, time_ms
    assert log.verify() == []


def reopened(files: MemoryFiles, log: PartitionLog) -> PartitionLog:
    log.close()
    return open_log(files, CONFIG)


@pytest.mark.parametrize("seed", range(3))
def test_entries_are_what_kafkas_tool_expects(seed: int) -> None:
    files, dice = MemoryFiles(), random.Random(seed)
    log = open_log(files, CONFIG)
    for _ in range(4):
        fill(log, dice, 40)
        log = reopened(files, log)
        assert check_as_kafka(files, log) > 10
        fill(log, dice, 3)
        log.shorten(cut_files(log, log.log_end_offset - dice.randrange(60)))
        log = reopened(files, log)
        assert check_as_kafka(files, log) > 10
    check_look_ups(log)
    for segment in log.segments[:-1]:
        files.remove(segment.stem + ".index")
    assert check_as_kafka(files, reopened(files, log)) > 10


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_no_look_up_misses_with_entries_of_older_logs(seed: int, share: float) -> None:
    files, dice = MemoryFiles(), random.Random(seed)
    log = open_log(files, CONFIG)
    fill(log, dice, 60)
    log.close()
    make_older(files, log, share)
    log = open_log(files, CONFIG)
    check_look_ups(log)
    fill(log, dice, 10)
    log = reopened(files, log)
    check_look_ups(log)
    for _ in range(4):
        log.shorten(cut_files(log, log.log_end_offset - dice.randrange(1, 60)))
        check_look_ups(log)
        log = reopened(files, log)
