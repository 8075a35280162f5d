"""Positions in streams that the engine keeps for consumers that ask for it."""

from __future__ import annotations

import pytest
import trio

from core_log.memory_files import MemoryFiles
from routing.errors import BrokerError
from routing.topics.offset_store import Committed
from tests.routing.harness import engine, killed
from tests.routing.topics.test_streams import Reader, filled


async def test_a_tag_goes_on_behind_what_it_acknowledged() -> None:
    files = MemoryFiles()
    async with engine(files, stream_tracking_delay_ms=1) as running:
        await filled(running)
        reader = Reader(running, 6)
        await reader.read("s", None, tag="mine", **{"x-stream-automatic-offset-tracking": True})
        running.turn()
        reader.ack(1)
        reader.ack(2)
        reader.ack(4)
        place = ("s", 0)
        offsets = running.broker.offsets
        with trio.fail_after(5):
            while offsets.known("millrace.stream.mine") != {place: Committed(2)}:
                await trio.sleep(0.001)
        running.turn()
        await running.until(lambda: not running.broker.flusher.unflushed_bytes)
        found = killed(files)
    for source in (found, files):
        async with engine(source) as running:
            reader = Reader(running)
            await reader.read("s", "last", tag="mine", **{"x-stream-automatic-offset-tracking": True})
            await reader.until(8)
            assert reader.bodies == [str(number) for number in range(2, 10)]
            reader.session.close()
            other = Reader(running)
            await other.read("s", "last", tag="other")
            await other.until(1)
            assert other.bodies == ["9"]


async def test_a_position_is_noted_when_the_consumer_goes_and_not_before_it_moved() -> None:
    async with engine(MemoryFiles(), stream_tracking_delay_ms=3_600_000) as running:
        await filled(running)
        group, place = "millrace.stream.mine", ("s", 0)
        for acknowledged, expected in [(0, {}), (3, {place: Committed(3)}), (7, {place: Committed(10)})]:
            reader = Reader(running)
            consumer = await reader.read("s", None, tag="mine", **{"x-stream-offset": None})
            running.turn()
            if acknowledged:
                reader.ack(1, acknowledged)
            if acknowledged == 3:
                reader.session.cancel(consumer)
            reader.session.close()
            assert running.broker.offsets.known(group) == expected
        await running.broker.delete_queue("s")
        assert running.broker.offsets.known(group) == {}


async def test_the_number_of_tags_is_limited() -> None:
    async with engine(MemoryFiles(), stream_tracked_consumers_max=1, stream_tracking_delay_ms=3_600_000) as running:
        await filled(running)
        first = Reader(running)
        await first.read("s", None, tag="a", **{"x-stream-offset": None})
        running.turn()
        first.ack(1)
        first.session.close()
        second = Reader(running)
        with pytest.raises(BrokerError, match="keeps the positions of 1 consumers already"):
            await second.read("s", None, tag="b", **{"x-stream-offset": None})
        await second.read("s", None, tag="a", **{"x-stream-offset": None})
        await second.read("s", "first", tag="b")
