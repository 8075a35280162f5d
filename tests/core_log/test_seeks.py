"""Seeking in a log of many segments: how much is read does not grow with the log."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core_log.files import BytesLike, MemoryFiles
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder, parse_header
from tests.core_log.helpers import TIME_MS, open_log, write

_RECORDS = 20
_STEP_MS = 10


class Counting(MemoryFiles):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def open(self, path: str, *, create: bool = True) -> _CountedFile:  # type: ignore[override]
        self.reads["opened"] += 1
        return _CountedFile(super().open(path, create=create), self.reads)


class _CountedFile:
    def __init__(self, inner: object, reads: Counter[str]) -> None:
        self._inner, self._reads = inner, reads

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def pread(self, size: int, position: int) -> bytes:
        self._reads["reads"] += 1
        data: bytes = self._inner.pread(size, position)  # type: ignore[attr-defined]
        self._reads["bytes"] += len(data)
        return data


def filled(segments: int) -> tuple[PartitionLog, Counting]:
    """A log of so many segments of 64 KiB each, opened anew."""
    files = Counting()
    config = LogConfig(segment_bytes=64 << 10, index_interval_bytes=1024, tail_cache_bytes=0)
    log = open_log(files, config)
    while len(log.segments) <= segments:
        base = log.log_end_offset
        builder = BatchBuilder(base, 0, TIME_MS + base * _STEP_MS)
        for number in range(_RECORDS):
            builder.add(base + number, b"k", b"x" * 30, timestamp_ms=TIME_MS + (base + number) * _STEP_MS)
        log.append(builder.build())
        write(log)
    log.close()
    return open_log(files, config), files


def first_offset(batches: list[BytesLike]) -> int:
    return parse_header(batches[0]).base_offset


def worst(segments: int) -> dict[str, Counter[str]]:
    """What the most expensive of many seeks reads."""
    log, files = filled(segments)
    dice = random.Random(3)
    assert log.offset_for_timestamp(TIME_MS + (log.log_end_offset - 1) * _STEP_MS) is not None
    assert files.reads["reads"] < 6 * segments + 20, "the last time of each segment is looked up once"
    found: dict[str, Counter[str]] = {"offset": Counter(), "time": Counter()}
    for _ in range(200):
        offset = dice.randrange(log.log_end_offset)
        for how in found:
            files.reads.clear()
            if how == "offset":
                assert first_offset(log.read_blocking(offset, 1)) == offset - offset % _RECORDS
            else:
                time_ms = TIME_MS + offset * _STEP_MS
                assert log.offset_for_timestamp(time_ms - 3) == (offset, time_ms)
            found[how] |= files.reads
    return found


@pytest.mark.parametrize("how", ["offset", "time"])
def test_how_much_is_read_does_not_depend_on_the_log(how: str) -> None:
    small, large = worst(4)[how], worst(60)[how]
    assert large["reads"] <= small["reads"] + 1, (small, large)
    assert large["bytes"] <= small["bytes"] * 1.2, (small, large)
    assert large["opened"] <= 5, large
    assert large["bytes"] <= 150_000
