"""Pieces of segment files: what a read gives, byte for byte, or nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core_log import closed_indexes
from core_log.batch_header import parse_header
from core_log.errors import CorruptBatch
from core_log.file_range import RANGE_BYTES_MIN, FileRange, find_range
from core_log.files import Files, OsFiles
from core_log.log_config import LogConfig
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.truncation import cut_files
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log

KIB = 1 << 10
SMALL_TAIL = LogConfig(tail_cache_bytes=KIB, segment_bytes=900 * KIB)


def filled(files: Files, seed: int, *, sizes: tuple[int, int] = (100, 20_000), batches: int = 200) -> PartitionLog:
    log, dice = open_log(files, SMALL_TAIL), random.Random(seed)
    for number in range(batches):
        log.append(make_batch([dice.randbytes(dice.randrange(*sizes)), b"%d" % number]))
    flush(log)
    return log


def found_in(log: PartitionLog, offset: int, max_bytes: int, limit: int | None = None) -> FileRange | None:
    limit = log.high_watermark if limit is None else limit
    return find_range(log, offset, max_bytes, limit, may_block=True)


@pytest.fixture(params=[32 << 20, 0], autouse=True)
def room_for_indexes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes for the indexes of closed segments."""
    monkeypatch.setattr(closed_indexes, "BYTES_MAX", request.param)
    return int(request.param)


@pytest.mark.parametrize("seed", range(2))
def test_it_is_what_a_read_gives(tmp_path: Path, seed: int) -> None:
    log, dice = filled(OsFiles(tmp_path), seed), random.Random(seed)
    assert len(log.segments) > 1
    ranges = 0
    for _ in range(300):
        offset = dice.randrange(log.log_end_offset)
        limit = dice.randrange(offset + 1, log.log_end_offset + 1)
        max_bytes = dice.choice([1, 100 * KIB, 300 * KIB, 10 << 20])
        found = found_in(log, offset, max_bytes, limit)
        if found is None:
            continue
        ranges += 1
        data, read = found.read(), b"".join(log.read_blocking(offset, 1 << 30, before=limit))
        assert RANGE_BYTES_MIN // 2 < len(data) == len(found) <= max(max_bytes, 20_200)
        assert read.startswith(data), "whole batches, from the one that holds the offset"
        at, end = 0, -1
        while at < len(data):
            header = parse_header(data, at)
            at, end = at + header.size, header.next_offset
        assert (at, end <= found.next_offset <= limit) == (len(data), True)
    assert ranges > 50
    log.close()


def test_whoever_follows_comes_to_the_end(tmp_path: Path) -> None:
    log = filled(OsFiles(tmp_path), 7)
    offset, ranges, data = 0, 0, bytearray()
    while offset < log.log_end_offset:
        found = found_in(log, offset, 200 * KIB)
        piece = found.read() if found is not None else log.read_blocking(offset, 1)[0]
        ranges += found is not None
        data += piece
        at = 0
        while at < len(piece):
            offset = parse_header(piece, at).next_offset
            at += parse_header(piece, at).size
    assert ranges > 5
    stored = [path.read_bytes() for path in sorted((tmp_path / DIRECTORY).glob("*.log"))]
    assert bytes(data) == b"".join(stored)
    log.close()


def test_the_file_stays_while_it_is_under_way(tmp_path: Path) -> None:
    log = filled(OsFiles(tmp_path), 1)
    found = found_in(log, 0, 300 * KIB)
    assert found is not None
    data = found.read()
    (tmp_path / f"{log.segments[0].stem}.log").unlink()
    rest = found.after(1000)
    del found
    assert rest.read() == data[1000:]
    assert found_in(log, log.segments[-1].base_offset, 300 * KIB) is not None
    log.close()


