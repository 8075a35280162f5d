"""A log whose end is cut off, and the power goes."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from core_log.files import FaultyFiles, MemoryFiles
from core_log.partition_log import LogConfig, PartitionLog
from core_log.truncation import cut_files
from tests.core_log.helpers import TIME_MS, flush, make_batch, open_log, read_all


def a_log(files: FaultyFiles) -> PartitionLog:
    """Segments of four or so, all durable."""
    log = open_log(files, LogConfig(segment_bytes=400, index_interval_bytes=1))
    for number in range(20):
        log.append(make_batch([b"%d" % number * 20], time_ms=TIME_MS + number))
    flush(log)
    return log


@pytest.mark.parametrize("cut", range(3, 19))
def test_a_power_loss_at_any_step_of_a_cut_leaves_a_whole_log(cut: int) -> None:
    """Its end was left without what was before it; or a segment that was trusted had lost the end of its indexes, so
    that times were found too late, and retention took what was not old.
    """
    dice = random.Random(cut)
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    log = a_log(files)
    found: list[MemoryFiles] = []
    files.hook = lambda *_: found.extend(memory.crash(dice) for _ in range(4))
    assert cut_files(log, cut).next_offset == cut
    files.hook = None
    for survived in found:
        again = open_log(survived, log.config)
        assert cut <= again.log_end_offset <= 20
        assert [offset for offset, _ in read_all(again)] == list(range(again.log_end_offset))
        for offset in range(again.log_end_offset):
            assert again.offset_for_timestamp(TIME_MS + offset) == (offset, TIME_MS + offset)


@pytest.mark.parametrize("cut", [0, 3, 4, 18])
def test_a_cut_that_the_disk_refused_is_done_again(cut: int) -> None:
    """It was not, where the file was cut already: it was taken for damaged, for ever."""
    for number in range(100):
        memory = MemoryFiles()
        files = FaultyFiles(memory)
        log = a_log(files)
        log.high_watermark = 0  # as a follower's
        steps = iter(range(number))

        def hook(operation: str, path: str, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise OSError(errno.EIO, "bad", path)

        files.hook = hook
        refused = False
        try:
            cut_files(log, cut)
        except OSError:
            refused = True
        files.hook = None
        log.shorten(cut_files(log, cut))
        log.append(make_batch([b"anew"]))
        flush(log)
        for again in (log, open_log(memory.crash(), log.config)):
            assert [offset for offset, _ in read_all(again)] == list(range(cut + 1))
            assert again.verify() == []
        if not refused:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("asked_before", [False, True])
def test_times_of_a_full_segment_that_was_cut_and_filled_again_are_those_that_it_has(asked_before: bool) -> None:
    """They were those from before the cut, for whoever had asked then: who looked for a later time was led to the next
    segment, and left out what had it.
    """
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=400, retention_ms=1000))
    for number in range(8):
        log.append(make_batch([b"%d" % number * 20], time_ms=TIME_MS + number))
    flush(log)
    full = log.segments[0]
    if asked_before:
        assert log.offset_for_timestamp(TIME_MS + 6) == (6, TIME_MS + 6)
    log.high_watermark = 1  # as a follower's
    log.shorten(cut_files(log, 1))
    for number in range(1, 8):
        log.append(make_batch([b"%d" % number * 20], time_ms=TIME_MS + 5000 + number))
    flush(log)
    assert log.segments[0] is full
    assert full.index is None
    assert log.offset_for_timestamp(TIME_MS + 4000) == (1, TIME_MS + 5001)
    log.apply_retention(TIME_MS + 6000)
    assert log.log_start_offset == 0
