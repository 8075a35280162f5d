"""Records that a group does not get past: what counts as a try, and what becomes of them."""

from __future__ import annotations

import random
import struct

from core_log.memory_files import MemoryFiles
from core_log.record_batch import iterate_records
from routing.groups.assigned import assigned
from tests.routing.harness import Engine, engine
from tests.routing.queues.test_views import append

PLACE = ("t", 0)


def assignment(*topics: tuple[str, tuple[int, ...]]) -> bytes:
    out = struct.pack(">hi", 0, len(topics))
    for name, partitions in topics:
        out += struct.pack(">h", len(name)) + name.encode()
        out += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return out + struct.pack(">i", -1)


def test_what_a_member_had_is_read_from_its_assignment_and_other_bytes_say_nothing() -> None:
    data = assignment(("t", (0, 3)), ("other", ()), ("u", (1,)))
    assert assigned(data) == [("t", 0), ("t", 3), ("u", 1)]
    assert assigned(b"") == assigned(data[:9]) == []
    assert assigned(struct.pack(">hihi", 0, 1, 0, 1 << 30)) == []
    dice = random.Random(1)
    for _ in range(500):
        torn = bytearray(data)
        torn[dice.randrange(len(torn))] = dice.randrange(256)
        assigned(bytes(torn[: dice.randrange(len(torn) + 1)]))


async def goes_on(running: Engine, *, after: int = 0) -> int:
    """Where the group goes on, after so many members that had the partition have gone."""
    group = running.broker.groups.groups["g"]
    group.departed[PLACE] += after  # type: ignore[union-attr]
    found = await running.broker.offsets.fetch("g", [PLACE])
    return (await running.broker.poison.look("g", found))[PLACE][0]


async def test_a_position_is_tried_when_somebody_begins_there_whose_forerunner_is_gone() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "2"})
        await append(running, *range(5))
        await running.broker.offsets.commit("g", {PLACE: (3, "note")})
        assert (await running.broker.poison.look("g", {PLACE: (3, "")}))[PLACE] == (3, ""), "it has no members"
        running.broker.groups._add_classic("g")
        for _ in range(5):
            assert await goes_on(running) == 3, "who asks again has not failed"
        assert await goes_on(running, after=1) == 3
        assert await goes_on(running) == 3
        assert await goes_on(running, after=1) == 4
        assert (await running.broker.offsets.fetch("g", [PLACE]))[PLACE] == (4, "")
        log = running.broker.topics["t.dlq"].partitions[0].log
        (dead,) = [one for each in log.read_blocking(0, 1 << 20) for one in iterate_records(each)]
        assert bytes(dead.value or b"") == b"3"
        assert dict(dead.headers)["x-dead-letter-tries"] == b"2"
        assert await goes_on(running, after=1) == 4
        await running.broker.offsets.commit("g", {PLACE: (5, "")})
        for _ in range(5):
            assert await goes_on(running, after=1) == 5, "there is nothing to fail at"
        await append(running, "later")
        assert await goes_on(running, after=1) == 5