def test_closed_segments_are_known_while_there_is_room(
    tmp_path: Path, room_for_indexes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(OsFiles(tmp_path), 1)
    first, second = log.segments[0].base_offset, log.segments[1].base_offset

    def known() -> list[bool]:
        return [find_range(log, at, 300 * KIB, log.high_watermark) is not None for at in (first, second)]

    assert known() == [False, False]
    assert found_in(log, first, 300 * KIB) is not None
    assert known() == [room_for_indexes > 0, False]
    if room_for_indexes:
        monkeypatch.setattr(
            closed_indexes, "BYTES_MAX", OsFiles(tmp_path).size(f"{log.segments[0].stem}.index") * 3 // 2 + 100
        )
        monkeypatch.setattr(closed_indexes.CLOSED_INDEXES, "_known", {log.segments[0]: known_now(log)})
        monkeypatch.setattr(closed_indexes.CLOSED_INDEXES, "_bytes", known_now(log)[0].bytes)
        assert found_in(log, second, 300 * KIB) is not None
        assert known() == [True, False], "whoever is being read stays"
        monkeypatch.setattr(closed_indexes, "IDLE_S", -1.0)
        assert found_in(log, second, 300 * KIB) is not None
        assert known() == [False, True], "nobody reads the first any more"
    log.close()


def known_now(log: PartitionLog) -> tuple[closed_indexes.ClosedIndex, float]:
    """What is kept of the first segment."""
    return closed_indexes.CLOSED_INDEXES._known[log.segments[0]]


def test_what_is_not_as_its_index_says_is_read(tmp_path: Path, room_for_indexes: int) -> None:
    log = filled(OsFiles(tmp_path), 2)
    first = tmp_path / f"{log.segments[0].stem}.log"
    assert found_in(log, 0, 300 * KIB) is not None
    content = first.read_bytes()
    first.write_bytes(b"\1" * len(content))
    assert found_in(log, 0, 300 * KIB) is None
    first.write_bytes(content)
    index = first.with_suffix(".index")
    index.write_bytes(bytes(8) + index.read_bytes()[8:-8] + b"\0\0\0\1\0\x07\0\0")
    assert (found_in(log, 0, 10 << 20) is None) == (not room_for_indexes)
    log.close()


def test_what_is_small_or_no_file_of_the_system_is_read(tmp_path: Path) -> None:
    log = filled(OsFiles(tmp_path), 3, sizes=(1, 200))
    assert found_in(log, 0, 10 << 20) is None
    log.close()
    log = filled(MemoryFiles(), 3)
    assert found_in(log, 0, 10 << 20) is None
    assert log.read_range(0, 10 << 20) is None
    log.close()


@pytest.mark.parametrize("damaged", [False, True])
async def test_what_is_asked_for_again_and_again_is_checked(tmp_path: Path, damaged: bool) -> None:
    log = filled(OsFiles(tmp_path), 3)
    if damaged:
        path = tmp_path / log.segments[0].log_path
        content = bytearray(path.read_bytes())
        content[parse_header(content).size - 1] ^= 1
        path.write_bytes(content)
    for _ in range(2):
        assert isinstance(await log.read_range_cold(0, 200 * KIB), FileRange)
    assert log.read_range(0, 200 * KIB) is None
    if damaged:
        for _ in range(3):
            with pytest.raises(CorruptBatch, match="wrong CRC"):
                await log.read_range_cold(0, 200 * KIB)
        assert log.unreadable
        assert isinstance(await log.read_range_cold(1, 200 * KIB), FileRange)
    else:
        assert isinstance(await log.read_range_cold(0, 200 * KIB), list)
        for _ in range(5):
            assert isinstance(await log.read_range_cold(0, 200 * KIB), FileRange)
    log.close()


def test_little_is_remembered_of_what_was_given(tmp_path: Path) -> None:
    log = filled(OsFiles(tmp_path), 3)
    for times in range(3):
        for offset in range(log.log_end_offset):
            found = find_range(log, offset, 200 * KIB, log.high_watermark, may_block=True)
            if found is not None:
                log._note_given(offset, 1)
            assert found is None or not log._is_asked_again(offset), times
    assert log._given is not None
    assert len(log._given) == 64
    log.close()


def test_pieces_of_a_full_segment_that_was_cut_and_filled_again_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its index in memory was the one from before the cut: there was a warning, and all of it was copied."""
    log = filled(OsFiles(tmp_path), 1)
    full, dice = log.segments[0], random.Random(2)
    assert found_in(log, 60, 100 * KIB) is not None
    log.high_watermark = 40  # as a follower's
    log.shorten(cut_files(log, 40))
    for _ in range(160):
        log.append(make_batch([dice.randbytes(dice.randrange(100, 20_000))]))
    flush(log)
    assert log.segments[0] is full
    assert full.index is None
    found = found_in(log, 60, 100 * KIB)
    assert found is not None
    assert b"".join(log.read_blocking(60, 1 << 20)).startswith(found.read())
    assert caplog.messages == []
    log.close()
