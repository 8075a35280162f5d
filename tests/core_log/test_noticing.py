"""Whoever finds a log's files damaged notes it, whatever was looked for."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from crc32c import crc32c

from core_log import cold_reader, key_index
from core_log.batch_header import CRC_START, HEADER_BYTES
from core_log.containing import LOOKED_BYTES_MAX, key_strings
from core_log.errors import CorruptBatch
from core_log.files import FaultyFiles, MemoryFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from tests.core_log.helpers import TIME_MS, flush, open_log

COUNT = 90
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100, key_index=True, tail_cache_bytes=1)


def filled(spoil: Callable[[bytes], bytes] = bytes) -> PartitionLog:
    """A log of batches with a key and a time each."""
    log = open_log(MemoryFiles(), CONFIG)
    for number in range(COUNT):
        builder = BatchBuilder(0, 0, TIME_MS)
        builder.add(0, b"k%d" % number, bytes(50), timestamp_ms=TIME_MS + number)
        log.append(spoil(builder.build()))
    flush(log)
    return log


def flip(log: PartitionLog, offset: int, place: int = HEADER_BYTES + 4) -> None:
    segment = next(one for one in reversed(log.segments) if one.base_offset <= offset)
    before = log.read_blocking(segment.base_offset, 1 << 20, before=offset) if offset > segment.base_offset else []
    file, position = log.files.open(segment.log_path), sum(map(len, before)) + place
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 4])], position)


def by_time(log: PartitionLog) -> object:
    return log.offset_for_timestamp(TIME_MS + 5)


def by_key(log: PartitionLog) -> object:
    return cold_reader.read_containing(log, 0, LOOKED_BYTES_MAX, log.high_watermark, [key_strings(b"k5")])


def index_keys(log: PartitionLog) -> object:
    return key_index.extend(log, lambda: None, idle=True)


@pytest.mark.parametrize("look", [by_time, by_key, index_keys])
def test_it_is_noted(look: Callable[[PartitionLog], object]) -> None:
    log = filled()
    if look is by_key:
        index_keys(log)
    look(log)
    assert not log.unreadable
    flip(log, 5)
    if look is index_keys:
        log.segments[0].keys = None
        log.files.remove(f"{log.segments[0].stem}.keys")
    with pytest.raises(CorruptBatch, match=r"wrong CRC"):
        look(log)
    assert log.unreadable


def test_a_log_that_is_cut_meanwhile_is_not_damaged() -> None:
    log = filled()
    flip(log, 5)
    log.truncating = True
    with pytest.raises(CorruptBatch):
        by_time(log)
    assert not log.unreadable


def test_what_was_written_so_is_not_the_files_fault() -> None:
    def spoil(batch: bytes) -> bytes:
        """A batch with a good CRC that holds no records."""
        rest = batch[CRC_START:HEADER_BYTES] + b"\xff" * (len(batch) - HEADER_BYTES)
        return batch[: CRC_START - 4] + crc32c(rest).to_bytes(4, "big") + rest

    log = filled(spoil)
    with pytest.raises(CorruptBatch):
        by_time(log)
    assert not log.unreadable


@pytest.mark.parametrize("other", [1, 3])
def test_files_in_each_others_place_are_damaged(other: int) -> None:
    log = filled()
    first, second = log.segments[2], log.segments[2 + (other - 2)]
    for suffix in (".log", ".index", ".timeindex"):
        log.files.rename(first.stem + suffix, "aside")
        log.files.rename(second.stem + suffix, first.stem + suffix)
        log.files.rename("aside", second.stem + suffix)
    end = log.segments[3].base_offset
    for offset in range(first.base_offset, end):
        with pytest.raises(CorruptBatch):
            log.read_blocking(offset, 1)
    assert log.unreadable


def test_what_is_damaged_before_a_time_keeps_nobody_from_finding_it() -> None:
    log = open_log(MemoryFiles(), LogConfig(tail_cache_bytes=1))
    for number in range(10):
        builder = BatchBuilder(0, 0, TIME_MS)
        builder.add(0, None, bytes(50), timestamp_ms=TIME_MS + number)
        log.append(builder.build())
    flush(log)
    flip(log, 5)
    assert log.offset_for_timestamp(TIME_MS + 6) == (6, TIME_MS + 6)
    assert not log.unreadable
    with pytest.raises(CorruptBatch, match="wrong CRC"):
        log.offset_for_timestamp(TIME_MS + 5)
    assert log.unreadable


@pytest.mark.parametrize("place", range(6))
def test_a_batch_behind_the_end_of_the_log_is_damaged(place: int) -> None:
    """Its first eight bytes are not in its CRC."""
    log = filled()
    offset = log.segments[-1].base_offset
    flip(log, offset, place)
    with pytest.raises(CorruptBatch, match="in another segment than theirs"):
        log.read_blocking(offset, 1 << 20)
    assert log.unreadable


def test_that_the_disk_refuses_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """By the log: of those who read it some try again each half second, others leave it to their clients."""
    log = filled()
    log.files = FaultyFiles(log.files)
    log.files.failing["read"] = errno.EIO
    for lines in (1, 2):
        for offset in range(0, COUNT, 10):
            with pytest.raises(OSError, match="error"):
                log.read_blocking(offset, 1)
        assert sum(record.message.startswith("cannot read") for record in caplog.records) == lines
        log.refusal_said_s -= 30
    assert not log.unreadable
