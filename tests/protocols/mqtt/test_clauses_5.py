"""What MQTT 5 asks of a server, where no other test of this room does: `clauses` has the whole list."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.properties import encode_variable
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import PINGREQ, acknowledge, packet, packets, text
from tests.protocols.mqtt.wire_5 import (
    block,
    connect_5,
    disconnect_5,
    publish_5,
    sized,
    subscribe_5,
    unsubscribe_5,
)

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 0x90, 0xB0, 0xD0, 0xE0


async def told(client: Client, count: int = 1) -> list[tuple[int, bytes]]:
    """The next packets, once there are so many."""
    got: list[tuple[int, bytes]] = []
    with trio.fail_after(5):
        while True:
            got += packets(client.take())
            if len(got) >= count:
                return got
            await client.world.next_turn()


async def opened(world: World, client_id: str = "c1", properties: bytes = b"", **options: Any) -> tuple[Client, bytes]:
    """A client, and the body of its CONNACK."""
    config = options.pop("config", None)
    client = world.open(config=config)
    await client.send(connect_5(client_id, properties, **options))
    (kind, body), *more = await told(client)
    assert kind == CONNACK
    assert not more
    return client, body


def delivery(found: tuple[int, bytes]) -> tuple[int, str, bytes, bytes]:
    """Flags, topic, properties and payload of a PUBLISH; its packet id is left out."""
    first, body = found
    assert first & 0xF0 == PUBLISH
    at = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:at].decode()
    at += 2 if first & 6 else 0
    size = body[at]
    assert size < 128
    return first & 15, topic, body[at + 1 : at + 1 + size], body[at + 1 + size :]


@pytest.mark.parametrize("flags", [2, 0])
async def test_connack_comes_first_and_says_what_was_assigned(world: World, flags: int) -> None:
    client, body = await opened(world, "", flags=flags)
    assert body[:2] == b"\0\0"  # [MQTT-3.2.2-1] [MQTT-3.2.2-2]
    assert bytes((0x12,)) in body[2:]  # [MQTT-3.2.2-16] [MQTT-3.1.3-7]
    assert 0x1A not in body[2:4]  # [MQTT-3.1.2-28]
    await client.send(PINGREQ)
    assert await told(client) == [(PINGRESP, b"")]  # [MQTT-3.2.0-2]


async def test_sessions_are_there_until_they_expire(world: World) -> None:
    client, body = await opened(world, "s", block(session_expiry=60), flags=0)
    assert body[0] == 0  # [MQTT-3.1.2-6]
    await client.send(subscribe_5(1, ("a", 1)))
    await told(client)
    client.lose()
    client, body = await opened(world, "s", block(session_expiry=60), flags=0)
    assert body[0] == 1  # [MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-3.1.2-23]
    await client.send(disconnect_5(0, block(session_expiry=0)))
    client.lose()
    client, body = await opened(world, "s", block(session_expiry=60), flags=0)
    assert body[0] == 0  # [MQTT-4.1.0-2]
    await client.send(subscribe_5(1, ("a", 1)))
    assert (await told(client))[0][1][3:] == b"\1"  # the queue is not that of before, which goes
    await trio.testing.wait_all_tasks_blocked()
    assert not client.closed


async def test_clean_start_forgets_what_there_was(world: World) -> None:
    client, _ = await opened(world, "s", block(session_expiry=60))
    await client.send(subscribe_5(1, ("a", 1)))
    await told(client)
    client.lose()
    client, body = await opened(world, "s", block(session_expiry=60), flags=2)
    assert body[0] == 0  # [MQTT-3.1.2-4] [MQTT-3.2.2-2] [MQTT-3.1.4-4]
    await client.send(publish_5("a", b"x", qos=1))
    assert [kind for kind, _ in await told(client)] == [PUBACK]  # and no delivery


async def test_a_second_connection_is_the_clients_and_the_first_is_told(world: World) -> None:
    first, _ = await opened(world, "twin")
    await opened(world, "twin")
    assert await told(first) == [(DISCONNECT, b"\x8e")] or first.closed  # [MQTT-3.1.4-3]
    assert first.closed


@pytest.mark.parametrize("missing", [0, 1, 6])
async def test_a_client_that_takes_less_than_its_connack_is_told_that_alone(world: World, missing: int) -> None:
    _, body = await opened(world, "s", block(packet_bytes_max=100, session_expiry=60))
    most = 2 + len(body) - missing
    client = world.open()
    await client.send(connect_5("s", block(packet_bytes_max=most, session_expiry=60)))
    assert await told(client) == [(CONNACK, b"\0\x95\0" if missing else body)]  # [MQTT-3.1.2-24]
    assert client.closed == bool(missing)
    small = world.open()
    await small.send(connect_5("s", block(packet_bytes_max=4)))
    assert (small.take(), small.closed) == (b"", True)


async def test_a_refused_connect_is_the_end(world: World) -> None:
    client = world.open(peer="192.0.2.1:5000")
    await client.send(connect_5("c"), publish_5("a", b"x", qos=1))
    ((kind, body),) = await told(client)
    assert kind == CONNACK
    assert body[0] == 0  # [MQTT-3.2.2-6]
    assert body[1] in (0x86, 0x87)  # [MQTT-3.2.2-8]
    assert client.closed  # [MQTT-3.2.2-7] [MQTT-3.1.4-6]


async def test_every_filter_is_answered_in_its_place(world: World) -> None:
    client, _ = await opened(world, config=MqttConfig(topic_levels_max=3))
    await client.send(subscribe_5(0x1234, ("a", 0), ("a/b/c/d/e", 1), ("b", 1), ("c", 2)))
    ((kind, body),) = await told(client)
    assert (kind, body[:2]) == (SUBACK, b"\x12\x34")  # [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-2.2.1-6]
    codes = body[3:]  # [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1]
    assert (codes[0], codes[2], codes[3]) == (0, 1, 2)  # [MQTT-3.8.4-7] [MQTT-3.9.3-2]
    assert codes[1] >= 0x80
    await client.send(unsubscribe_5(0x4321, "A", "a", "b"))
    ((kind, body),) = await told(client)
    assert (kind, body[:2]) == (UNSUBACK, b"\x43\x21")  # [MQTT-3.10.4-4] [MQTT-3.10.4-5]
    assert body[3:] == b"\x11\0\0"  # [MQTT-3.10.4-1] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2]
    await client.send(publish_5("a", b"x"), publish_5("c", b"y"))
    ((_, body),) = await told(client)
    assert body.endswith(b"y")  # [MQTT-3.10.4-2]


async def test_properties_are_passed_on_unaltered_and_in_order(world: World) -> None:
    client, _ = await opened(world)
    await client.send(subscribe_5(1, ("a", 0)))
    await told(client)
    properties = block(("k", "1"), ("j", "2"), ("k", "3"), payload_format=1, content_type="t", response_topic="r/x",
                       correlation_data=b"\0\1")  # fmt: skip
    await client.send(publish_5("a", b"x", properties))
    (found,) = await told(client)
    # [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
    assert delivery(found) == (0, "a", properties, b"x")


async def test_an_alias_is_taken_up_to_the_limit_and_lasts_as_long_as_the_connection(world: World) -> None:
    client, body = await opened(world)
    at = body.index(b"\x22", 2)
    most = int.from_bytes(body[at + 1 : at + 3], "big")
    await client.send(subscribe_5(1, ("a/#", 0)))
    await told(client)
    await client.send(publish_5("a/1", b"x", block(topic_alias=1)), publish_5("a/2", b"y", block(topic_alias=most)))
    await client.send(publish_5("", b"z", block(topic_alias=most)))
    got = [delivery(found)[1] for found in await told(client, 3)]
    assert got == ["a/1", "a/2", "a/2"]  # [MQTT-3.3.2-12]
    client.lose()
    client, _ = await opened(world)
    await client.send(publish_5("", b"x", block(topic_alias=1)))
    (last,) = await told(client)
    assert last[0] == DISCONNECT  # [MQTT-3.3.2-7] [MQTT-4.13.1-1]
    assert client.closed


async def test_no_more_than_the_client_takes_is_under_way(world: World) -> None:
    client, _ = await opened(world, "few", block(receive_maximum=2))
    publisher, _ = await opened(world, "p")
    await client.send(subscribe_5(1, ("a", 2), ("b", 0)))
    await told(client)
    for number in range(1, 5):
        await publisher.send(publish_5("a", b"%d" % number, qos=1 + number % 2, packet_id=number))
    got = await told(client, 2)
    assert len(got) == 2  # [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]
    await client.send(PINGREQ)
    assert (PINGRESP, b"") in await told(client)  # [MQTT-3.3.4-10] [MQTT-4.9.0-3]
    kinds = {2: PUBREC, 1: PUBACK}
    first = got[0]
    qos = first[0] >> 1 & 3
    await client.send(acknowledge(kinds[qos], int.from_bytes(first[1][3:5], "big")))
    if qos == 2:
        assert (await told(client))[0][0] == PUBREL  # [MQTT-4.3.3-4]
        await client.send(acknowledge(PUBCOMP, int.from_bytes(first[1][3:5], "big")))
    assert len(await told(client)) == 1


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
async def test_a_publish_is_answered_by_its_quality(world: World, qos: int, kind: int) -> None:
    client, _ = await opened(world)
    await client.send(publish_5("a", b"x", qos=qos, packet_id=77))
    ((found, body),) = await told(client)
    assert (found, body[:2]) == (kind, b"\0\x4d")  # [MQTT-3.3.4-1] [MQTT-2.2.1-5] [MQTT-4.3.2-4] [MQTT-4.3.3-8]
    assert body[2:] in (b"", b"\0", b"\x10", b"\x10\0")  # [MQTT-3.4.2-1] [MQTT-3.5.2-1]
    if qos == 2:
        for _ in range(2):
            await client.send(acknowledge(PUBREL, 77))
            ((found, body),) = await told(client)
            assert (found, body[:2]) == (PUBCOMP, b"\0\x4d")  # [MQTT-4.3.3-11] [MQTT-3.7.2-1]


async def test_the_qos_of_a_delivery_is_the_smaller_and_dup_is_its_own(world: World) -> None:
    client, _ = await opened(world)
    await client.send(subscribe_5(1, ("zero", 0), ("one", 1), ("two", 2)))
    await told(client)
    for topic in ("zero", "one", "two"):
        await client.send(publish_5(topic, b"x", qos=2, packet_id=5, dup=True))
        got = [found for found in await told(client, 1) if found[0] & 0xF0 == PUBLISH]
        await client.send(acknowledge(PUBREL, 5))
        got += [found for found in await told(client, 1) if found[0] & 0xF0 == PUBLISH]
        flags = {"zero": 0, "one": 2, "two": 4}[topic]
        assert [delivery(found)[0] for found in got] == [flags]  # [MQTT-3.8.4-8] [MQTT-3.3.1-3] [MQTT-4.3.1-1]


async def test_filters_match_as_they_are_written(world: World) -> None:
    client, _ = await opened(world)
    await client.send(subscribe_5(1, ("#", 0), ("+/monitor", 0)))
    await told(client)
    await client.send(
        publish_5("$own/monitor", b"no"), publish_5("/a", b"1"), publish_5("a//b", b"2"), publish_5("A", b"3")
    )
    got = [delivery(found)[1] for found in await told(client, 3)]
    assert got == ["/a", "a//b", "A"]  # [MQTT-4.7.2-1] [MQTT-4.7.3-4] [MQTT-3.3.2-3] [MQTT-4.6.0-6]


async def test_messages_of_a_topic_keep_their_order(world: World) -> None:
    client, _ = await opened(world)
    publisher, _ = await opened(world, "p")
    await client.send(subscribe_5(1, ("a/#", 1)))
    await told(client)
    await publisher.send(*(publish_5(f"a/{n % 3}", b"%d" % n, qos=1, packet_id=n) for n in range(1, 200)))
    got = [int(delivery(found)[3]) for found in await told(client, 199)]
    assert got == list(range(1, 200))  # [MQTT-4.6.0-5]


async def test_after_disconnect_nothing_counts_and_the_will_is_void(world: World) -> None:
    watcher, _ = await opened(world, "w")
    await watcher.send(subscribe_5(1, ("will", 0), ("late", 0)))
    await told(watcher)
    for reason, comes in ((0, False), (4, True)):
        rest = sized(b"") + text("will") + text(b"gone")
        client, _ = await opened(world, f"mortal-{reason}", flags=6, rest=rest)
        await client.send(disconnect_5(reason), publish_5("late", b"x"))
        assert client.closed
        assert client.take() == b""  # [MQTT-3.14.4-1]
        client.lose()
        await watcher.send(PINGREQ)
        got = await told(watcher, 2 if comes else 1)
        assert [delivery(found)[1] for found in got if found[0] != PINGRESP] == ["will"] * comes  # [MQTT-3.14.4-3]


async def test_retained_messages_by_the_options_of_the_subscription(world: World) -> None:
    client, _ = await opened(world)
    await client.send(publish_5("r", b"old", retain=True), publish_5("r", b"kept", retain=True))
    await client.send(publish_5("r", b"live"))  # [MQTT-3.3.1-8]
    for handling, again in ((0, 1), (0x10, 0), (0x20, 0)):
        await client.send(subscribe_5(1, ("r", handling)))
        got = [found for found in await told(client) if found[0] != SUBACK]
        if again:
            got = got or await told(client)
            flags, _, _, body = delivery(got[0])
            assert (flags & 1, body) == (1, b"kept")  # [MQTT-3.3.1-5] [MQTT-3.3.1-9]
        else:
            assert not got  # [MQTT-3.3.1-10] [MQTT-3.3.1-11]
    await client.send(publish_5("r", b"", retain=True))
    await told(client)
    await client.send(unsubscribe_5(2, "r"), subscribe_5(3, ("r", 0)))
    assert [found[0] for found in await told(client, 2)] == [UNSUBACK, SUBACK]  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]


def test_lengths_are_as_short_as_they_can_be() -> None:
    # [MQTT-1.5.5-1]
    sizes = {0: 1, 127: 1, 128: 2, 16_383: 2, 16_384: 3, 2_097_151: 3, 2_097_152: 4, 268_435_455: 4}
    assert {number: len(encode_variable(number)) for number in sizes} == sizes


@pytest.mark.parametrize("ask", [subscribe_5, unsubscribe_5])
async def test_mqtt_3_1_2_24_who_asks_for_a_larger_answer_than_it_takes_is_closed(world: World, ask: Any) -> None:
    most, head = 50, len(packet(0x90, b"\0\1\0"))
    filters: list[Any] = [f"t/{number}" for number in range(most - head + 1)]
    requests = [(one, 1) for one in filters] if ask is subscribe_5 else filters
    client, _ = await opened(world, "c1", block(packet_bytes_max=most))
    await client.send(ask(1, *requests[1:]))
    ((_, body),) = await told(client)
    assert head + len(body) - 3 == most
    await client.send(ask(2, *requests))
    assert client.closed
    ((kind, body),) = packets(client.take())
    assert (kind, body[0]) == (DISCONNECT, 0x95)


async def test_no_local_leaves_out_ones_own_and_nobody_elses(world: World) -> None:
    first, _ = await opened(world, "first")
    second, _ = await opened(world, "second")
    for client in (first, second):
        await client.send(subscribe_5(1, ("a", 6)))
        await told(client)
    for number, (publisher, other) in enumerate([(first, second), (second, first)]):
        await publisher.send(publish_5("a", b"%d" % number, qos=1))
        assert [kind for kind, _ in await told(publisher)] == [PUBACK]  # [MQTT-3.8.3-3]
        assert [delivery(found)[3] for found in await told(other)] == [b"%d" % number]


@pytest.mark.parametrize("expiry_s", [0, 60])
@pytest.mark.parametrize("received", [False, True])
async def test_mqtt_4_3_3_4_a_puback_ends_no_exchange_at_qos_2(world: World, received: bool, expiry_s: int) -> None:
    properties = block(session_expiry=expiry_s) if expiry_s else b""
    client, _ = await opened(world, "s", properties)
    await client.send(subscribe_5(1, ("a", 2)))
    await told(client)
    publisher, _ = await opened(world, "p")
    await publisher.send(publish_5("a", b"1", qos=1, packet_id=1), publish_5("a", b"2", qos=2, packet_id=2))
    at_1, at_2 = [int.from_bytes(body[3:5], "big") for _, body in await told(client, 2)]
    await client.send(acknowledge(PUBACK, at_1))
    assert client.take() == b""
    if received:
        await client.send(acknowledge(PUBREC, at_2))
        assert await told(client) == [(PUBREL, at_2.to_bytes(2, "big"))]
    await client.send(acknowledge(PUBACK, at_2))
    ((kind, body),) = await told(client)
    assert (kind, body[0]) == (DISCONNECT, 0x82)
    assert client.adapter.closed
    client.lose()
    if expiry_s:  # and it is completed when the client is back
        client = world.open()
        await client.send(connect_5("s", properties, flags=0))
        again = await told(client, 2)
        assert again[1][0] == (PUBREL if received else PUBLISH | 0b1100)
        await client.send(*([] if received else [acknowledge(PUBREC, at_2)]), acknowledge(PUBCOMP, at_2))
        assert not client.adapter.closed
