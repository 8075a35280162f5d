"""A data directory that is moved away, removed or covered while the broker runs: nothing is confirmed into thin air."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from core_log.disk_space import DiskSpace
from core_log.files import OsFiles
from core_log.log_flusher import LogFlusher
from core_log.partition_log import PartitionLog
from routing.alarms import MISPLACED, Alarms
from routing.config import BrokerConfig
from tests.core_log.helpers import make_batch, open_log, read_all


def moved(data: Path) -> None:
    data.rename(data.with_name("moved"))


def covered(data: Path) -> None:
    moved(data)
    data.mkdir()
    (data / "lock").touch()


def replaced(data: Path) -> None:
    moved(data)
    data.touch()


def emptied(data: Path) -> None:
    shutil.copytree(data, data.with_name("moved"))
    for one in data.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()


async def refused(log: PartitionLog) -> OSError:
    log.append(make_batch([b"refused"]))
    log.request_sync()
    with trio.fail_after(10):
        while log.error is None:
            await trio.lowlevel.checkpoint()
    assert log.committed_offset == 1
    return log.error


@pytest.mark.parametrize("gone", [moved, covered, replaced, emptied])
async def test_nothing_is_confirmed_while_the_directory_is_gone(gone: Callable[[Path], None], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "lock").touch()
    files = OsFiles(data)
    space, flusher = DiskSpace(files, 0), LogFlusher(retry_interval_s=0.01)
    alarms = Alarms(BrokerConfig(disk_free_bytes_min=0, memory_bytes_max=0), space, flusher)
    flusher.execute, flusher.account = space.execute, space.account
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        log = open_log(files, flusher=flusher)
        log.append(make_batch([b"first"]))
        log.request_sync()
        await log.wait_committed(1)
        gone(data)
        space.tend(0)
        alarms.check()
        assert alarms.blocked == MISPLACED
        assert "is not where it was" in str(await refused(log))
        if gone is not emptied:
            data.unlink() if gone is replaced else shutil.rmtree(data, ignore_errors=True)
            data.with_name("moved").rename(data)
            space.tend(0)
            alarms.check()
            assert alarms.blocked is None
            with trio.fail_after(10):
                while log.error is not None:
                    await trio.sleep(0.01)
                await log.wait_written(2)
            assert read_all(log) == [(0, b"first"), (1, b"refused")]
        nursery.cancel_scope.cancel()
    flusher.close([log])
