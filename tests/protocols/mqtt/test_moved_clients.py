"""Clients that go on at another broker while the one that had them stands still, which then says what it still had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from protocols.mqtt.adapter_properties import PUBLISHER_HEADER
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.raw import mark_in, mark_of
from routing.cluster.clients import clients_elsewhere
from routing.cluster.clients.clients_elsewhere import ClientsElsewhere
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.queues import queue_rules
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import acknowledge, connect, packets, publish
from tests.protocols.mqtt.wire_5 import block, connect_5, disconnect_5, publish_5, subscribe_5, unsubscribe_5
from tests.support.engine_node import EngineNode, Town, town_of

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
LEADER, FORMER, LATER = 1, 2, 3


class Device(Client):
    """A connection of a client with a session that lasts."""

    def __init__(self, node: EngineNode, name: str) -> None:
        world = World.__new__(World)
        world.broker, world.now_s = node.broker, 0.0
        super().__init__(world, "127.0.0.1:5000", MqttConfig())
        self.name = name
        self.got: list[tuple[int, bytes]] = []

    async def begin(self) -> None:
        await self.send(connect(self.name, clean=False))
        await self.hears(0x20)

    async def hears(self, first: int) -> bytes:
        """The body of the next packet that begins so; those before it are dropped."""
        with trio.fail_after(5):
            while True:
                self.got += packets(self.take())
                while self.got:
                    head, body = self.got.pop(0)
                    if head == first:
                        return body
                await trio.sleep(0.002)

    def heard(self) -> list[tuple[int, bytes]]:
        self.got += packets(self.take())
        return self.got


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    """The broker that devices leave hears of no takeover, as one that stands still."""
    async with town_of(LEADER, FORMER, LATER, stripes=2) as found:
        broker = found.nodes[LEADER].broker
        await broker.declare_queue("q", durable=True, arguments={}, owner=None)
        await broker.bind("queue", "q", "amq.topic", "t", {}, owner=None)
        yield found


def _streams(node: EngineNode) -> list[Any]:
    return [node.engine.forwarding.stream(f"home-{index}") for index in range(2)]


def stand_still(node: EngineNode) -> None:
    """What it has for homes stays where it is."""
    node.engine.elsewhere.give_ups.clear()
    for stream in _streams(node):
        stream.send = lambda: None


async def go_on(node: EngineNode) -> None:
    """Now it leaves, and arrives."""
    forwarding = node.engine.forwarding
    for stream in _streams(node):
        vars(stream).pop("send", None)
        stream.request_sync()
        forwarding.dirty[stream] = None
    node.broker.end_turn()
    with trio.fail_after(5):
        while any(stream.kept for stream in _streams(node)):
            await trio.sleep(0.002)


async def bodies(found: Town) -> list[bytes]:
    broker = found.nodes[LEADER].broker
    session = broker.session(cast("Any", None), protocol="mqtt", owner=object(), vhost="/")
    there = []
    while (got := await session.get("q", no_ack=True)) is not None:
        there.append(got.slab.bodies[got.index])
    return there


async def exchange(device: Device, number: int, body: bytes, *, dup: bool = False) -> None:
    """A message at QoS 2, to its end."""
    await device.send(publish("t", body, qos=2, packet_id=number, dup=dup))
    await device.hears(PUBREC)
    await released(device, number)


async def released(device: Device, number: int) -> None:
    await device.send(acknowledge(PUBREL, number))
    await device.hears(PUBCOMP)


async def received_at_the_former(found: Town) -> Device:
    """A message at QoS 2 up to PUBREC, at a broker that stands still then."""
    former = Device(found.nodes[FORMER], "device")
    await former.begin()
    await former.send(publish("t", b"1", qos=2, packet_id=7))
    await former.hears(PUBREC)
    stand_still(found.nodes[FORMER])
    return former


@pytest.mark.parametrize("others", [0, 1])
async def test_what_a_broker_still_had_of_a_publisher_is_not_published_again(others: int) -> None:
    async with town() as found:
        former = Device(found.nodes[FORMER], "device")
        await former.begin()
        await exchange(former, 1, b"0")
        stand_still(found.nodes[FORMER])
        await former.send(publish("t", b"1", qos=2, packet_id=7))
        later = Device(found.nodes[LATER], "device")
        await later.begin()
        await exchange(later, 7, b"1", dup=True)
        for _ in range(others):
            await later.send(publish("t", b"2", qos=2, packet_id=7))
            await later.hears(PUBREC)
        await go_on(found.nodes[FORMER])
        await exchange(later, 8, b"3")
        assert await bodies(found) == [b"0", b"1", *[b"2"] * others, b"3"]
        assert former.closed
        assert not former.heard(), "it is not told that its message is there"


async def test_a_release_that_comes_late_releases_nothing() -> None:
    async with town() as found:
        former = await received_at_the_former(found)
        await former.send(acknowledge(PUBREL, 7))
        later = Device(found.nodes[LATER], "device")
        await later.begin()
        await released(later, 7)
        await later.send(publish("t", b"2", qos=2, packet_id=7))
        await later.hears(PUBREC)
        await go_on(found.nodes[FORMER])
        again = Device(found.nodes[LEADER], "device")
        await again.begin()
        await exchange(again, 7, b"2", dup=True)
        assert await bodies(found) == [b"1", b"2"]
        assert former.closed
        assert not former.heard()


async def test_a_packet_id_that_was_used_elsewhere_meanwhile_is_of_a_new_message() -> None:
    async with town() as found:
        await received_at_the_former(found)
        later = Device(found.nodes[LATER], "device")
        await later.begin()
        await released(later, 7)
        await go_on(found.nodes[FORMER])
        back = Device(found.nodes[FORMER], "device")
        await back.begin()
        await exchange(back, 7, b"2")
        assert await bodies(found) == [b"1", b"2"]


async def begun_5(node: EngineNode) -> Device:
    """A client of MQTT 5 with a session that lasts."""
    device = Device(node, "device")
    await device.send(connect_5("device", block(session_expiry=3600), flags=0))
    await device.hears(0x20)
    return device


def give_up(node: EngineNode) -> None:
    """It has waited for answers of the homes' leader for so long that it waits no more."""
    for stream in _streams(node):
        stream.tick(stream.kept[0].since_s + node.engine.forwarding.patience_s if stream.kept else 0.0)
    node.broker.end_turn()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_not_known_to_be_there_is_not_refused(qos: int) -> None:
    """[MQTT-4.3.3-10] Its id stays taken: the leader has it, though the client's broker has heard nothing of that."""
    async with town() as found:
        node = found.nodes[FORMER]
        former = await begun_5(node)
        for stream in _streams(node):
            stream.done = lambda *told: None
        await former.send(publish_5("t", b"1", qos=qos, packet_id=7), publish_5("t", b"2", qos=qos, packet_id=8))
        with trio.fail_after(5):
            while found.nodes[LEADER].broker.topology.queues["q"].message_count < 2:
                await trio.sleep(0.002)
        give_up(node)
        for stream in _streams(node):
            vars(stream).pop("done")
        assert former.closed
        assert [head for head, _ in former.heard()] == [0xE0]
        await go_on(node)
        later = await begun_5(found.nodes[LATER])
        sent = [publish_5("t", b"%d" % n, qos=qos, packet_id=6 + n, dup=n < 3) for n in (1, 2, 3)]
        await later.send(*sent)
        answers = [await later.hears(PUBREC if qos == 2 else 0x40) for _ in sent]
        assert answers == [b"\0\7", b"\0\x08", b"\0\x09"]
        there = await bodies(found)
        assert list(dict.fromkeys(there)) == [b"1", b"2", b"3"]
        assert qos == 1 or len(there) == 3


