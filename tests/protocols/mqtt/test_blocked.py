"""What MQTT's publishers see while the broker is short of disk or memory."""

from __future__ import annotations

import pytest

from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import PINGRESP, PUBACK, PUBCOMP, PUBREC, PUBREL, delivery, opened, told
from tests.protocols.mqtt.test_refusals_5 import KINDS, QUOTA_EXCEEDED, RESUME, answers, subscribed
from tests.protocols.mqtt.wire import PINGREQ, acknowledge, publish
from tests.protocols.mqtt.wire_5 import block, publish_5


def block_publishers(world: World, memory_bytes_max: int = 1) -> None:
    """Have the broker be short of memory, or with 0 not any more."""
    alarms = world.broker.alarms
    alarms.memory_bytes_max, alarms.memory_bytes = memory_bytes_max, 2
    alarms.check()
    assert (world.broker.blocked is not None) is bool(memory_bytes_max)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry_s", [0, 60])
async def test_who_can_be_told_is_refused_and_read_on(world: World, qos: int, expiry_s: int) -> None:
    subscriber = await subscribed(world, ("#", 0))
    properties = block(session_expiry=expiry_s) if expiry_s else b""
    client, _ = await opened(world, "p", properties, flags=RESUME)
    assert await answers(client, publish_5("a", b"before", qos=qos, packet_id=9)) == [(KINDS[qos], 9, 0)]
    block_publishers(world)
    sent = [publish_5(topic, b"x", qos=qos, packet_id=at) for at, topic in enumerate("abc", 1)]
    assert await answers(client, *sent) == [(KINDS[qos], at, QUOTA_EXCEEDED) for at in (1, 2, 3)]
    assert client.adapter.left is None
    if qos == 2:  # what was taken before is that still, and its exchange comes to its end
        assert await answers(client, publish_5("a", b"before", qos=2, packet_id=9)) == [(PUBREC, 9, 0)]
        await client.send(acknowledge(PUBREL, 9))
        assert [kind for kind, _ in await told(client, 1)] == [PUBCOMP]
    block_publishers(world, 0)
    assert await answers(client, publish_5("a", b"after", qos=qos, packet_id=1)) == [(KINDS[qos], 1, 0)]
    assert [delivery(one)[3] for one in await told(subscriber, 2)] == [b"before", b"after"]


@pytest.mark.parametrize("version", [4, 5])
async def test_who_cannot_be_told_is_not_read_from(world: World, version: int) -> None:
    subscriber = await subscribed(world, ("#", 0))
    if version == 5:
        client, _ = await opened(world, "p")
        sent, acknowledged = (publish_5("a", b"1"), publish_5("a", b"2", qos=1, packet_id=1)), 1
    else:
        client = await world.client("p")
        sent, acknowledged = [publish("a", b"%d" % at, qos=1, packet_id=at) for at in (1, 2)], 2
    block_publishers(world)
    await client.send(PINGREQ, *sent, PINGREQ)
    assert await told(client) == [(PINGRESP, b"")]
    left, client.adapter.left = client.adapter.left, None
    assert client.adapter.published
    assert left is not None
    block_publishers(world, 0)
    await left()
    world.broker.end_turn()
    assert client.adapter.left is None
    assert [delivery(one)[3] for one in await told(subscriber, 2)] == [b"1", b"2"]
    answers = [kind for kind, _ in await told(client, acknowledged + 1)]
    assert sorted(answers) == [PUBACK] * acknowledged + [PINGRESP]
