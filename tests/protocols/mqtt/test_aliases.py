"""Topic aliases towards clients of MQTT 5 that take them."""

from __future__ import annotations

import pytest

from protocols.mqtt.adapter_aliases import Aliases
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.properties import encode_text, with_length
from protocols.mqtt.wire import DUP
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import PUBACK, acknowledge, delivery, opened, told
from tests.protocols.mqtt.wire import packets
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5, sized, subscribe_5

ALIASES = tuple(block(topic_alias=number) for number in range(40))
NONE = b""
LONG, OTHER, THIRD = "plant/line", "plant/door", "plant/roof"


async def test_a_topic_comes_with_its_alias_and_then_the_alias_alone(world: World) -> None:
    client, _ = await opened(world, "c", block(topic_alias_max=2))
    publisher, _ = await opened(world, "p")
    await client.send(subscribe_5(1, ("#", 2)))
    await told(client)
    for topic in (LONG, LONG, OTHER, THIRD, OTHER, THIRD):
        await publisher.send(publish_5(topic, b"x"))
    got = [delivery(one)[1:3] for one in await told(client, 6)]
    assert got == [
        (LONG, ALIASES[1]),
        ("", ALIASES[1]),
        (OTHER, ALIASES[2]),
        (THIRD, NONE),  # [MQTT-3.1.2-26] [MQTT-3.3.2-11]
        ("", ALIASES[2]),
        (THIRD, NONE),
    ]


@pytest.mark.parametrize("expiry", [0, 60])
async def test_all_qualities_share_the_aliases_of_a_connection(world: World, expiry: int) -> None:
    properties = block(topic_alias_max=9) + (block(session_expiry=expiry) if expiry else b"")
    client, _ = await opened(world, "c", properties)
    publisher, _ = await opened(world, "p")
    await client.send(subscribe_5(1, ("#", 2), properties=block(subscription_id=7)))
    await told(client)
    got = []
    for round_ in range(2):
        for qos in (1, 2, 0):
            sent = publish_5(f"{LONG}/{qos}", b"%d" % qos, block(("a", "b")), qos=qos, packet_id=1 + round_)
            await publisher.send(sent)
            got += await told(client)
    found = [(topic, one_block, payload) for _, topic, one_block, payload in map(delivery, got)]
    mine = block(("a", "b")) + block(subscription_id=7)
    # What waits for a commit gives no alias: what is sent meanwhile would come before.
    second = (f"{LONG}/2", mine, b"2") if expiry else ("", mine + ALIASES[2], b"2")
    assert found[0] == (f"{LONG}/1", mine + ALIASES[1], b"1")
    assert found[1] == (f"{LONG}/2", mine + (b"" if expiry else ALIASES[2]), b"2")
    assert found[2] == (f"{LONG}/0", mine + ALIASES[2 if expiry else 3], b"0")
    assert found[3:] == [("", mine + ALIASES[1], b"1"), second, ("", mine + ALIASES[2 if expiry else 3], b"0")]
    assert len({one[1][2 + one[1][1] : 4 + one[1][1]] for one in got if one[0] & 6}) == 4  # packet ids


async def test_who_announces_nothing_gets_no_aliases(world: World) -> None:
    plain, _ = await opened(world, "plain")
    none, _ = await opened(world, "none", block(topic_alias_max=0))
    off, _ = await opened(world, "off", block(topic_alias_max=9), config=MqttConfig(client_topic_alias_max=0))
    old = await world.client("old")
    taker, _ = await opened(world, "taker", block(topic_alias_max=9))
    for client in (plain, none, off, taker):
        await client.send(subscribe_5(1, ("#", 1)))
        await told(client)
    await old.subscribe(("#", 1))
    for packet_id in (1, 2):
        await taker.send(publish_5(LONG, b"x", qos=1, packet_id=packet_id))
        assert {PUBACK, 0x32} == {kind for kind, _ in await told(taker, 2)}
        for client in (plain, none, off):
            ((_, topic, found, _),) = map(delivery, await told(client))
            assert (topic, found) == (LONG, NONE)  # [MQTT-3.1.2-27]
        assert old.take_deliveries() == [(LONG, 1, packet_id, b"x")]