async def test_nothing_comes_before_what_was_not_stored() -> None:
    """[MQTT-4.6.0-6] What the client had sent behind it, and is read later, goes nowhere."""
    async with town() as found:
        node = found.nodes[FORMER]
        former = await begun_5(node)
        stand_still(node)
        await former.send(publish_5("t", b"1", qos=1, packet_id=1))
        give_up(node)
        await former.send(publish_5("t", b"2", qos=1, packet_id=2))
        await go_on(node)
        later = await begun_5(found.nodes[LATER])
        for number in (1, 2):
            await later.send(publish_5("t", b"%d" % number, qos=1, packet_id=number, dup=True))
            await later.hears(0x40)
        assert await bodies(found) == [b"1", b"2"]


async def subscribed(found: Town, name: str) -> None:
    """There is a session that asks for no retained messages, which nobody leads here."""
    first = Device(found.nodes[LEADER], name)
    await first.send(connect_5(name, block(session_expiry=3600), flags=0), subscribe_5(1, ("t", 0x22)))
    await first.hears(0x90)
    first.lose()


BEFORE, SENT, THERE = "before it consumes", "when it was sent it", "when it has it"


@pytest.mark.parametrize(
    ("where", "when"),
    [
        (LATER, BEFORE),
        (LATER, SENT),
        (LATER, THERE),
        (LEADER, BEFORE),
        (LEADER, THERE),
        (FORMER, BEFORE),
        (FORMER, SENT),
    ],
)
async def test_what_was_received_before_and_is_told_late_comes_in_order(
    where: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town() as found:
        await subscribed(found, "device")
        former = Device(found.nodes[FORMER], "device")
        await former.begin()
        publisher = Device(found.nodes[LEADER], "publisher")
        await publisher.begin()
        await exchange(publisher, 1, b"1")
        first = await former.hears(0x34)
        stand_still(found.nodes[FORMER])
        await former.send(acknowledge(PUBREC, int.from_bytes(first[3:5])))
        consume = ClientsElsewhere.consume

        async def late(*given: Any) -> Any:
            await go_on(found.nodes[FORMER])
            return await consume(*given)

        if when == BEFORE:
            monkeypatch.setattr(ClientsElsewhere, "consume", late)
        later = Device(found.nodes[where], "device")
        await later.begin()
        monkeypatch.undo()
        assert await later.hears(0x3C) == first
        if when == SENT:
            await go_on(found.nodes[FORMER])
        await exchange(publisher, 2, b"2")
        second = await later.hears(0x34)
        for body in (first, second):
            await later.send(acknowledge(PUBREC, int.from_bytes(body[3:5])))
            assert await later.hears(PUBREL) == body[3:5]
        if when == THERE:
            await go_on(found.nodes[FORMER])
        for body in (first, second):
            await later.send(acknowledge(PUBCOMP, int.from_bytes(body[3:5])))
        assert former.closed
        assert not former.heard()
        again = Device(found.nodes[LEADER], "device")
        await again.begin()
        await exchange(publisher, 3, b"3")
        assert (await again.hears(0x34))[5:] == b"3"


@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_releases_go_out_in_the_order_of_what_was_received_when_the_leader_changes_meanwhile(
    version: str,
) -> None:
    """[MQTT-4.6.0-4] What the leader before was told is known to be safe after what the broker has written itself."""
    async with town() as found:
        await subscribed(found, "device")
        node = found.nodes[FORMER]
        device = Device(node, "device")
        await device.send(
            connect("device", clean=False)
            if version == "3.1.1"
            else connect_5("device", block(session_expiry=3600), flags=0)
        )
        await device.hears(0x20)
        publisher = Device(found.nodes[LEADER], "publisher")
        await publisher.begin()
        await exchange(publisher, 1, b"1")
        first = await device.hears(0x34)
        stand_still(node)
        await device.send(acknowledge(PUBREC, int.from_bytes(first[3:5])))
        for index in range(2):
            found.lead(index, FORMER)
        publisher = Device(node, "another")
        await publisher.begin()
        await exchange(publisher, 1, b"2")
        second = await device.hears(0x34)
        assert second[3:5] != first[3:5]
        await device.send(acknowledge(PUBREC, int.from_bytes(second[3:5])))
        await trio.testing.wait_all_tasks_blocked(0.02)
        await go_on(node)
        assert [await device.hears(PUBREL) for _ in range(2)] == [first[3:5], second[3:5]]


def slow_catalog(node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, trio.Event]:
    """What a broker changes in the catalog waits for the second event; the first says that it does."""
    monkeypatch.setattr(ClientsElsewhere, "position", lambda _: [])  # nobody leads what is retained, here
    catalog, asked, goes_on = node.broker.topology.catalog, trio.Event(), trio.Event()
    change = catalog.change

    async def slow(*given: Any, **named: Any) -> None:
        asked.set()
        await goes_on.wait()
        await change(*given, **named)

    monkeypatch.setattr(catalog, "change", slow)
    return asked, goes_on


@pytest.mark.parametrize("expiry_s", [0, 5, 7200])
async def test_what_a_client_said_of_its_session_when_it_left_is_over_before_it_is_elsewhere(
    expiry_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-4.1.0-2] A session that has ended is not present, and what was said of one does not come over another."""
    async with town() as found, trio.open_nursery() as nursery:
        former = await begun_5(found.nodes[FORMER])
        found.nodes[LATER].cluster.members.brokers = dict.fromkeys((FORMER, LATER))
        asked, goes_on = slow_catalog(found.nodes[FORMER], monkeypatch)
        nursery.start_soon(former.send, disconnect_5(0, block(session_expiry=expiry_s)))
        with trio.fail_after(5):
            await asked.wait()
        later = Device(found.nodes[LATER], "device")
        nursery.start_soon(later.send, connect_5("device", block(session_expiry=3600), flags=0))
        await trio.testing.wait_all_tasks_blocked(0.02)
        goes_on.set()
        connack = await later.hears(0x20)
        assert connack[:2] == bytes((expiry_s > 0, 0))
        queue = found.nodes[LATER].broker.topology.queues["mqtt.device"]
        with trio.fail_after(5):
            while queue.arguments["x-expires"] != 3_600_000:
                await trio.sleep(0.002)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert queue.arguments["x-expires"] == 3_600_000


@pytest.mark.parametrize("where", [FORMER, LATER])
@pytest.mark.parametrize("wanted", [False, True])
async def test_a_subscription_is_as_the_client_has_said_last_wherever_it_was_when_it_said_so(
    wanted: bool, where: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had said before it lost its connection is still under way when it connects again."""
    words = (subscribe_5(1, ("t", 0x21)), unsubscribe_5(2, "t"))
    async with town() as found, trio.open_nursery() as nursery:
        former = await begun_5(found.nodes[FORMER])
        if wanted:
            await former.send(words[0])
            await former.hears(0x90)
        found.nodes[where].cluster.members.brokers = dict.fromkeys((FORMER, LATER))
        asked, goes_on = slow_catalog(found.nodes[FORMER], monkeypatch)
        nursery.start_soon(former.send, words[wanted])
        with trio.fail_after(5):
            await asked.wait()
        later = Device(found.nodes[where], "device")
        connecting = connect_5("device", block(session_expiry=3600), flags=0)
        nursery.start_soon(later.send, connecting + words[not wanted])
        await trio.testing.wait_all_tasks_blocked(0.02)
        goes_on.set()
        await later.hears(0x90 if wanted else 0xB0)
        await trio.testing.wait_all_tasks_blocked(0.02)
        bindings = found.nodes[LEADER].broker.topology.vhost("/").bindings_to.get(("queue", "mqtt.device"), ())
        assert [one.pattern for one in bindings] == ["t"] * wanted


async def test_a_client_whose_will_is_still_on_its_way_is_nobody_elses_before_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would come over the will that the client has elsewhere, and go when the connection here ends."""
    monkeypatch.setattr(clients_elsewhere, "_SETTLED_S", 0.05)
    monkeypatch.setattr(ClientsElsewhere, "position", lambda _: [])
    async with town() as found, trio.open_nursery() as nursery:
        node = found.nodes[FORMER]
        former = Device(node, "device")
        nursery.start_soon(former.send, connect("device", will=("gone", b"1", 1, False)))
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not former.heard(), "nobody leads what is kept, here"
        found.nodes[LATER].cluster.members.brokers = dict.fromkeys((FORMER, LATER))
        later = Device(found.nodes[LATER], "device")
        await later.send(connect("device"))
        assert former.closed
        assert later.closed
        assert not later.heard()
        assert node.broker.keeping is not None
        stream = node.broker.keeping.stream
        stream.tick(stream.kept[0].since_s + node.engine.forwarding.patience_s)
        node.broker.end_turn()
        later = Device(found.nodes[LATER], "device")
        with trio.fail_after(5):
            await later.send(connect("device"))
        await later.hears(0x20)


async def test_a_session_that_expires_while_its_client_connects_elsewhere_is_not_present(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town() as found:
        former = await begun_5(found.nodes[FORMER])
        found.nodes[LATER].cluster.members.brokers = dict.fromkeys((FORMER, LATER))
        monkeypatch.setattr(ClientsElsewhere, "position", lambda _: [])  # nobody leads what is retained, here
        await former.send(disconnect_5(0))
        refresh = RemoteQueue.refresh

        async def late(queue: RemoteQueue) -> None:
            monkeypatch.setattr(RemoteQueue, "refresh", refresh)
            await found.nodes[LEADER].broker.delete_queue(queue.name)
            await refresh(queue)

        monkeypatch.setattr(RemoteQueue, "refresh", late)
        later = Device(found.nodes[LATER], "device")
        await later.send(connect_5("device", block(session_expiry=3600), flags=0))
        assert (await later.hears(0x20))[:2] == b"\0\0"
        assert found.nodes[LEADER].broker.topology.queues["mqtt.device"].arguments["x-expires"] == 3_600_000


async def test_a_session_lasts_as_long_as_its_connection_though_its_queue_gets_another_leader() -> None:
    """The one that begins to lead it does not know yet that it is consumed."""
    async with town() as found:
        await subscribed(found, "device")
        device = Device(found.nodes[FORMER], "device")
        await device.send(connect_5("device", flags=0))
        assert (await device.hears(0x20))[:2] == b"\1\0"
        queue = found.nodes[FORMER].broker.topology.queues["mqtt.device"]
        with trio.fail_after(5):
            while queue.arguments["x-expires"] != 1:
                await trio.sleep(0.002)
        for index in range(2):
            found.lead(index, LATER)
        publisher = Device(found.nodes[LATER], "publisher")
        await publisher.begin()
        await publisher.send(publish("t", b"1", qos=1, packet_id=1))
        assert (await device.hears(0x32)).endswith(b"1")
        device.lose()
        with trio.fail_after(5):
            while "mqtt.device" in found.nodes[LATER].broker.topology.queues:
                await trio.sleep(0.002)


async def test_a_session_whose_brokers_link_is_lost_expires_unless_it_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_rules, "COME_AGAIN_S", 0.05)
    async with town() as found:
        leader = found.nodes[LEADER]
        await leader.broker.declare_queue("session", durable=True, arguments={"x-expires": 3_600_000}, owner=None)
        there = found.nodes[LATER].broker
        session = there.session(cast("Any", Device(found.nodes[LATER], "d").adapter), protocol="mqtt", owner=None)
        await session.consume("session", tag="", no_ack=False)
        queue = leader.broker.topology.queues["session"]
        with trio.fail_after(5):
            while not queue.consumers:
                await trio.sleep(0.002)
        await leader.broker.alter_queue("session", {"x-expires": 1})
        with trio.fail_after(5):
            while queue.rules._alarm is not None:
                await trio.sleep(0.002)
        leader.engine.serving.lost(leader.engine.serving.links[LATER])
        with trio.fail_after(5):
            while "session" in leader.broker.topology.queues:
                await trio.sleep(0.002)


async def test_publishes_name_their_publishers_for_a_group_of_another_broker() -> None:
    async with town() as found:
        leader, other = found.nodes[LEADER], found.nodes[FORMER]
        device = Device(other, "d")
        await device.begin()
        name, arguments = "$share/g/t", {"x-group-by": PUBLISHER_HEADER}
        await leader.broker.declare_queue(name, durable=True, arguments=arguments, owner=None)
        await leader.broker.bind("queue", name, "amq.topic", "t", {}, owner=None)
        with trio.fail_after(5):
            while name not in other.broker.topology.vhost("/").queues:
                await trio.sleep(0.002)
        await device.send(publish("t", b"1", qos=1, packet_id=1))
        await device.hears(PUBACK)
        session = leader.broker.session(cast("Any", None), protocol="mqtt", owner=object(), vhost="/")
        got = await session.get(name, no_ack=True)
        assert got is not None
        assert mark_in(got.slab.properties.raw) == mark_of("d")
