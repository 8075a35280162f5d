"""Time indexes of segments that are damaged or gone: no record is missed by its time, and none is dropped early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core_log.files import OsFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from core_log.segment_index import TIME_ENTRY
from tests.core_log.helpers import TIME_MS, flush, open_log

COUNT = 60
STEP_MS = 1000
CONFIG = LogConfig(tail_cache_bytes=1, segment_bytes=40_000, retention_ms=COUNT * STEP_MS)


def flip(place: int, bit: int, *, step: int = 3) -> Callable[[bytearray], None]:
    """In every third entry, and in the last one."""

    def damage(index: bytearray) -> None:
        for at in {*range(0, len(index), TIME_ENTRY.size * step), len(index) - TIME_ENTRY.size}:
            index[at + place] ^= bit

    return damage


def gone(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "another year": flip(2, 1),
    "another hour": flip(5, 64),
    "some seconds": flip(6, 16),
    "an offset near by": flip(11, 1),
    "an offset far away": flip(9, 4),
    "all of them": flip(6, 16, step=1),
    "nothing": bytearray.clear,
    "zeros": lambda index: index.__setitem__(slice(0, len(index)), bytes(len(index))),
}


@pytest.fixture(params=[*DAMAGE, gone, unreadable])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    """A log of some segments, the time indexes of which were damaged while nobody looked."""
    log = open_log(OsFiles(tmp_path), CONFIG)
    for number in range(COUNT):
        builder = BatchBuilder(0, 0, TIME_MS)
        for record in range(2):
            builder.add(record, None, bytes(2000), timestamp_ms=TIME_MS + number * STEP_MS + record)
        log.append(builder.build())
    flush(log)
    assert len(log.segments) > 4
    for segment in log.segments[:-1]:
        path = tmp_path / f"{segment.stem}.timeindex"
        if callable(request.param):
            request.param(path)
            continue
        content = bytearray(path.read_bytes())
        DAMAGE[request.param](content)
        path.write_bytes(content)
    return log


def test_records_are_found_by_their_times(log: PartitionLog) -> None:
    for number in range(COUNT):
        time_ms = TIME_MS + number * STEP_MS
        assert log.offset_for_timestamp(time_ms) == (2 * number, time_ms)
    log.close()


def test_retention_goes_by_the_times_of_the_batches(log: PartitionLog) -> None:
    ends = [segment.base_offset for segment in log.segments[1:]]
    for number in range(0, COUNT, 5):
        log.apply_retention(TIME_MS + number * STEP_MS + CONFIG.retention_ms)
        gone = [end for end in ends if end <= 2 * number]
        assert log.log_start_offset <= max(gone, default=0), "what says that it is later stays longer"
    log.close()