async def test_aliases_end_with_the_connection_and_what_comes_again_has_its_topic(world: World) -> None:
    properties = block(topic_alias_max=9, session_expiry=60)
    client, _ = await opened(world, "c", properties)
    await client.send(subscribe_5(1, ("#", 1)))
    await told(client)
    publisher, _ = await opened(world, "p")
    for packet_id in (1, 2):
        await publisher.send(publish_5(LONG, b"%d" % packet_id, qos=1, packet_id=packet_id))
    assert [delivery(one)[1] for one in await told(client, 2)] == [LONG, ""]
    client.lose()
    client = world.open()
    await client.send(connect_5("c", properties, flags=0))
    _, *again = await told(client, 3)
    assert [delivery(one)[:3] for one in again] == [
        (DUP | 2, LONG, ALIASES[1]),
        (DUP | 2, "", ALIASES[1]),
    ]
    await client.send(acknowledge(PUBACK, 1), acknowledge(PUBACK, 2))


async def test_retained_messages_have_aliases_too(world: World) -> None:
    publisher, _ = await opened(world, "p")
    await publisher.send(publish_5(LONG, b"x", retain=True))
    client, _ = await opened(world, "c", block(topic_alias_max=1))
    for _ in range(2):
        await client.send(subscribe_5(1, (LONG, 0)))
    got = [delivery(one) for one in await told(client, 4) if one[0] >> 4 == 3]
    assert got == [(1, LONG, ALIASES[1], b"x"), (1, "", ALIASES[1], b"x")]


def test_short_topics_get_none() -> None:
    aliases = Aliases(9, None)
    for topic in ("a", "a/b"):
        for _ in range(2):
            sent = aliases.encode([encode_text(topic)], [b"x"], 0, 0, b"\0")
            assert sent == publish_5(topic, b"x")


def test_no_packet_is_larger_than_the_client_takes() -> None:
    topic, body, properties = "t" * 20, b"x" * 60, block(("a", "b"))
    length = len(publish_5(topic, body, properties))
    for packet_bytes_max in range(length, length + 30):
        aliases = Aliases(9, packet_bytes_max)
        for _ in range(3):
            sent = aliases.encode([encode_text(topic)] * 2, [body] * 2, 0, 0, sized(properties))
            assert max(2 + len(one) for _, one in packets(sent)) <= packet_bytes_max  # [MQTT-3.1.2-24]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("aliases_max", [1, 2, 3])
@pytest.mark.parametrize("varied", [False, True])
def test_a_run_is_what_its_messages_are_one_by_one(qos: int, aliases_max: int, varied: bool) -> None:
    names = ["one/topic"] * 3 + ["two/topic"] * 2 + ["one/topic", "three/topic", "a", "a", "two/topic", "three/topic"]
    bodies = [b"%d" % number * number for number in range(len(names))]
    blocks = [with_length(block(("n", str(number % 3)))) for number in range(len(names))]
    given = blocks if varied else blocks[0]
    run = Aliases(aliases_max, None).encode(list(map(encode_text, names)), bodies, qos, 0, given, first_packet_id=5)
    known: dict[str, int] = {}
    expected = []
    for number, name in enumerate(names):
        more, topic = NONE, name
        if name in known:
            more, topic = ALIASES[known[name]], ""
        elif len(known) < aliases_max and len(name) > 3:
            known[name] = len(known) + 1
            more = ALIASES[known[name]]
        properties = block(("n", str(number % 3 if varied else 0))) + more
        expected.append(publish_5(topic, bodies[number], properties, qos=qos, packet_id=5 + number))
    assert run == b"".join(expected)


def test_what_waits_uses_what_there_is_and_gives_none() -> None:
    aliases, topic = Aliases(9, None), encode_text(LONG)
    waiting = {"first_packet_id": 1, "at_once": False}
    assert aliases.encode([topic], [b"x"], 2, 0, b"\0", **waiting) == publish_5(LONG, b"x", qos=2)  # type: ignore[arg-type]
    aliases.encode([topic], [b"x"], 0, 0, b"\0")
    expected = publish_5("", b"x", ALIASES[1], qos=2)
    assert aliases.encode([topic], [b"x"], 2, 0, b"\0", **waiting) == expected  # type: ignore[arg-type]
