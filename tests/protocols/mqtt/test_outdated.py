"""Clients of a broker that etcd does not reach, which does not know what they have said elsewhere since."""

from __future__ import annotations

import pytest

from tests.protocols.mqtt.test_moved_clients import LEADER, Device, begun_5, subscribed, town
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5

SERVER_UNAVAILABLE = 0x88


@pytest.mark.parametrize("expiry_s", [0, 3600])
async def test_no_session_goes_on_where_its_subscriptions_are_not_known(expiry_s: int) -> None:
    """They might have other options by now: it would be sent at another QoS, or without its identifier."""
    async with town() as found:
        await subscribed(found, "device")
        node = found.nodes[LEADER]
        node.cluster.is_outdated = True
        for name in ("device", "new"):
            device = Device(node, name)
            await device.send(connect_5(name, block(session_expiry=expiry_s), flags=0))
            refused = expiry_s or name == "device"
            assert (await device.hears(0x20))[:2] == bytes((0, SERVER_UNAVAILABLE if refused else 0))
            assert device.closed == bool(refused)


async def test_no_publish_is_acknowledged_that_may_have_other_subscribers_by_now() -> None:
    async with town() as found:
        node = found.nodes[LEADER]
        device = await begun_5(node)
        node.cluster.is_outdated = True
        await device.send(publish_5("nobody/here", b"1", qos=1, packet_id=7))
        assert device.closed
        assert [head for head, _ in device.heard()] == [0xE0]
