"""Sessions that outlive their connections, and the exactly-once exchange, also over the death of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from core_log.memory_files import MemoryFiles
from protocols.mqtt.config import MqttConfig
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import connect, packet, packets, publish, subscribe
from tests.routing.harness import killed

PUBREC, PUBREL, PUBCOMP = 0x50, 0x62, 0x70


@asynccontextmanager
async def broker(files: MemoryFiles) -> AsyncIterator[World]:
    config = BrokerConfig(stripes=2, settle_delay_ms=0, housekeeping_interval_ms=3_600_000)
    async with open_broker(files, config, users={"guest": "guest"}) as running:
        yield World(running)


async def join(world: World, client_id: str, *, clean: bool = False, config: MqttConfig | None = None) -> Client:
    client = world.open(config=config)
    await client.send(connect(client_id, clean=clean))
    return client


async def told(client: Client, count: int) -> list[tuple[int, bytes]]:
    """The next packets, once there are so many."""
    got: list[tuple[int, bytes]] = []
    with trio.fail_after(5):
        while True:
            got += packets(client.take())
            if len(got) >= count:
                return got
            await client.world.next_turn()


async def present(client: Client) -> bool:
    found, *rest = await told(client, 1)
    client.outbox.pieces = [packet(*one) for one in rest]
    assert found[0] == 0x20
    assert found[1][1] == 0
    return bool(found[1][0])


def answer(kind: int, *packet_ids: int) -> bytes:
    return b"".join(bytes((kind, 2)) + packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def publishes(found: list[tuple[int, bytes]]) -> list[tuple[bool, int, int, bytes]]:
    """DUP, QoS, packet id and payload."""
    out = []
    for first, body in found:
        assert first & 0xF0 == 0x30
        stop = 2 + int.from_bytes(body[:2], "big")
        out.append((bool(first & 8), first >> 1 & 3, int.from_bytes(body[stop : stop + 2], "big"), body[stop + 2 :]))
    return out


@pytest.mark.parametrize("how", ["connected", "stop", "kill"])
async def test_mqtt_3_1_2_4_a_session_goes_on_until_a_clean_start(how: str) -> None:
    files = MemoryFiles()
    async with broker(files) as world:
        client = await join(world, "c")
        assert not await present(client)
        await client.send(subscribe(1, ("a/+", 1), ("b", 2)))
        await told(client, 1)
        client.lose()
        if how == "kill":
            files = killed(files)
        if how == "connected":
            await goes_on(world)
            return
    async with broker(files) as world:
        await goes_on(world)


async def goes_on(world: World) -> None:
    sender = await world.client("sender")
    await sender.send(publish("a/1", b"1", qos=1, packet_id=1), publish("b", b"2", qos=2, packet_id=2))
    await sender.send(publish("a/1", b"gone"))
    await told(sender, 2)
    client = await join(world, "c")
    assert await present(client)
    world.broker.end_turn()
    got = publishes(await told(client, 2))
    assert [(qos, payload) for _, qos, _, payload in got] == [(1, b"1"), (2, b"2")]
    clean = await join(world, "c", clean=True)
    assert client.closed
    assert not await present(clean)
    again = await join(world, "c")
    assert not await present(again)


async def test_mqtt_4_4_0_1_what_was_not_acknowledged_comes_again_with_the_same_ids() -> None:
    files = MemoryFiles()
    async with broker(files) as world:
        client = await join(world, "c")
        await client.send(subscribe(1, ("t", 2)))
        await told(client, 2)
        sender = await world.client("sender")
        await sender.send(*(publish("t", bytes((n,)), qos=1 + n % 2, packet_id=n + 1) for n in range(6)))
        first = publishes(await told(client, 6))
        by_payload = {payload: packet_id for _, _, packet_id, payload in first}
        await client.send(answer(0x40, by_payload[b"\0"]), answer(PUBREC, by_payload[b"\1"]))
        ((kind, body),) = await told(client, 1)
        assert (kind, body) == (PUBREL, by_payload[b"\1"].to_bytes(2, "big"))
        await trio.testing.wait_all_tasks_blocked()
        files = killed(files)
    async with broker(files) as world:
        client = await join(world, "c")
        world.broker.end_turn()
        _, release, *found = await told(client, 6)
        assert release == (PUBREL, by_payload[b"\1"].to_bytes(2, "big"))
        assert publishes(found) == [(True, *one[1:]) for one in sorted(first, key=lambda one: one[3])[2:]]
        await client.send(answer(PUBCOMP, by_payload[b"\1"]))
        client.lose()
        client = await join(world, "c")
        world.broker.end_turn()
        assert len(await told(client, 5)) == 5


async def test_an_exchange_at_qos_2_ends_though_another_broker_leads_the_queue_by_then() -> None:
    """What was not committed before that is told to the next leader; the connection stays."""

    async def send(client: Client, data: bytes) -> None:
        await client.adapter.handle(data)
        for is_led_elsewhere in (True, False):
            for home in homes:
                home.retired = is_led_elsewhere
            client.world.broker.end_turn()

    async with broker(MemoryFiles()) as world:
        homes = world.broker.topology.stripes
        reader, sender = await join(world, "reader"), await join(world, "sender")
        await reader.send(subscribe(1, ("t", 2)))
        await told(reader, 2)
        await sender.send(publish("t", b"a", qos=2, packet_id=7), publish("t", b"b", qos=2, packet_id=8))
        assert len(await told(sender, 3)) == 3
        ids = [packet_id for _, _, packet_id, _ in publishes(await told(reader, 2))]
        await send(sender, answer(PUBREL, 7))
        await sender.send(answer(PUBREL, 8))
        assert await told(sender, 2) == [(PUBCOMP, b"\0\7"), (PUBCOMP, b"\0\x08")]
        await send(reader, answer(PUBREC, ids[0]))
        await reader.send(answer(PUBREC, ids[1]))
        assert await told(reader, 2) == [(PUBREL, packet_id.to_bytes(2, "big")) for packet_id in ids]
        await reader.send(answer(PUBCOMP, *ids))
        for client, name in ((reader, "reader"), (sender, "sender")):
            assert not client.closed
            client.lose()
            again = await join(world, name)
            assert await present(again)
            world.broker.end_turn()
            assert not again.take()


async def test_mqtt_4_3_3_10_a_repeated_publish_is_answered_and_goes_nowhere() -> None:
    files = MemoryFiles()
    async with broker(files) as world:
        reader = await join(world, "reader")
        await reader.send(subscribe(1, ("t", 1)))
        live = await world.client("live")
        await live.subscribe(("t", 0))
        sender = await join(world, "sender")
        await sender.send(publish("t", b"a", qos=2, packet_id=7), publish("t", b"b", qos=2, packet_id=8))
        _, *answers = await told(sender, 3)
        assert answers == [(PUBREC, b"\0\7"), (PUBREC, b"\0\x08")]
        sender.lose()
        sender = await join(world, "sender")
        await sender.send(publish("t", b"a", qos=2, packet_id=7, dup=True), publish("t", b"c", qos=2, packet_id=9))
        _, *answers = await told(sender, 3)
        assert answers == [(PUBREC, b"\0\7"), (PUBREC, b"\0\x09")]
        await sender.send(answer(PUBREL, 8))
        assert await told(sender, 1) == [(PUBCOMP, b"\0\x08")]
        assert [payload for *_, payload in live.take_deliveries()] == [b"a", b"b", b"c"]
        files = killed(files)
    async with broker(files) as world:
        sender = await join(world, "sender")
        assert await present(sender)
        await sender.send(
            publish("t", b"a", qos=2, packet_id=7, dup=True),
            publish("t", b"c", qos=2, packet_id=9, dup=True),
            publish("t", b"d", qos=2, packet_id=8),
        )
        assert sorted(await told(sender, 3)) == [(PUBREC, b"\0\7"), (PUBREC, b"\0\x08"), (PUBREC, b"\0\x09")]
        await sender.send(answer(PUBREL, 7, 8, 9))
        assert len(await told(sender, 3)) == 3
        reader = await join(world, "reader")
        world.broker.end_turn()
        _, *found = await told(reader, 5)
        assert [payload for *_, payload in publishes(found)] == [b"a", b"b", b"c", b"d"]


async def test_a_publish_that_is_there_twice_in_one_read_is_not_answered_before_it_is_safe(world: World) -> None:
    sender, again = await join(world, "sender"), publish("t", b"a", qos=2, packet_id=5, dup=True)
    reader = await join(world, "reader")
    await reader.send(subscribe(1, ("t", 1)))
    assert len(await told(sender, 1)) == len(await told(reader, 2)) - 1
    await sender.adapter.handle(publish("t", b"a", qos=2, packet_id=5) + again)
    await sender.adapter.handle(again + publish("t", b"b", qos=2, packet_id=6))
    await sender.adapter.handle(again)
    assert sender.take() == b""
    world.broker.end_turn()
    assert sorted(await told(sender, 5)) == [(PUBREC, b"\0\5")] * 4 + [(PUBREC, b"\0\6")]
    assert [payload for *_, payload in publishes(await told(reader, 2))] == [b"a", b"b"]


async def test_what_could_not_be_stored_is_published_when_it_is_said_again() -> None:
    async with broker(MemoryFiles()) as world:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await world.broker.declare_queue("full", durable=True, arguments=full)
        await world.broker.bind("queue", "full", "amq.topic", "#")
        sender = await join(world, "sender")
        await sender.send(publish("t", b"a", qos=2, packet_id=1))
        assert (PUBREC, b"\0\1") in await told(sender, 2)
        await sender.send(publish("t", b"b", qos=2, packet_id=2))
        assert sender.closed
        sender.lose()
        await world.broker.delete_queue("full")
        reader = await join(world, "reader")
        await reader.send(subscribe(1, ("t", 1)))
        sender = await join(world, "sender")
        await sender.send(
            publish("t", b"a", qos=2, packet_id=1, dup=True), publish("t", b"b", qos=2, packet_id=2, dup=True)
        )
        _, *answers = await told(sender, 3)
        assert answers == [(PUBREC, b"\0\1"), (PUBREC, b"\0\2")]
        _, _, *found = await told(reader, 3)
        assert [payload for *_, payload in publishes(found)] == [b"b"]


@pytest.mark.parametrize("cleans", [(False, True), (True, False), (False, True, False), (True, True, False)], ids=str)
async def test_who_takes_over_a_connection_that_is_just_opening_its_session_has_one(cleans: tuple[bool, ...]) -> None:
    """However far the earlier connections have come, and whatever they wait for."""
    async with broker(MemoryFiles()) as world:
        publisher = await join(world, "p", clean=True)
        for pauses in range(2, 16):
            name, clients = f"c{pauses}", []
            if pauses % 2:
                (await join(world, name)).lose()
            async with trio.open_nursery() as nursery:
                for clean in cleans:
                    clients.append(client := world.open())
                    nursery.start_soon(client.send, connect(name, clean=clean) + subscribe(1, (name, 1)))
                    for _ in range(pauses):
                        await trio.lowlevel.checkpoint()
            (last,) = (one for one in clients if not one.closed)
            for client in clients:
                if client is not last:
                    client.lose()
            found = await told(last, 2)
            assert [(first, body[-1]) for first, body in found] == [(0x20, 0), (0x90, 1)]
            await publisher.send(publish(name, b"x", qos=1, packet_id=1))
            assert publishes(await told(last, 1))[0][3] == b"x"
            assert not last.closed


async def test_a_key_of_which_messages_were_received_at_qos_2_is_free_when_the_client_comes_back() -> None:
    """A policy for all queues has those of sessions group their messages as well."""
    async with broker(MemoryFiles()) as world:
        await world.broker.set_policy("all", "", {"group-by": "routing-key"}, apply_to="queues")
        publisher = await join(world, "p", clean=True)
        for again, body in enumerate((b"1", b"2")):
            client = await join(world, "c")
            assert await present(client) is bool(again)
            if not again:
                await client.send(subscribe(1, ("t", 2)))
                await told(client, 1)
            await publisher.send(publish("t", body, qos=2, packet_id=1 + again))
            ((_, _, packet_id, payload),) = publishes(await told(client, 1))
            assert payload == body
            await client.send(answer(PUBREC, packet_id))
            assert await told(client, 1) == [(PUBREL, packet_id.to_bytes(2, "big"))]
            await client.send(answer(PUBCOMP, packet_id))
            client.lose()


async def test_mqtt_3_3_4_9_the_window_counts_what_is_not_completed() -> None:
    async with broker(MemoryFiles()) as world:
        config = MqttConfig(inflight_messages_max=2)
        for client_id, clean in (("lasting", False), ("clean", True)):
            client = await join(world, client_id, clean=clean, config=config)
            await client.send(subscribe(1, (client_id, 2)))
            await told(client, 2)
            sender = await world.client("sender")
            await sender.send(*(publish(client_id, bytes((n,)), qos=2, packet_id=n + 1) for n in range(4)))
            await told(sender, 4)
            found = publishes(await told(client, 2))
            assert [payload for *_, payload in found] == [b"\0", b"\1"]
            await client.send(*(answer(PUBREC, packet_id) for _, _, packet_id, _ in found))
            assert [kind for kind, _ in await told(client, 2)] == [PUBREL, PUBREL]
            await client.send(answer(PUBCOMP, found[0][2]))
            assert [payload for *_, payload in publishes(await told(client, 1))] == [b"\2"]
            await client.send(answer(PUBCOMP, found[1][2]))
            assert [payload for *_, payload in publishes(await told(client, 1))] == [b"\3"]


async def test_what_is_kept_of_qos_0_follows_the_setting_when_the_client_comes_back() -> None:
    async with broker(MemoryFiles()) as world:
        sender = await world.client("sender")
        kept = []
        for offline_qos_0 in (False, True, False):
            config = MqttConfig(offline_qos_0=offline_qos_0)
            client = await join(world, "c", config=config)
            await client.send(subscribe(1, ("a", 1)))
            client.lose()
            await sender.send(publish("a", b"0"), publish("a", b"1", qos=1, packet_id=1))
            client = await join(world, "c", config=config)
            assert await present(client)
            kept.append([qos for _, qos, _, _ in publishes(await told(client, 1 + offline_qos_0))])
            await client.send(answer(0x40, *range(1, 10)))
            client.lose()
        assert kept == [[1], [0, 1], [1]]
