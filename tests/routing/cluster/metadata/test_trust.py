"""`lost-replicas`: what it says, and what is taken for lost when it cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from core_log.files import MemoryFiles
from routing.cluster.metadata.age import Age, save_age
from routing.cluster.metadata.trust import PATH, Trust
from tests.support.home_cluster import HOMES, Member, mesh, until


def flip_a_bit(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": flip_a_bit,
    "longer": lambda data: data + b"\0",
}


def damage(files: MemoryFiles, change: Callable[[bytes], bytes]) -> None:
    file = files.open(PATH, create=False)
    data = file.pread(files.size(PATH), 0)
    file.truncate(0)
    file.pwritev([change(data)], 0)
    file.sync()


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_what_a_damaged_file_said_may_be_of_any_replica(
    change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    Trust(files, "boot").begun(["home-1"])
    damage(files, change)
    with caplog.at_level(logging.WARNING):
        trust = Trust(files, "boot")
    assert [record.getMessage() for record in caplog.records] == [
        "lost-replicas is damaged or gone: nobody relies on the replicas here until they are in sync again"
    ]
    assert trust.is_lost("home-0", synced=True)
    trust.note(["home-0"])
    trust.ended(["home-0"])
    again = Trust(files, "boot")
    assert again.is_lost("home-1", synced=True), "the start before did not get as far as to open it"
    again.begun(["home-1"])
    after = Trust(files, "boot")
    assert [after.is_lost(name, synced=True) for name in ("home-0", "home-1")] == [False, True]


def test_a_file_that_is_gone_said_the_same() -> None:
    files = MemoryFiles()
    assert not Trust(files, "boot").is_lost("home-0", synced=True), "nothing was reported yet"
    Trust(files, "boot").begun(["home-1"])
    save_age(files, Age(1, "token"))
    files.remove(PATH)
    assert Trust(files, "boot").is_lost("home-0", synced=True)


async def test_a_member_whose_file_is_damaged_counts_again_when_it_has_caught_up() -> None:
    async with mesh() as brokers:
        brokers.members[3].part.begun()
        files = await brokers.kill(3)
        damage(files, flip_a_bit)
        again = Member(3, files)
        await brokers.nursery.start(again.run, brokers)
        assert sorted(again.part.lost) == sorted(again.part.replicas.by_name) != []
        brokers.link(again)
        brokers.members[3] = again
        for index in range(HOMES):
            await brokers.settled(index)
        await until(lambda: not again.part.note_lost())
        assert Trust(files, "").lost == ()
