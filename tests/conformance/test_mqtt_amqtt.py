"""amqtt's client, an implementation independent of paho's, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from amqtt.client import MQTTClient
from amqtt.errors import ConnectError

from tests.support import BrokerProcess

WAIT_S = 10


@asynccontextmanager
async def connected(broker: BrokerProcess, client_id: str, user: str = "") -> AsyncIterator[MQTTClient]:
    """A connected client."""
    client = MQTTClient(client_id, config={"auto_reconnect": False})
    await client.connect(f"mqtt://{user}127.0.0.1:{broker.mqtt_port}/")
    try:
        yield client
    finally:
        await client.disconnect()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """amqtt is an asyncio library."""
    asyncio.run(asyncio.wait_for(scenario(), 4 * WAIT_S))


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_publish_and_subscribe(shared_broker: BrokerProcess, published: int, granted: int) -> None:
    topic = f"amqtt/{published}/{granted}"

    async def scenario() -> None:
        async with connected(shared_broker, topic) as client:
            assert await client.subscribe([(f"{topic}/#", granted), ("+/x", 0)]) == [granted, 0]
            for number in range(50):
                await client.publish(f"{topic}/n", b"%d" % number, qos=published)
            for number in range(50):
                message = await client.deliver_message(timeout_duration=WAIT_S)
                assert message is not None
                assert (message.topic, bytes(message.data)) == (f"{topic}/n", b"%d" % number)
                assert message.qos == min(published, granted)
            await client.unsubscribe([f"{topic}/#"])
            await client.ping()

    run(scenario)


def test_credentials(shared_broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connected(shared_broker, "amqtt-user", "guest:guest@"):
            pass
        with pytest.raises(ConnectError):
            async with connected(shared_broker, "amqtt-user", "guest:wrong@"):
                pass

    run(scenario)
