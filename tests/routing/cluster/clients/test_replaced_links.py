"""A link between brokers is lost while the end that was dialled has not done yet all that came over it."""

from __future__ import annotations

import pytest
import trio

from protocols.peer.adapter import AcceptedAdapter
from protocols.peer.wire import ErrorCode, PeerError
from routing.cluster.clients.served_broker import ServedBroker
from routing.cluster.clients.serving import Serving
from routing.message import Slab
from routing.session import Session
from tests.routing.cluster.clients.test_served_consumers import Client, Reader
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of


class Held:
    """What comes to a broker is not done before it is let go: it waits for metadata that it does not have."""

    def __init__(self, node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> None:
        serving, self.waits, self.goes_on = node.engine.serving, trio.Event(), trio.Event()
        monkeypatch.setattr(Serving, "revision", property(lambda one: -1 if one is serving and self.holds else 1 << 60))
        monkeypatch.setattr(serving, "catch_up", self._wait)
        self.holds = False

    async def _wait(self, revision: int) -> None:
        self.holds = False  # whatever comes by other links is taken
        self.waits.set()
        await self.goes_on.wait()


def accepted(node: EngineNode, served: ServedBroker) -> AcceptedAdapter:
    """The end of a link that a broker was dialled for."""
    found = [one.adapter for one in node.peers.shell.connections if isinstance(one.adapter, AcceptedAdapter)]
    return next(one for one in found if one._real is served.link)


async def test_what_came_over_it_says_nothing_any_more_once_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1], town.nodes[2]
        await leader.broker.declare_queue("q", durable=True)
        session: Session = other.broker.session(object(), protocol="amqp", owner=other)  # type: ignore[arg-type]
        held, first = Held(leader, monkeypatch), leader.engine.serving.links[2]
        held.holds = True
        with trio.fail_after(20):
            session.publish(Slab("", "q", PERSISTENT, [b"x"]))
            other.broker.end_turn()
            await held.waits.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: other.broker.declare_queue("gone", durable=False))
                vhost = other.broker.topology.vhosts["/"]
                while "gone" not in vhost.queues:
                    await trio.sleep(0.001)
                other.broker.end_turn()  # that is told over the first link
                other.cut(1)
                while 1 in other.engine.forwarding.links:
                    await trio.sleep(0.001)
                other.broker.topology.drop_queue(vhost.queues["gone"])
                other.broker.end_turn()
            while leader.engine.serving.links[2] is first:
                await trio.sleep(0.001)
            await other.broker.declare_queue("there", durable=False)
            other.broker.end_turn()
            while "there" not in leader.broker.topology.vhosts["/"].away:
                await trio.sleep(0.001)
            held.goes_on.set()
            queue = leader.broker.topology.queues["q"]
            while not queue.message_count:
                await trio.sleep(0.001)
            await trio.sleep(0.05)
        assert "gone" not in leader.broker.topology.vhosts["/"].away
        assert queue.message_count == 1


async def test_what_came_over_it_says_nothing_any_more_once_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1], town.nodes[2]
        await leader.broker.declare_queue("q", durable=True)
        held, first = Held(leader, monkeypatch), leader.engine.serving.links[2]
        adapter = accepted(leader, first)
        held.holds = True
        reader, queue = Reader(other), leader.broker.topology.queues["q"]
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: reader.session.consume("q", tag="c", no_ack=False))
                await held.waits.wait()
                adapter.end(PeerError(ErrorCode.TIMED_OUT, "silent"))
            held.goes_on.set()
            while adapter in [one.adapter for one in leader.peers.shell.connections]:
                await trio.sleep(0.001)
            assert len(queue.consumers) == 1, "nobody would ever give back what another one has"
            Client(leader).session.publish(Slab("", "q", PERSISTENT, [b"1", b"2"]))
            leader.broker.end_turn()
            while len(reader.bodies) < 2:
                await trio.sleep(0.001)


async def test_it_is_not_silent_while_what_came_over_it_waits() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader = town.nodes[1]
        first = leader.engine.serving.links[2]
        adapter = accepted(leader, first)
        real = adapter._real
        assert real is not None
        before = adapter.next_timer_at()
        real._heard_s += 100  # as when it has waited for metadata
        assert adapter.next_timer_at() > before + 90
