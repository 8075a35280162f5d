"""What partitions know of idempotent producers."""

from __future__ import annotations

import threading

from core_log.files import FaultyFiles, MemoryFiles
from routing.topics.producers import Producers, know_all, save_all
from tests.core_log.helpers import make_batch, open_log


async def test_many_are_known_and_saved_side_by_side() -> None:
    together = threading.Barrier(3)
    files = FaultyFiles(MemoryFiles())
    logs = [open_log(files, directory=f"topics/t-{number}") for number in range(3)]
    found = [Producers(log) for log in logs]

    def hook(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith("producers.new"):
            together.wait(20)

    files.hook = hook
    await know_all(found)
    assert all(one.are_known for one in found)
    saved: list[str] = []
    files.hook = lambda operation, path: saved.append(path) if path.endswith("producers.new") else None
    logs[0].append(make_batch([bytes(1000)]))
    await save_all(found)
    assert saved == [], "that is read in no time"
    for log in logs:
        log.append(make_batch([bytes(70_000)]))
    files.hook = hook
    await save_all(found)
    files.hook = None


async def test_what_cannot_be_known_does_not_keep_the_others_from_it() -> None:
    files = FaultyFiles(MemoryFiles())
    found = [Producers(open_log(files, directory=f"topics/t-{number}")) for number in range(3)]

    def hook(operation: str, path: str) -> None:
        if path.startswith("topics/t-1/"):
            raise OSError("refused")

    files.hook = hook
    await know_all(found)
    assert [one.are_known for one in found] == [True, False, True]
