"""Retained messages on a real engine. The names cite the clauses of the standard."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter_properties import _intern
from protocols.mqtt.adapter_retained import wanted
from protocols.mqtt.adapter_sessions import sessions_of
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import SubscriptionRequest
from protocols.mqtt.raw import head_of
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.kept.giving_out import GivingOut
from routing.message import Slab
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import connect, packets, puback, publish, subscribe, unsubscribe


async def retain(world: World, *messages: tuple[str, bytes, int]) -> None:
    """Publish messages (topic, payload, QoS) to be retained, and wait for their PUBACKs."""
    client = await world.client("publisher")
    sent = [
        publish(topic, body, qos=qos, packet_id=number, retain=True)
        for number, (topic, body, qos) in enumerate(messages, 1)
    ]
    await client.send(*sent)
    await client.expect(puback(*(number for number, (_, _, qos) in enumerate(messages, 1) if qos)))
    client.lose()


async def got(client: Client, *filters: tuple[str, int]) -> set[bytes]:
    """What a client is given when it subscribes, behind SUBACK, as packets with packet id 0."""
    await client.send(subscribe(1, *filters))
    (first, _), *rest = packets(client.take())
    assert first == 0x90
    found = set()
    for first, body in rest:
        size = 2 + int.from_bytes(body[:2], "big")
        topic, rest_of_it = body[2:size].decode(), body[size:]
        qos = first >> 1 & 3
        payload = rest_of_it[2:] if qos else rest_of_it
        found.add(publish(topic, payload, qos=qos, packet_id=0, retain=bool(first & 1)))
    return found


def kept(topic: str, payload: bytes, qos: int = 0) -> bytes:
    return publish(topic, payload, qos=qos, packet_id=0, retain=True)


async def test_mqtt_3_3_1_6_newcomers_get_the_last_with_retain_1(world: World) -> None:
    await retain(world, ("a/b", b"1", 1), ("a/b", b"2", 1), ("a", b"3", 0), ("z", b"4", 1), ("$own/a", b"5", 1))
    subscriber = await world.client("s")
    assert await got(subscriber, ("a/#", 1)) == {kept("a/b", b"2", 1), kept("a", b"3")}

    assert await got(await world.client("all"), ("#", 0)) == {kept("a/b", b"2"), kept("a", b"3"), kept("z", b"4")}
    assert await got(await world.client("own"), ("$own/#", 1)) == {kept("$own/a", b"5", 1)}
    assert await got(await world.client("none"), ("b", 1)) == set()


async def test_mqtt_3_3_1_10_an_empty_payload_clears_and_is_delivered_live(world: World) -> None:
    await retain(world, ("t", b"x", 1), ("u", b"y", 0))
    watcher = await world.client("w")
    await watcher.send(subscribe(1, ("t", 0)))
    watcher.take()
    await retain(world, ("t", b"", 1), ("u", b"", 0))
    assert watcher.take() == publish("t", b"")
    assert await got(await world.client("late"), ("#", 1)) == set()


async def test_mqtt_3_3_1_12_without_retain_nothing_is_kept_or_replaced(world: World) -> None:
    await retain(world, ("t", b"kept", 0))
    await (await world.client("p")).send(publish("t", b"live"), publish("u", b"live"))
    assert await got(await world.client("s"), ("#", 0)) == {kept("t", b"kept")}


async def test_mqtt_3_8_4_3_a_filter_again_gives_them_again(world: World) -> None:
    await retain(world, ("t", b"x", 1))
    subscriber = await world.client("s")
    for _ in range(2):
        assert await got(subscriber, ("t", 0)) == {kept("t", b"x")}


def test_mqtt_3_8_3_1_retain_handling() -> None:
    requests = [SubscriptionRequest(f"f{n}", 1, retain_handling=n) for n in (0, 1, 2)]
    assert list(wanted(requests, [1, 1, 1], {})) == ["f0", "f1"]
    assert list(wanted(requests, [1, 1, 1], {"f0", "f1", "f2"})) == ["f0"]
    assert list(wanted(requests, [0x80, 0x80, 0x80], {})) == []


@pytest.mark.parametrize(
    ("first", "second", "count"), [(0, 0, 2), (0, 1, 1), (1, 1, 1), (1, 0, 2), (2, 1, 0), (1, 2, 1)]
)
def test_mqtt_3_8_4_5_a_filter_twice_in_a_packet_is_as_in_two_of_them(first: int, second: int, count: int) -> None:
    requests = [SubscriptionRequest("f", 1, retain_handling=n) for n in (first, second)]
    assert list(wanted(requests, [1, 1], {})) == ["f"] * count


async def test_retained_and_live_messages_mix_in_one_queue(world: World) -> None:
    """A client that cannot be written to has both waiting; each keeps its flag."""
    await retain(world, ("a", b"1", 1), ("b", b"2", 1))
    subscriber = await world.client("s")
    subscriber.outbox.writable = False
    await subscriber.send(subscribe(1, ("#", 1)))
    await (await world.client("p")).send(*(publish(topic, b"live", qos=1, packet_id=5) for topic in ("a", "b", "c")))
    subscriber.outbox.writable = True
    assert subscriber.outbox.on_writable is not None
    subscriber.outbox.on_writable()
    world.broker.end_turn()
    flags = [first & 1 for first, _ in packets(subscriber.take()) if first & 0xF0 == 0x30]
    assert flags == [1, 1, 0, 0, 0]


async def test_they_count_for_the_window(world: World) -> None:
    await retain(world, *((f"t/{n}", b"x", 1) for n in range(2000)))
    subscriber = await world.client("s", config=MqttConfig(inflight_messages_max=1024))
    await subscriber.send(subscribe(1, ("#", 1)))
    assert len([first for first, _ in packets(subscriber.take()) if first == 0x33]) == 1024
    await subscriber.acknowledge(*range(1, 1025))
    assert len([first for first, _ in packets(subscriber.take()) if first == 0x33]) == 976


async def test_beyond_the_limit_messages_are_delivered_and_not_retained(caplog: pytest.LogCaptureFixture) -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(retained_messages_max=2)) as broker:
        world = World(broker)
        watcher = await world.client("w")
        await watcher.subscribe(("#", 0))
        with caplog.at_level(logging.WARNING):
            await retain(world, *((f"t{n}", b"x", 1) for n in range(5)))
        assert len(watcher.take_deliveries()) == 5
        assert await got(await world.client("s"), ("#", 0)) == {kept("t0", b"x"), kept("t1", b"x")}
        assert len([one for one in caplog.records if "more than 2 retained messages" in one.message]) == 1
        assert broker.retained.refused == 3


async def test_amqp_sees_the_persistence_of_what_is_retained(world: World) -> None:
    await world.broker.declare_queue("q", durable=True)
    await world.broker.bind("queue", "q", "amq.topic", "#", {})
    await retain(world, ("a", b"0", 0), ("a", b"1", 1))
    session = world.broker.session(object(), protocol="test", owner=object())  # type: ignore[arg-type]
    for persistent in (False, True):
        message = await session.get("q", no_ack=True)
        assert message is not None
        assert message.slab.properties_of(message.index).neutral.persistent is persistent


@pytest.mark.parametrize("then", ["waits", "subscribes again", "unsubscribes"])
async def test_who_loses_its_connection_meanwhile_is_given_the_rest_when_it_is_back(world: World, then: str) -> None:
    await retain(world, *((f"t/{n}", b"%d" % n, 1) for n in range(10_000)))
    subscriber = await world.client("s", clean=False)
    again = world.open(config=MqttConfig(inflight_messages_max=32_767))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscriber.send, subscribe(1, ("#", 1)))
        while not (sent := subscriber.take()):
            await trio.lowlevel.checkpoint()
        assert sent[0] == 0x90  # who got SUBACK has no reason to subscribe again
        subscriber.lose()
        nursery.start_soon(again.send, connect("s", clean=False), *{
            "waits": [], "subscribes again": [subscribe(2, ("#", 1))], "unsubscribes": [unsubscribe(2, "#")],
        }[then])  # fmt: skip
    await wait_all_tasks_blocked()
    world.broker.end_turn()
    found = list(packets(again.take()))
    assert found[0] == (0x20, b"\1\0")
    given = [body for first, body in found if first & ~8 == 0x33]
    payloads = [int(body[2 + int.from_bytes(body[:2], "big") + 2 :]) for body in given]
    if then == "unsubscribes":
        assert len(payloads) < 10_000
    else:
        assert set(payloads) == set(range(10_000))
        assert len(payloads) == 10_000 or (then == "subscribes again" and len(payloads) < 20_000), "some twice"


async def test_clients_that_came_and_went_leave_nothing_in_what_all_share(world: World) -> None:
    shared = _intern(head_of(1, retain=True), persistent=True, facts=None)
    left = []
    for number in range(3):
        client = await world.client(f"passer-by-{number}")
        await client.send(publish("t", b"x", qos=1, packet_id=1, retain=True))
        await client.expect(puback(1))
        client.lose()
        left.append(len(shared.wire))
    assert left[0] == left[2]


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_a_subscriber_does_not_read_does_not_pile_up_for_it_and_it_is_served_meanwhile(
    world: World, qos: int
) -> None:
    await retain(world, *((f"t/{n}", b"x" * 200_000, 1) for n in range(20)))
    subscriber = await world.client("s")
    subscriber.outbox.writable = False
    with trio.fail_after(5):
        await subscriber.send(subscribe(1, ("#", qos)))
        await subscriber.send(b"\xc0\0")
    assert [first for first, _ in packets(subscriber.take())] == [0x90, 0xD0]
    queue = world.broker.topology.vhosts["/"].queues["mqtt.s"]
    assert queue.message_count == 4, "two pieces"
    subscriber.outbox.writable = True
    assert subscriber.outbox.on_writable is not None
    subscriber.outbox.on_writable()
    found = set[bytes]()
    with trio.fail_after(5):
        while len(found) < 20:
            await world.next_turn()
            found |= {body[: 2 + int.from_bytes(body[:2], "big")] for _, body in packets(subscriber.take())}


async def test_however_many_subscribe_at_once_all_others_have_their_turns_in_between(world: World) -> None:
    await retain(world, *((f"t/{n}", bytes(100_000), 1) for n in range(20)))
    subscribers = [await world.client(f"s{n}") for n in range(20)]
    most = 0
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for subscriber in subscribers:
                nursery.start_soon(subscriber.send, subscribe(1, ("#", 0)))
            while sum(left := [len(one.take()) for one in subscribers]) or nursery.child_tasks:
                most = max(most, sum(1 for size in left if size > 100_000))
                await trio.lowlevel.checkpoint()
    assert most == 1


@pytest.mark.parametrize(("limit", "owed"), [(0, 20), (1000, 4)])
async def test_what_a_session_is_owed_is_in_its_queue_before_its_client_reads_it(
    world: World, limit: int, owed: int
) -> None:
    await retain(world, *((f"t/{n}", b"x" * 200_000, 1) for n in range(20)))
    subscriber = await world.client("s", clean=False, config=MqttConfig(queued_messages_max=limit))
    subscriber.outbox.writable = False
    with trio.fail_after(5):
        await subscriber.send(subscribe(1, ("#", 1)))
        await wait_all_tasks_blocked()
    assert world.broker.topology.vhosts["/"].queues["mqtt.s"].message_count == owed


class Pages:
    """What brokers of a cluster keep together, in pages of one message; the sixth waits until it may come."""

    def __init__(self, broker: Broker) -> None:
        self.asked = self.rounds = 0
        self.retained = broker.retained
        self.sixth_may_come = trio.Event()

    async def all_told(self) -> None:
        self.rounds += 1
        await trio.lowlevel.checkpoint()

    async def pages(self, vhost: str, pattern: str, exchange: str) -> AsyncGenerator[list[Slab], None]:
        for name in self.retained.matching(vhost, pattern, "mqtt"):
            await trio.lowlevel.checkpoint()
            self.asked += 1
            if self.asked > 5:
                await self.sixth_may_come.wait()
            for piece in self.retained.pieces(vhost, [name], exchange):
                yield piece


async def test_a_cluster_is_asked_for_a_page_when_there_is_room_for_it_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is replaced while a client does not read would be given to it as it was, behind what it is now."""
    await retain(world, *((f"t/{n}", b"x" * 300_000, 1) for n in range(20)))
    subscriber, pages = await world.client("s"), Pages(world.broker)
    monkeypatch.setattr(world.broker, "keeping", pages)
    await subscriber.send(subscribe(1, ("$share/g/t", 0)))
    assert pages.rounds == 0, "nothing that is kept is asked for"
    subscriber.take()
    subscriber.outbox.writable = False
    await subscriber.send(subscribe(1, ("#", 0)))
    await wait_all_tasks_blocked()
    assert (pages.rounds, pages.asked) == (1, 2)
    await subscriber.send(unsubscribe(2, "#"))
    subscriber.outbox.writable = True
    assert subscriber.outbox.on_writable is not None
    subscriber.outbox.on_writable()
    await world.next_turn()
    with trio.fail_after(5):
        while sessions_of(world.broker).giving or len(world.broker.giving_out._waiting):
            await trio.sleep(0.01)
    assert pages.asked == 2, "nobody wants the rest"


