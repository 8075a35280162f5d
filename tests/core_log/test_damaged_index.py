"""Indexes of segments that are damaged or gone: what they are about is whole, and all of it is read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from core_log.batch_header import parse_header
from core_log.file_range import find_range
from core_log.files import FaultyFiles, OsFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_reader import KnownPlaces, read_records
from core_log.segment_index import OFFSET_ENTRY
from tests.core_log.helpers import flush, make_batch, open_log

COUNT = 300
CONFIG = LogConfig(tail_cache_bytes=1, segment_bytes=256 << 10)
Damage = Callable[[bytearray], object]


def each(what: Callable[[bytearray, int], object], step: int = 3) -> Damage:
    """Every third entry, and the last."""

    def damage(index: bytearray) -> None:
        for at in (*range(0, len(index), OFFSET_ENTRY.size * step), len(index) - OFFSET_ENTRY.size):
            what(index, at)

    return damage


def flip(place: int, bit: int) -> Callable[[bytearray, int], object]:
    def one(index: bytearray, at: int) -> None:
        index[at + place] ^= bit

    return one


def gone(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Damage] = {
    "a smaller offset": each(lambda index, at: index.__setitem__(slice(at, at + 4), bytes(4))),
    "an offset near by": each(flip(3, 2)),
    "a larger offset": each(flip(1, 8)),
    "a position near by": each(flip(6, 1)),
    "a position beyond the end": each(flip(4, 64)),
    "all of them": each(flip(6, 3), step=1),
    "zeros": lambda index: index.__setitem__(slice(0, len(index)), bytes(len(index))),
    "the half is gone": lambda index: index.__delitem__(slice(len(index) // 2, len(index))),
}


@pytest.fixture(params=[*DAMAGE, gone, unreadable])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    """A log of some segments, the indexes of which were damaged while nobody looked."""
    log = open_log(OsFiles(tmp_path), CONFIG)
    for number in range(COUNT):
        log.append(make_batch([b"%d " % number + bytes(3000)]))
    flush(log)
    assert len(log.segments) > 2
    for segment in log.segments[:-1]:
        path = tmp_path / f"{segment.stem}.index"
        if callable(request.param):
            request.param(path)
            continue
        content = bytearray(path.read_bytes())
        DAMAGE[request.param](content)
        path.write_bytes(content)
    return log


def test_a_read_begins_with_what_it_asks_for(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    for offset in range(COUNT):
        assert parse_header(log.read_blocking(offset, 1)[0]).base_offset == offset
    assert len(caplog.records) < len(log.segments), "it is said once"
    log.close()


def test_single_records_are_found(log: PartitionLog) -> None:
    known = KnownPlaces()
    for offset in range(COUNT):
        (run,) = read_records(log, [offset], 1, known)
        assert run.first_offset == offset
    everywhere = [*range(0, COUNT, 7)]
    assert [run.first_offset for run in read_records(log, everywhere, 1 << 30, KnownPlaces())] == everywhere
    log.close()


def test_a_piece_of_a_file_begins_with_what_it_is_for(log: PartitionLog) -> None:
    for may_block in (True, False):
        found = [find_range(log, at, 128 << 10, log.high_watermark, may_block=may_block) for at in range(COUNT)]
        begins = {at: parse_header(one.read()).base_offset for at, one in enumerate(found) if one is not None}
        assert begins
        assert all(at == base_offset for at, base_offset in begins.items())
    log.close()


def test_a_start_makes_one_anew_that_cannot_be_read(tmp_path: Path) -> None:
    log = open_log(OsFiles(tmp_path), CONFIG)
    for number in range(COUNT):
        log.append(make_batch([b"%d " % number + bytes(3000)]))
    flush(log)
    log.close()
    path = f"{log.segments[0].stem}.index"
    content = (tmp_path / path).read_bytes()
    files = FaultyFiles(OsFiles(tmp_path))

    def refuse(operation: str, of: str) -> None:
        if operation == "read" and of == path:
            raise OSError(errno.EIO, "a bad sector", of)

    files.hook = refuse
    log = open_log(files, CONFIG)
    assert not log.damaged
    assert (tmp_path / path).read_bytes() == content
    log.close()
