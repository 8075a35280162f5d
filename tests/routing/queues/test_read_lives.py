"""Times to live that a protocol's properties do not say, of messages that were read from the log."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from routing.facts import pack
from routing.message import Properties, Slab
from tests.routing.harness import PROTOCOL, Client, Engine, engine, killed

LIVES_MS = [None, 50_000, 50_000, 600_000, None, 50_000]


class Reader(Client):
    """A client that keeps body and time to live of what it gets."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, object())
        self.got: list[tuple[int, int | None]] = []

    def deliver(self, consumer, first_id, slab, start, stop, redelivered) -> None:  # type: ignore[no-untyped-def]
        for index in range(start, stop):
            self.got.append((int(slab.bodies[index]), slab.properties_of(index).neutral.expiration_ms))


def timed(numbers: list[int]) -> Slab:
    """Messages of one slab that lie next to each other, each with the time to live of its number."""
    bodies = [b"%d" % number for number in numbers]
    facts = [pack(True, ttl_ms=LIVES_MS[number]) for number in numbers]
    if facts.count(facts[0]) == len(facts):
        return Slab("", "q", Properties(PROTOCOL, b"{}", persistent=True, facts=facts[0]), bodies)
    common = Properties(PROTOCOL, b"{}", persistent=True)
    return Slab("", "q", common, bodies, raws=[b"{}"] * len(bodies), facts=facts)


@pytest.mark.parametrize("runs", [[[0], [1], [2], [3], [4], [5]], [[0], [1, 2], [3], [4, 5]], [[0, 1, 2, 3, 4, 5]]])
@pytest.mark.parametrize("priorities", [None, 3])
async def test_they_are_known_after_a_kill(runs: list[list[int]], priorities: int | None) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments={"x-max-priority": priorities} if priorities else {})
        client = running.client()
        for numbers in runs:
            client.session.publish(timed(numbers), confirm=True)
            running.turn()
        await running.until(lambda: client.confirmed == len(LIVES_MS))
        left = killed(files)
    async with engine(left) as running:
        reader = Reader(running)
        await reader.consume("q")
        running.turn()
        await running.until(lambda: len(reader.got) == len(LIVES_MS))
        assert reader.got == list(enumerate(LIVES_MS))
