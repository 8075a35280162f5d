"""What a log has of a step of a writer: found whatever was moved meanwhile."""

from __future__ import annotations

from core_log.files import MemoryFiles
from routing.publishing.published_once import Step
from routing.publishing.step_parts import BodiesFound, Part
from routing.redo_records import Places
from tests.routing.harness import engine
from tests.routing.publishing.test_published_once import batch, step
from tests.routing.queues.homes.test_relocation import CONFIG, crowd, keep_house


async def test_rows_that_were_moved_are_found_once_and_in_their_order() -> None:
    async with engine(MemoryFiles(), **CONFIG) as running:
        await running.queue("q")
        await running.bind("amq.topic", "q", "k.#")
        assert await step(running, 0, batch(3, 1, 2), batch(4)) == 4
        assert await step(running, 1, batch(5)) == 1
        home = running.home("q")
        part = Part([], Places(Step("w", 0).marker, [(home.index, 0)], []))
        both, moved = BodiesFound(part), BodiesFound(part)
        both.take(home.log.read_blocking(0, 1 << 20))
        await crowd(running)
        await keep_house(running, home)
        since = home.log.log_start_offset
        assert home.moves
        assert since > 0
        while batches := home.log.read_blocking(since, 1 << 20):
            since = both.take(batches)
            moved.take(batches)
        assert moved.bodies == [b"3", b"1", b"2", b"4"]
        assert both.bodies == moved.bodies
