"""aiomqtt (paho beneath), gmqtt and amqtt's client, each with what applications do: publish, subscribe, be told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable

from tests.conformance.__main__ import Missing

COUNT, WAIT_S = 200, 20.0


def bodies() -> list[bytes]:
    """What is sent, in order."""
    return [b"%d" % number * (1 + number % 20) for number in range(COUNT)]


def run(scenario: Awaitable[str]) -> str:
    """Its result, in a bounded time."""

    async def bounded() -> str:
        return await asyncio.wait_for(scenario, 3 * WAIT_S)

    return asyncio.run(bounded())


async def aiomqtt(port: int, version: int, qos: int) -> str:
    """A subscriber that iterates over messages. Raises Missing."""
    try:
        import aiomqtt as library
    except ImportError as error:
        raise Missing(str(error)) from None
    topic = f"aiomqtt/{uuid.uuid4().hex}"
    protocol = {4: library.ProtocolVersion.V311, 5: library.ProtocolVersion.V5}[version]
    async with (
        library.Client("127.0.0.1", port, protocol=protocol) as subscriber,
        library.Client("127.0.0.1", port, protocol=protocol) as publisher,
    ):
        await subscriber.subscribe(f"{topic}/#", qos=qos)
        for body in bodies():
            await publisher.publish(f"{topic}/x", body, qos=qos)
        got: list[bytes] = []
        async for message in subscriber.messages:
            got.append(bytes(message.payload))  # type: ignore[arg-type]
            if len(got) == COUNT:
                break
    assert got == bodies()
    return f"{COUNT} messages, MQTT {version}, QoS {qos}"


async def gmqtt(port: int, version: int, qos: int) -> str:
    """Callbacks, and properties in version 5. Raises Missing."""
    try:
        import gmqtt as library
    except ImportError as error:
        raise Missing(str(error)) from None
    topic, got, done = f"gmqtt/{uuid.uuid4().hex}", [], asyncio.Event()
    told: list[dict[str, object]] = []
    subscribed = asyncio.Event()

    def on_message(_client: object, _topic: str, payload: bytes, _qos: int, properties: dict[str, object]) -> int:
        got.append(payload)
        told.append(properties)
        if len(got) == COUNT:
            done.set()
        return 0

    subscriber, publisher = library.Client(f"{topic}-s"), library.Client(f"{topic}-p")
    subscriber.on_message = on_message
    subscriber.on_subscribe = lambda *_: subscribed.set()
    for client in (subscriber, publisher):
        await client.connect("127.0.0.1", port, version=version)
    subscriber.subscribe(f"{topic}/#", qos=qos)
    await asyncio.wait_for(subscribed.wait(), WAIT_S)
    more = {"content_type": "text/plain", "user_property": [("a", "1"), ("a", "2")]} if version == 5 else {}
    for body in bodies():
        while True:
            try:
                publisher.publish(f"{topic}/x", body, qos=qos, **more)
                break
            except OverflowError:  # as many are under way as the broker takes
                await asyncio.sleep(0.01)
    await asyncio.wait_for(done.wait(), WAIT_S)
    for client in (subscriber, publisher):
        await client.disconnect()
    assert sorted(got) == sorted(bodies())
    if more:
        assert all(properties["content_type"] == ["text/plain"] for properties in told), told[0]
        assert all(properties["user_property"] == [("a", "1"), ("a", "2")] for properties in told), told[0]
    return f"{COUNT} messages, MQTT {version}, QoS {qos}"


async def amqtt(port: int, qos: int) -> str:
    """Over a WebSocket. Raises Missing."""
    try:
        from amqtt.client import MQTTClient
    except ImportError as error:
        raise Missing(str(error)) from None
    topic, client = f"amqtt/{uuid.uuid4().hex}", MQTTClient(config={"auto_reconnect": False})
    await client.connect(f"ws://127.0.0.1:{port}/mqtt")
    assert await client.subscribe([(f"{topic}/#", qos)]) == [qos]
    for body in bodies():
        await client.publish(f"{topic}/x", body, qos=qos)
    for body in bodies():
        message = await client.deliver_message(timeout_duration=WAIT_S)
        assert message is not None
        assert bytes(message.data) == body
    await client.disconnect()
    return f"{COUNT} messages over WebSocket, QoS {qos}"
