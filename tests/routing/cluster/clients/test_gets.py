"""Messages that are got one by one, of a queue that another broker leads."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from routing.broker import Broker
from routing.cluster.clients import served_broker
from routing.consumer import Got
from routing.message import Slab
from routing.session import Session
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of


class Client:
    """It only gets."""

    def __init__(self, node: EngineNode, vhost: str = "/") -> None:
        self.broker = node.broker
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self, vhost=vhost)  # type: ignore[arg-type]

    def publish(self, *bodies: bytes) -> None:
        self.session.publish(Slab("", "q", PERSISTENT, list(bodies)))
        self.broker.end_turn()

    async def get(self, *, no_ack: bool = False) -> tuple[bytes, int] | None:
        """A message, and the delivery id at its leader."""
        got = await self.session.get("q", no_ack=no_ack)
        if got is None:
            return None
        there = 0 if no_ack else self.session.unsettled[-1].offset
        return bytes(got.slab.bodies[got.index]), there

    def writable(self) -> bool:
        return True


def slow_gets(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, trio.Event]:
    """Gets at a broker wait: that there is one, and when they go on."""
    asked, go_on = trio.Event(), trio.Event()
    get = Session.get

    async def slow(self: Session, queue_name: str, *, no_ack: bool) -> Got | None:
        if self.broker is broker:
            asked.set()
            await go_on.wait()
        return await get(self, queue_name, no_ack=no_ack)

    monkeypatch.setattr(Session, "get", slow)
    return asked, go_on


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
        asked, settled = slow_gets(publisher.broker, monkeypatch)
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


async def test_who_waits_is_answered_though_all_that_it_had_was_taken_back_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the client whose queue it is connects anew."""
    async with town_of(1, 2, leader=1) as town:
        leader, client = town.nodes[1], Client(town.nodes[2])
        await leader.broker.declare_queue("q", durable=True)
        Client(leader).publish(b"first", b"second")
        assert await client.get()
        asked, ended = slow_gets(leader.broker, monkeypatch)
        found: list[tuple[bytes, int] | None] = []

        async def wait() -> None:
            found.append(await client.get())

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await asked.wait()
                queue = leader.broker.topology.queues["q"]
                await leader.engine.elsewhere.begin_here(f"home-{queue.partition.index}", queue.id)
                ended.set()
        assert [got and got[0] for got in found] == [b"first"], "it came back"


async def test_who_acknowledges_nothing_misses_nothing_when_the_link_is_lost_before_the_answer_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1], town.nodes[2]
        await leader.broker.declare_queue("q", durable=True)
        Client(leader).publish(b"first", b"second")
        get, lost = Session.get, trio.Event()

        async def losing(self: Session, queue_name: str, *, no_ack: bool) -> Got | None:
            found = await get(self, queue_name, no_ack=no_ack)
            if self.broker is leader.broker and not lost.is_set():
                other.cut(1)
                lost.set()
            return found

        monkeypatch.setattr(Session, "get", losing)
        with trio.fail_after(20):
            found = [await Client(other).get(no_ack=True) for _ in range(2)]
        assert lost.is_set()
        assert [got and got[0] for got in found] == [b"first", b"second"]


async def test_nothing_is_got_for_who_asked_over_a_link_that_is_lost_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1], town.nodes[2]
        await leader.broker.declare_queue("q", durable=True)
        Client(leader).publish(b"first")
        ask, first = served_broker.ServedBroker.ask, leader.engine.serving.links[2]

        def ask_and_lose(self: served_broker.ServedBroker, request: int, what: str, *where: Any) -> None:
            ask(self, request, what, *where)
            if self is first:
                self.link.replaced()

        monkeypatch.setattr(served_broker.ServedBroker, "ask", ask_and_lose)
        with trio.fail_after(10):
            assert await Client(other).get()
        assert first.link is not leader.engine.serving.links[2].link


@pytest.mark.parametrize("no_ack", [True, False])
async def test_queues_of_one_name_in_two_virtual_hosts_are_two(no_ack: bool) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader = town.nodes[1].broker
        await leader.set_vhost("other")
        for vhost in ("/", "other"):
            await leader.declare_queue("q", durable=True, vhost=vhost)
            Client(town.nodes[1], vhost).publish(vhost.encode())
        with trio.fail_after(5):
            found = [await Client(town.nodes[2], vhost).get(no_ack=no_ack) for vhost in ("/", "other", "/", "other")]
        assert [got and got[0] for got in found] == [b"/", b"other", None, None]


async def test_nothing_is_left_at_the_leader_of_who_got_all_there_is() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, client = town.nodes[1].broker, Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        Client(town.nodes[1]).publish(b"a", b"b")
        before = len(leader.sessions)
        with trio.fail_after(5):
            assert await client.get(no_ack=True)
            client.broker.end_turn()
            while len(leader.sessions) > before:
                await trio.sleep(0.001)
            first = await client.get()
            assert len(leader.sessions) == before + 1
            assert await client.get() is None
            client.session.settle_up_to(0, Outcome.ACK)
            client.broker.end_turn()
            while len(leader.sessions) > before:
                await trio.sleep(0.001)
            assert await client.get() is None
            assert await client.get(no_ack=True) is None
            assert len(leader.sessions) == before
            Client(town.nodes[1]).publish(b"c")
            second = await client.get()
        assert first is not None
        assert second is not None
        assert second[0] == b"c"
        assert second[1] > first[1], "what is said twice of the first says nothing of the second"


@pytest.mark.parametrize("gone", ["deleted", "led elsewhere"])
async def test_nothing_is_left_of_what_was_got_of_a_queue_that_is_gone(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_broker, "_SAID_FOR_S", 0.05)
    async with town_of(1, 2, 3, stripes=1) as town:
        leader, client = town.nodes[1].broker, Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        before = len(leader.sessions)
        publisher = Client(town.nodes[1])
        publisher.publish(b"a")
        with trio.fail_after(10):
            assert await client.get()
            if gone == "deleted":
                await leader.delete_queue("q")
            else:
                town.lead(0, 3)
            while len(leader.sessions) > before + 1:
                await trio.sleep(0.001)


async def test_what_was_got_stays_with_who_has_it_though_nobody_consumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_broker, "_SAID_FOR_S", 0.01)
    async with town_of(1, 2, leader=1) as town:
        leader, client = town.nodes[1].broker, Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        Client(town.nodes[1]).publish(b"a")
        with trio.fail_after(5):
            assert await client.get()
            (served,) = [one for one in leader.sessions if one.protocol == "peer"]
            for _ in range(10):
                town.nodes[1].engine.tick()
                await trio.sleep(0.01)
        assert not served.closed
        assert leader.topology.queues["q"].outstanding == 1
