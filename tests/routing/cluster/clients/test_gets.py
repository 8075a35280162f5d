"""Messages that are got one by one, of a queue that another broker leads."""

from __future__ import annotations

import pytest
import trio

from routing.consumer import Got
from routing.message import Slab
from routing.session import Session
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of


class Client:
    """It only gets."""

    def __init__(self, node: EngineNode) -> None:
        self.broker = node.broker
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]

    def writable(self) -> bool:
        return True


async def test_who_waits_for_the_disk_is_answered_though_another_one_is_done_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, leader=1) as town:
        publisher, one, other = Client(town.nodes[1]), Client(town.nodes[2]), Client(town.nodes[2])
        await publisher.broker.declare_queue("q", durable=True)
        publisher.session.publish(Slab("", "q", PERSISTENT, [b"first", b"second"]))
        publisher.broker.end_turn()
        first = await one.session.get("q", no_ack=False)
        assert first is not None
        asked, settled = trio.Event(), trio.Event()
        get = Session.get

        async def slow(self: Session, queue_name: str, *, no_ack: bool) -> Got | None:
            if self.broker is publisher.broker:
                asked.set()
                await settled.wait()
            return await get(self, queue_name, no_ack=no_ack)

        monkeypatch.setattr(Session, "get", slow)
        found: list[Got | None] = []

        async def wait() -> None:
            found.append(await other.session.get("q", no_ack=False))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await asked.wait()
                one.session.settle(first.delivery_id, first.delivery_id, Outcome.ACK)
                one.broker.end_turn()
                queue = publisher.broker.topology.queues["q"]
                while queue.outstanding:
                    await trio.sleep(0.001)
                settled.set()
        assert [bytes(got.slab.bodies[got.index]) for got in found if got is not None] == [b"second"]
