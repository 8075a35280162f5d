"""Clients that connect while they are connected: there is room for them."""

from __future__ import annotations

from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.wire import connect


async def test_who_takes_over_needs_no_further_place_among_the_connections(world: World) -> None:
    await world.broker.set_vhost("/", limits={"max-connections": 2})
    one = await world.client("one")
    other = await world.client("other")
    again = await world.client("one")
    assert one.closed
    assert not other.closed
    third = world.open()
    await third.send(connect("third"))
    assert third.take() == b"\x20\x02\0\3"
    again.lose()
    await world.client("third")
