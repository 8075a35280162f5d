"""Reading a log on behind what is damaged of it, or gone."""

from __future__ import annotations

import errno

import pytest

from core_log import whole_batches as module
from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.errors import CorruptBatch
from core_log.files import FaultyFiles, Files, MemoryFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.whole_batches import readable_behind, whole_batches
from tests.core_log.helpers import flush, make_batch, open_log

COUNT = 20


def filled(files: Files) -> PartitionLog:
    """A log of a batch in each segment."""
    log = open_log(files, LogConfig(segment_bytes=100, tail_cache_bytes=1))
    for number in range(COUNT):
        log.append(make_batch([b"%d" % number]))
    flush(log)
    return log


def test_what_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", 1)
    log, damages = filled(MemoryFiles()), list[int]()
    found: list[int] = []
    for batch in whole_batches(log, 0, lambda offset, behind, error: damages.append(offset)):
        found.append(parse_header(batch).base_offset)
        if len(found) == 3:
            log.delete_prefix(10)
            flush(log)
    assert found == [0, 1, 2, *range(10, COUNT)]
    assert not damages


def test_what_the_disk_refuses_now_is_not_taken_for_damaged() -> None:
    files = FaultyFiles(MemoryFiles())
    log = filled(files)
    files.open(log.segments[5].log_path).pwritev([b"\xff"], HEADER_BYTES + 3)
    with pytest.raises(CorruptBatch):
        log.read_blocking(5, 1)
    assert readable_behind(log, 5, COUNT) == 6
    files.failing["open"] = errno.EMFILE
    with pytest.raises(OSError, match=r"\[Errno 24\]"):
        readable_behind(log, 5, COUNT)


@pytest.mark.parametrize("one_by_one", [0, 512])
def test_what_lies_between_damaged_places_is_found(one_by_one: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_BY_ONE", one_by_one)
    files = MemoryFiles()
    log = filled(files)
    for number in (5, 6, 7, 9, 13):
        files.open(log.segments[number].log_path).pwritev([b"\xff"], HEADER_BYTES + 3)
    assert readable_behind(log, 5, COUNT) == (8 if one_by_one else 14), "behind many more it is passed over"


def test_what_is_whole_behind_a_damaged_batch_is_read_though_no_index_entry_is_between() -> None:
    log = open_log(MemoryFiles(), LogConfig(tail_cache_bytes=1))
    for number in range(COUNT):
        log.append(make_batch([b"%d" % number]))
    flush(log)
    place = sum(map(len, log.read_blocking(0, 1 << 20, before=5))) + HEADER_BYTES + 3
    log.files.open(log.segments[0].log_path).pwritev([b"\xff"], place)
    with pytest.raises(CorruptBatch):
        log.read_blocking(5, 1)
    assert readable_behind(log, 5, COUNT) == 6
    assert [parse_header(batch).base_offset for batch in log.read_blocking(6, 1 << 20)] == [*range(6, COUNT)]
