"""A SUBSCRIBE or UNSUBSCRIBE of many filters is one change of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions
from protocols.mqtt.reasons import ReasonCode
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import SUBACK, UNSUBACK, opened, told
from tests.protocols.mqtt.wire_5 import block, subscribe_5, unsubscribe_5

FILTERS = [f"site/{number}/+" for number in range(300)]
RESUME = 0
LASTS = block(session_expiry=3600)


def _changes(world: World) -> list[None]:
    """One for each change of the catalog from now on."""
    seen: list[None] = []
    world.broker.topology.catalog.applied.append(lambda: seen.append(None))
    return seen


async def _answered(world: World, client_id: str, *packets: bytes) -> list[bytes]:
    client, _ = await opened(world, client_id, LASTS, flags=RESUME)
    await client.send(*packets)
    answers = [body[3:] for kind, body in await told(client) if kind in (SUBACK, UNSUBACK)]
    client.lose()
    return answers


async def test_many_filters_of_a_session_that_lasts_are_written_together(world: World) -> None:
    client, _ = await opened(world, "s", LASTS, flags=RESUME)
    changes = _changes(world)
    for options, known in ((1, False), (1, True), (2, True)):
        await client.send(subscribe_5(1, *((one, options) for one in FILTERS)))
        ((kind, body),) = await told(client)
        assert (kind, set(body[3:]), len(body) - 3) == (SUBACK, {options}, len(FILTERS))
        assert len(changes) == (0 if known and options == 1 else 1)
        changes.clear()
    assert set(client.adapter.subscribing.granted.values()) == {SubscriptionOptions(2)}
    assert len(world.broker.topology.vhost("/").bindings_to["queue", "mqtt.s"]) == len(FILTERS)
    await client.send(unsubscribe_5(2, *FILTERS, "nobody/has", FILTERS[0]))
    ((kind, body),) = await told(client)
    absent = ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert (kind, list(body[3:])) == (UNSUBACK, [0] * len(FILTERS) + [absent, absent])
    assert len(changes) == 1
    assert ("queue", "mqtt.s") not in world.broker.topology.vhost("/").bindings_to


async def test_of_a_filter_that_comes_twice_in_one_packet_the_last_options_count(world: World) -> None:
    twice = subscribe_5(1, ("a/b", 0), ("a/b", 2), ("$exclusive/a/b", 1))
    assert await _answered(world, "s", twice) == [b"\0\2\1"]
    (binding,) = [
        one for one in world.broker.topology.vhost("/").bindings_to["queue", "mqtt.s"] if one.exchange == "amq.topic"
    ]
    assert binding.arguments == {"mqtt-qos": 1}


@pytest.mark.parametrize("room", [0, 1, 5, 7])
async def test_as_many_filters_are_granted_as_there_is_room_for(room: int) -> None:
    async with open_broker(MemoryFiles(), users={"guest": "guest"}, config=BrokerConfig(bindings_max=room)) as broker:
        world = World(broker)
        asked = subscribe_5(1, *((one, 1) for one in FILTERS[:7]))
        refused = ReasonCode.QUOTA_EXCEEDED
        assert await _answered(world, "s", asked) == [bytes([1] * room + [refused] * (7 - room))]
        assert len(world.broker.topology.vhost("/").bindings_to.get(("queue", "mqtt.s"), ())) == room


async def test_groups_of_one_packet_are_joined_and_left_at_once(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    waiting = most = 0
    change = world.broker.topology.catalog.change

    async def counted(*args: Any, **options: Any) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await change(*args, **options)
        waiting -= 1

    monkeypatch.setattr(world.broker.topology.catalog, "change", counted)
    groups = [f"$share/g{number}/a" for number in range(100)]
    asked = [(one, 1) for one in (*groups, "b", "$share/g/$exclusive/a")]
    client, _ = await opened(world, "s", LASTS, flags=RESUME)
    await client.send(subscribe_5(1, *asked, (groups[0], 0)))
    ((kind, body),) = await told(client)
    assert (kind, body[3:]) == (SUBACK, b"\1" * 101 + b"\x8f\0")
    assert most == len(groups), "they share the writes of the catalog"
    granted = client.adapter.subscribing.granted
    assert granted.keys() == {*groups, "b"}
    assert [granted[one].qos for one in groups] == [0] + [1] * 99
    bindings = world.broker.topology.vhost("/").bindings_to["queue", "mqtt.s"]
    assert {one.pattern for one in bindings} == {*groups, "b"}

    most = 0
    await client.send(unsubscribe_5(2, *groups, "$share/g/none", groups[0], "b"))
    ((kind, body),) = await told(client)
    assert (kind, body[3:]) == (UNSUBACK, bytes(100) + b"\x11\x11\0")
    assert most == len(groups)
    assert not client.adapter.subscribing.granted
    assert ("queue", "mqtt.s") not in world.broker.topology.vhost("/").bindings_to
