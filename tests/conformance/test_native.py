"""The native clients against a broker in a process of its own, on a real disk."""

from __future__ import annotations

import pytest
import trio

from millrace import (
    BlockingClient,
    BlockingConsumer,
    BlockingProducer,
    Client,
    ConnectionLost,
    Consumer,
    LinkConfig,
    Producer,
    UnknownTopic,
)
from tests.support import BrokerProcess

TIMEOUT_S = 30
QUICK = LinkConfig(reconnect_backoff_ms=10, reconnect_backoff_ms_max=50)


def server_of(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.native_port}"


async def test_records_of_many_partitions(shared_broker: BrokerProcess) -> None:
    server = server_of(shared_broker)
    topic = "native-many-partitions"
    async with Client(server) as client:
        await client.create_topic(topic, partitions=4)
    async with Producer(server, compression="lz4") as producer:
        for number in range(20_000):
            await producer.send(topic, b"%d" % number, key=b"k%d" % (number % 97))
        await producer.flush()
    last: dict[bytes | None, int] = {}
    async with Consumer(server, "native-many", auto_offset_reset="earliest") as consumer:
        await consumer.assign(topic)
        with trio.fail_after(TIMEOUT_S):
            seen = 0
            while seen < 20_000:
                for record in await consumer.fetch():
                    assert record.value is not None
                    assert last.get(record.key, -1) < int(record.value)
                    last[record.key] = int(record.value)
                    seen += 1
        assert seen == 20_000
        await consumer.commit()
        assert sum((await consumer.committed()).values()) == 20_000
    async with Client(server) as client:
        await client.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            await client.describe_topic(topic)


def test_blocking_clients(shared_broker: BrokerProcess) -> None:
    server = server_of(shared_broker)
    with BlockingProducer(server) as producer:
        for number in range(1000):
            producer.send("native-blocking", b"%d" % number)
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign("native-blocking")
        values: list[bytes | None] = []
        while len(values) < 1000:
            values += [record.value for record in consumer.fetch()]
    assert values == [b"%d" % number for number in range(1000)]


async def test_kill_9_takes_back_nothing_that_was_acknowledged(broker: BrokerProcess) -> None:
    async with Producer(server_of(broker), batch_bytes=2000, retry_backoff_ms=10, link=QUICK) as producer:
        acknowledged: dict[int, int] = {}

        async def send_all() -> None:
            for number in range(3000):
                delivery = await producer.send("t", b"%d" % number)
                if number % 100 == 0:
                    acknowledged[number] = (await delivery).offset

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            with trio.fail_after(TIMEOUT_S):
                while len(acknowledged) < 5:
                    await trio.sleep(0.001)
            await trio.to_thread.run_sync(broker.kill9)
            before = dict(acknowledged)
            await trio.to_thread.run_sync(lambda: broker.start(same_ports=True))
        with trio.fail_after(TIMEOUT_S):
            await producer.flush()

    def values() -> list[bytes | None]:
        found: list[bytes | None] = []
        with BlockingConsumer(server_of(broker), auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            while batch := consumer.fetch(10_000, timeout_ms=100):
                found += [record.value for record in batch]
        return found

    stored = await trio.to_thread.run_sync(values)
    assert list(dict.fromkeys(stored)) == [b"%d" % number for number in range(3000)]
    for number, offset in before.items():
        assert stored[offset] == b"%d" % number


def test_a_broker_that_is_gone(broker: BrokerProcess) -> None:
    with BlockingClient(server_of(broker), timeout_s=5) as client:
        client.create_topic("t")
        broker.terminate()
        with pytest.raises(ConnectionLost):
            client.metadata()
        broker.start(same_ports=True)
        assert client.metadata() == {"t": [0]}
