"""A full segment that is gone from the middle of a log, which knows what it had though offsets may be left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_log import checkpoint
from core_log.damage import find_damage
from core_log.files import MemoryFiles
from core_log.flush_job import RecoveryPoint
from core_log.partition_log import LogConfig, PartitionLog
from core_log.replica_log import ReplicaLog
from core_log.truncation import cut_files
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log, read_all

CONFIG = LogConfig(segment_bytes=300)
POINT_BYTES = 72
"""Of a recovery point that does not say what is before it."""


def a_log(files: MemoryFiles) -> PartitionLog:
    """Ten segments of two records."""
    log = open_log(files, CONFIG)
    for number in range(10):
        log.append(make_batch([b"%d " % number * 80, b"x"]))
    flush(log)
    assert [segment.base_offset for segment in log.segments] == list(range(0, 20, 2))
    return log


def remove(log: PartitionLog, files: MemoryFiles, at: int) -> str:
    """The path of what was removed of a log that is to be opened again."""
    path = log.segments[at].log_path
    files.remove(path)
    return path


def empty(log: PartitionLog, files: MemoryFiles, at: int) -> str:
    """The same, of what was cut to nothing."""
    path = log.segments[at].log_path
    files.open(path).truncate(0)
    return path


def stopped(log: PartitionLog) -> None:
    log.close()


def killed(log: PartitionLog) -> None:
    """Nothing."""


@pytest.mark.parametrize("lose", [remove, empty])
@pytest.mark.parametrize("stop", [stopped, killed])
def test_it_is_missed_by_each_start_and_by_its_readers(
    stop: Callable[[PartitionLog], None], lose: Callable[[PartitionLog, MemoryFiles, int], str]
) -> None:
    files = MemoryFiles()
    log = a_log(files)
    stop(log)
    path = lose(log, files, 4)
    assert ("missing" if lose is remove else "it is empty") in str(find_damage(files, DIRECTORY))
    for _ in range(2):
        log = open_log(files, CONFIG)
        assert log.damaged
        assert log.unreadable
        assert log.verify() == [f"{path} is missing"]
        assert [offset for offset, _ in read_all(log, 10)] == list(range(10, log.log_end_offset))
        with pytest.raises(FileNotFoundError):
            read_all(log)
        log.append(make_batch([b"later"]))
        flush(log)
        log.close()


def test_it_is_none_any_more_once_the_log_starts_behind_it() -> None:
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    remove(log, files, 4)
    log = open_log(files, CONFIG)
    log.delete_prefix(10)
    flush(log)
    log.close()
    log = open_log(files, CONFIG)
    assert not log.damaged
    assert not log.unreadable
    assert log.verify() == []


def test_retention_passes_over_it() -> None:
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    remove(log, files, 1)
    log = open_log(files, LogConfig(segment_bytes=300, retention_ms=1))
    log.apply_retention(1 << 50)
    assert log.log_start_offset == log.log_end_offset


def test_a_follower_may_be_cut_within_it() -> None:
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    remove(log, files, 4)
    replica = ReplicaLog.open_replica(files, DIRECTORY, CONFIG, log._flusher, wall_clock_ms=lambda: 0)
    replica.shorten(cut_files(replica, 9))
    assert replica.log_end_offset == 8
    assert replica.verify() == []


def test_a_file_that_is_brought_back_is_as_before() -> None:
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    before = read_all(log)
    path = log.segments[4].log_path
    files.rename(path, path + ".aside")
    assert open_log(files, CONFIG).damaged
    files.rename(path + ".aside", path)
    log = open_log(files, CONFIG)
    assert not log.unreadable
    assert read_all(log) == before
    assert log.verify() == []


def test_a_directory_of_before_misses_nothing() -> None:
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    path = f"{DIRECTORY}/recovery-point"
    content = checkpoint.load(files, path)
    assert content is not None
    checkpoint.save(files, path, content[:POINT_BYTES])
    found = RecoveryPoint.load(files, DIRECTORY)
    assert found is not None
    assert found.closed is None
    log = open_log(files, CONFIG)
    assert not log.damaged
    log.append(make_batch([b"x" * 200]))
    flush(log)
    log.close()
    remove(log, files, 4)
    assert open_log(files, CONFIG).damaged, "from then on it does"


def test_one_that_never_had_anything_in_it_is_not_missed() -> None:
    files = MemoryFiles()
    log = a_log(files)
    replica = ReplicaLog.open_replica(files, "replica", CONFIG, log._flusher, wall_clock_ms=lambda: 0)
    replica.skip_to(500)
    replica.append_replica(make_batch([b"x"], base_offset=500))
    flush(replica)
    replica.close()
    assert files.size("replica/00000000000000000000.log") == 0
    replica = ReplicaLog.open_replica(files, "replica", CONFIG, log._flusher, wall_clock_ms=lambda: 0)
    assert not replica.damaged
    assert replica.log_end_offset == 501


def test_what_a_version_before_says_of_those_that_never_had_anything_in_them_means_nothing() -> None:
    """It named them as well: a replica that was never damaged would not have been in sync, and said so for ever."""
    files = MemoryFiles()
    log = a_log(files)
    log.close()
    point = RecoveryPoint.load(files, DIRECTORY)
    assert point is not None
    assert point.closed
    assert point.none_empty
    for none_empty in (False, True):
        point._replace(none_empty=none_empty).save(files, DIRECTORY)
        assert RecoveryPoint.load(files, DIRECTORY) == point._replace(none_empty=none_empty)
        empty(log, files, 4)
        assert (find_damage(files, DIRECTORY) is not None) is none_empty
    assert open_log(files, CONFIG).damaged
