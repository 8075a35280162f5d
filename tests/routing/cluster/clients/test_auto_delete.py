"""Auto-delete queues whose leader is gone when their last consumer goes, at another broker."""

from __future__ import annotations

import pytest
import trio

from core_log.files import MemoryFiles
from routing.declaring import control
from routing.queues.queue import Queue
from tests.routing.cluster.clients.test_served_consumers import Client
from tests.routing.harness import engine
from tests.support.engine_node import town_of


@pytest.mark.parametrize("closes", [False, True])
async def test_a_queue_whose_last_consumer_goes_while_nobody_leads_it_goes_later(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "COME_AGAIN_S", 0.05)
    async with town_of(1, 2, 3, stripes=1, leader=1) as town:
        before, other, leader = (town.nodes[number].broker for number in (1, 2, 3))
        for name in ("q", "used", "never used"):
            await before.declare_queue(name, durable=True, auto_delete=True)
        going, staying = Client(town.nodes[2]).session, Client(town.nodes[3]).session
        with trio.fail_after(10):
            await going.consume("q", tag="a", no_ack=False)
            await going.consume("used", tag="b", no_ack=False)
            town.lead(0, None)
            if closes:
                going.close()
            else:
                for consumer in list(going.consumers):
                    going.cancel(consumer)
            await trio.sleep(0.06)  # nobody could be asked
            assert "q" in other.topology.queues
            town.lead(0, 3)
            await staying.consume("used", tag="c", no_ack=False)
            while "q" in leader.topology.queues or "q" in other.topology.queues:
                await trio.sleep(0.001)
        assert sorted(leader.topology.queues) == ["never used", "used"]


async def test_those_who_consume_elsewhere_have_their_time_to_come_again_to_each_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a queue that is used would go: who consumes it is not known yet to who leads it now."""
    monkeypatch.setattr(control, "COME_AGAIN_S", 0.1)
    async with town_of(1, 2, 3, stripes=1, leader=1) as town:
        await town.nodes[1].broker.declare_queue("q", durable=True, auto_delete=True)
        going = Client(town.nodes[2]).session
        with trio.fail_after(10):
            await going.consume("q", tag="a", no_ack=False)
            town.lead(0, None)
            going.close()
            began_s = trio.current_time()
            await trio.sleep(0.08)
            town.lead(0, 3)
            changed_s = trio.current_time()
            while "q" in town.nodes[3].broker.topology.queues:
                await trio.sleep(0.001)
        assert trio.current_time() >= max(changed_s + 0.1, began_s + 0.2)


async def test_a_queue_of_another_broker_that_goes_and_is_made_anew_at_once_is_consumed_here() -> None:
    async with town_of(1, 2, stripes=1, leader=1) as town:
        here, there = town.nodes[1].broker, town.nodes[2].broker
        owner = Client(town.nodes[2]).session
        with trio.fail_after(30):
            await there.declare_queue("q", auto_delete=True)
            consumer = await owner.consume("q", tag="a", no_ack=True)
            while "q" not in here.topology.vhost("/").away:
                await trio.sleep(0.001)
            owner.cancel(consumer)
            await there.declare_queue("q", auto_delete=True)
            away, made = here.topology.vhost("/").away, there.topology.queues["q"]
            while "q" not in away or away["q"].id != made.id:
                await trio.sleep(0.001)
            await Client(town.nodes[1]).session.consume("q", tag="b", no_ack=True)
        assert made.consumer_count == 1


async def test_a_queue_that_was_made_anew_while_its_leader_was_asked_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to go was the former one, which was declared auto-delete."""
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.declare_queue("q", durable=True, auto_delete=True)
        former = broker.topology.queues["q"]

        async def anew(queue: Queue) -> None:
            monkeypatch.undo()
            await broker.delete_queue("q")
            await broker.declare_queue("q", durable=True)

        monkeypatch.setattr(Queue, "refresh", anew)
        await broker.see_off.__self__._delete_unused(former)  # type: ignore[attr-defined]
        assert broker.topology.queues["q"].id != former.id
