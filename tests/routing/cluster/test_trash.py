"""What was a replica: kept for an hour, under a name of its own."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from core_log.files import MemoryFiles
from routing.cluster.trash import KEPT_MS, TRASH, expired, keep_empty, put_aside


def make(files: MemoryFiles, directory: str) -> None:
    files.make_directory(directory)
    files.open(f"{directory}/0.log").close()


def test_a_directory_is_kept_for_an_hour() -> None:
    files = MemoryFiles()
    assert expired(files, 0) == []
    for _ in range(2):
        make(files, "topics/t-0")
        assert put_aside(files, "topics/t-0", 1000).startswith(f"{TRASH}/topics-t-0.100")
        assert not files.exists("topics/t-0")
    make(files, f"{TRASH}/by hand")
    assert expired(files, KEPT_MS + 999) == []
    assert expired(files, KEPT_MS + 1000) == [f"{TRASH}/topics-t-0.1000"]
    assert len(expired(files, KEPT_MS + 1001)) == 2
    with pytest.raises(FileNotFoundError):
        put_aside(files, "topics/none", 0)


async def test_what_is_old_is_removed(autojump_clock: MockClock) -> None:
    files = MemoryFiles()
    make(files, "queues/3")
    put_aside(files, "queues/3", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_empty, files, lambda: int(trio.current_time() * 1000))
        while files.list(TRASH):
            await trio.sleep(60)
        assert trio.current_time() * 1000 >= KEPT_MS
        nursery.cancel_scope.cancel()
