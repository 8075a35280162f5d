"""aio-pika against the broker: confirms on every channel, iterators, returns, robust connections."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import aio_pika
import pytest
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError
from aiormq.exceptions import ProbableAuthenticationError

from tests.support import BrokerProcess

Session = Callable[[aio_pika.abc.AbstractConnection, str], Awaitable[None]]


def run(broker: BrokerProcess, session: Session) -> None:
    """Run a program with a robust connection and a name of its own."""

    async def program() -> None:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
        async with await aio_pika.connect_robust(url) as connection:
            await session(connection, f"aio.{uuid.uuid4().hex}")

    asyncio.run(asyncio.wait_for(program(), 30))


def test_many_confirmed_publishes_at_once(shared_broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        messages = [aio_pika.Message(b"%d" % i, delivery_mode=2, message_id=str(i)) for i in range(500)]
        publish = channel.default_exchange.publish
        answers = await asyncio.gather(*(publish(message, name) for message in messages))
        assert {type(answer).__name__ for answer in answers} == {"Ack"}
        await channel.set_qos(prefetch_count=50)
        received = []
        async with queue.iterator() as iterator:
            async for message in iterator:
                async with message.process():
                    received.append((message.body, message.message_id))
                if len(received) == 500:
                    break
        assert received == [(b"%d" % i, str(i)) for i in range(500)]
        await queue.delete(if_empty=True)

    run(shared_broker, session)


def test_returned_messages_are_delivery_errors(shared_broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        with pytest.raises(DeliveryError) as caught:
            await channel.default_exchange.publish(aio_pika.Message(b"lost"), f"nowhere.{name}", mandatory=True)
        assert caught.value.message is not None

    run(shared_broker, session)


def test_rejected_messages_come_again(shared_broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue(name, exclusive=True)
        await queue.bind(exchange, "sensors.#")
        headers: dict[str, aio_pika.abc.HeadersType] = {"unit": "°C", "values": [1, 2.5, None], "nested": {"a": True}}  # type: ignore[dict-item]
        await exchange.publish(aio_pika.Message(b"21.5", headers=headers), "sensors.kitchen")  # type: ignore[arg-type]
        first = await queue.get()
        assert not first.redelivered
        assert first.headers == headers
        await first.reject(requeue=True)
        second = await queue.get()
        assert (second.redelivered, second.body, second.routing_key) == (True, b"21.5", "sensors.kitchen")
        await second.ack()
        assert await queue.get(fail=False) is None

    run(shared_broker, session)


def test_errors_close_the_channel_only(shared_broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel()
        with pytest.raises(ChannelNotFoundEntity, match="no queue"):
            await channel.declare_queue(name, passive=True)
        channel = await connection.channel()
        await channel.declare_queue(name, exclusive=True)
        with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'auto_delete'"):
            await channel.declare_queue(name, exclusive=True, auto_delete=True)
        assert (await (await connection.channel()).declare_queue(name, passive=True)).name == name

    run(shared_broker, session)


def test_a_large_message(shared_broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        body = bytes(range(256)) * 20_000
        await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
        assert (await queue.get(no_ack=True)).body == body

    run(shared_broker, session)


def test_a_wrong_password_is_refused(shared_broker: BrokerProcess) -> None:
    async def program() -> None:
        await aio_pika.connect(f"amqp://guest:wrong@127.0.0.1:{shared_broker.amqp_port}/")

    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        asyncio.run(program())


def test_a_robust_connection_outlives_the_broker(broker: BrokerProcess) -> None:
    async def session(connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                got.put_nowait(message.body)

        await queue.consume(on_message)
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())  # type: ignore[attr-defined]
        await asyncio.to_thread(broker.restart, same_ports=True)
        await back.wait()
        await channel.default_exchange.publish(aio_pika.Message(b"after", delivery_mode=2), name)
        assert await got.get() == b"after"

    async def program() -> None:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/?reconnect_interval=0.1"
        async with await aio_pika.connect_robust(url) as connection:
            await session(connection, f"aio.{uuid.uuid4().hex}")

    asyncio.run(asyncio.wait_for(program(), 30))
