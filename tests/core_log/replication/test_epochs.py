"""Leader epochs: the list, its file, and when a start begins a new one."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from core_log.flush_job import save_epochs
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import parse_header
from core_log.replication.epochs import LeaderEpochs
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log, write


def epochs_of(log: PartitionLog) -> list[int]:
    """The epoch of every batch."""
    return [parse_header(batch).leader_epoch for batch in log.read_blocking(0, 1 << 20)]


def append(log: PartitionLog) -> None:
    log.append(make_batch([b"a", b"b"]))
    flush(log)


def test_the_list() -> None:
    epochs = LeaderEpochs()
    assert epochs.latest == 0
    for epoch, offset in ((0, 0), (3, 10), (4, 20), (7, 20), (9, 50)):
        epochs.begin(epoch, offset)
    assert epochs.entries == [(0, 0), (3, 10), (7, 20), (9, 50)], "nothing was written in epoch 4"
    with pytest.raises(ValueError, match="epoch 9 after 9"):
        epochs.begin(9, 60)
    epochs.trim(19)
    assert epochs.entries == [(3, 10), (7, 20), (9, 50)]
    epochs.cut(50)
    assert epochs.entries == [(3, 10), (7, 20)]
    epochs.trim(1000)
    assert epochs.entries == [(7, 20)]


@pytest.mark.parametrize("entries", [[], [(0, 0)], [(1, 5), (4, 1 << 40)]])
def test_the_file(entries: list[tuple[int, int]]) -> None:
    data = LeaderEpochs(entries).encode(17)
    decoded, clean_end = LeaderEpochs.decode(data)
    assert (decoded.entries, clean_end) == (entries, 17)
    assert LeaderEpochs.decode(LeaderEpochs(entries).encode())[1] == -1
    for size in range(len(data)):
        if (size - 8) % 12 or size < 8:
            with pytest.raises(ValueError, match="bytes of leader epochs"):
                LeaderEpochs.decode(data[:size])


@pytest.mark.parametrize("entries", [[(1, 5), (0, 9)], [(1, 5), (1, 5)]])
def test_a_file_that_cannot_be(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="do not rise"):
        LeaderEpochs.decode(LeaderEpochs(entries).encode())


@pytest.mark.parametrize("fsync", ["commit", "never"])
def test_a_clean_start_keeps_the_epoch_and_any_other_begins_one(fsync: str) -> None:
    disk = MemoryFiles()
    config = LogConfig(fsync=fsync)  # type: ignore[arg-type]
    log = open_log(disk, config)
    append(log)
    log.close()
    log = open_log(disk, config)
    append(log)
    log = open_log(disk, config)
    assert log.leader_epoch == 1, "it was not closed"
    append(log)
    log.close()
    log = open_log(disk, config)
    log.close()
    for _ in range(3):
        log = open_log(disk, config)
        assert log.leader_epoch == 1, "nothing was written since it was closed"
    append(log)
    assert epochs_of(log) == [0, 0, 1, 1]
    assert log.epochs.entries == [(0, 0), (1, 4)]
    # What readers had seen is lost with all of what was written since the clean stop: still not clean.
    log = open_log(disk.crash(), config)
    assert log.leader_epoch == 2


def test_the_epoch_of_lost_records_is_not_used_again() -> None:
    disk = MemoryFiles()
    config = LogConfig(fsync="never")
    log = open_log(disk, config)
    append(log)
    log.close()
    log = open_log(disk, config)
    log.append(make_batch([b"seen"]))
    write(log)
    assert log.high_watermark == 3
    disk = disk.crash()
    log = open_log(disk, config)
    assert (log.log_end_offset, log.leader_epoch) == (2, 1)
    log.append(make_batch([b"seen as well"]))
    write(log)
    log = open_log(disk.crash(), config)
    assert (log.log_end_offset, log.leader_epoch) == (2, 2)


def test_a_log_of_before_there_were_epochs() -> None:
    disk = MemoryFiles()
    log = open_log(disk)
    log.leader_epoch = 6
    append(log)
    log.close()
    disk.remove(f"{DIRECTORY}/leader-epochs")
    log = open_log(disk)
    assert (log.leader_epoch, log.epochs.entries) == (7, [(6, 0), (7, 2)])
    save_epochs(disk, DIRECTORY, b"no epochs")
    assert open_log(disk).leader_epoch == 7
    assert open_log(MemoryFiles()).leader_epoch == 0


def test_a_clean_log_is_closed_without_a_write() -> None:
    disk = MemoryFiles()
    log = open_log(disk)
    append(log)
    log.close()
    before = disk.open(f"{DIRECTORY}/leader-epochs").node
    open_log(disk).close()
    assert disk.open(f"{DIRECTORY}/leader-epochs").node is before
