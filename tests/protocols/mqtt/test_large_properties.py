"""Properties that are far larger than any message may be."""

from __future__ import annotations

from core_log.memory_files import MemoryFiles
from protocols.mqtt.config import MqttConfig
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import PUBACK, told
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5


async def test_what_is_too_large_to_be_retained_is_refused() -> None:
    """It was delivered first, and then the connection ended."""
    async with open_broker(MemoryFiles(), BrokerConfig(message_bytes_max=1000), users={"guest": "guest"}) as broker:
        world = World(broker)
        watcher = await world.client("w")
        await watcher.subscribe(("t", 0))
        client = world.open(config=MqttConfig(packet_bytes_max=64 << 20))
        await client.send(connect_5("p"))
        await told(client, 1)
        properties = block(("k", "v" * 65_000)) * 600
        await client.send(publish_5("t", b"x", properties, qos=1, packet_id=7, retain=True))
        assert await told(client, 1) == [(PUBACK, b"\0\7\x97")]
        assert watcher.take() == b""
        await client.send(publish_5("t", b"x", properties, retain=True))
        assert watcher.take_deliveries() == [("t", 0, None, b"x")]
        assert (broker.retained.count, broker.retained.refused) == (0, 2)
        assert not client.closed