async def test_nothing_more_is_given_out_when_the_client_has_unsubscribed_at_another_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await retain(world, *((f"t/{n}", b"x", 1) for n in range(100)))
    subscriber, pages = await world.client("s", clean=False), Pages(world.broker)
    monkeypatch.setattr(world.broker, "keeping", pages)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscriber.send, subscribe(1, ("#", 1)))
        while pages.asked < 6:
            await trio.lowlevel.checkpoint()
        await world.broker.unbind("queue", "mqtt.s", "amq.topic", "#", {"mqtt-qos": 1}, syntax="mqtt")
        pages.sixth_may_come.set()
    await wait_all_tasks_blocked()
    assert pages.asked == 6
    assert not sessions_of(world.broker).giving


async def test_who_does_not_read_for_long_is_looked_at_seldom_and_who_does_at_once(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        giving_out, looks, told = GivingOut(nursery.start_soon), list[float](), list[float]()

        async def wait(has_room: Callable[[], bool]) -> None:
            await giving_out.until(has_room)
            told.append(trio.current_time())

        began_s = trio.current_time()

        def reads_at_last() -> bool:
            looks.append(trio.current_time())
            return looks[-1] > began_s + 100

        nursery.start_soon(wait, reads_at_last)
        await trio.sleep(60)
        assert len(looks) < 60
        nursery.start_soon(wait, lambda: True)
        await trio.sleep(0.01)
        assert told == [pytest.approx(began_s + 60, abs=0.01)]
        await trio.sleep(50)
        assert len(told) == 2
