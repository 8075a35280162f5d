"""Deliveries held for too long, where a queue says how long that is."""

from __future__ import annotations

from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.errors import BrokerError
from tests.routing.harness import engine


async def test_only_who_holds_the_oldest_delivery_for_too_long_is_ended(clock: MockClock) -> None:
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000) as running:

        async def seconds(count: int) -> None:
            for _ in range(count):
                clock.jump(1)
                await wait_all_tasks_blocked()

        await running.queue("q", durable=False, arguments={"x-consumer-timeout": 10_000})
        await running.queue("patient", durable=False)
        ended: list[BrokerError] = []
        slow, patient = running.client(), running.client()
        slow.session.on_overdue = patient.session.on_overdue = ended.append
        await slow.consume("q")
        await patient.consume("patient")
        for key in ("q", "patient"):
            slow.publish(key, 1, 2)
        assert slow.take_bodies() == patient.take_bodies() == ["1", "2"]
        await seconds(8)
        slow.ack(1, 2)
        slow.publish("q", 3)
        assert slow.take_bodies() == ["3"]
        await seconds(9)
        assert not ended
        await seconds(3)
        assert str(ended[0]).startswith("delivery acknowledgement timed out. Timeout value used: 10000 ms.")
        slow.session.close()
        ended.clear()
        await seconds(100)
        assert not ended
        assert running.count("q") == 1

        assert await patient.session.get("q", no_ack=False) is not None
        await seconds(8)
        assert not ended
        await seconds(4)
        assert len(ended) > 0, "who got it without a consumer holds it all the same"
