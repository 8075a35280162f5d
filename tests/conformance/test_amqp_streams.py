"""Streams with pika and the native client: the same records by both doors (FEATURES B30 to B32)."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from millrace import BlockingClient, BlockingConsumer, BlockingProducer, ConsumerRecord
from tests.conformance.test_amqp_pika import connect
from tests.support import BrokerProcess, broker_process

STREAM = {"x-queue-type": "stream"}
TRACKING = "x-stream-automatic-offset-tracking"
TIMEOUT_S = 20


@pytest.fixture
def connection(shared_broker: BrokerProcess) -> Iterator[BlockingConnection]:
    connection = connect(shared_broker)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def name() -> str:
    return f"stream.{uuid.uuid4().hex}"


def declare(connection: BlockingConnection, name: str, **arguments: Any) -> BlockingChannel:
    """A channel that confirms, with a stream."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True, arguments=STREAM | arguments)
    return channel


def read(
    connection: BlockingConnection,
    name: str,
    count: int,
    offset: Any = "first",
    *,
    tag: str | None = None,
    prefetch: int = 100,
    arguments: Mapping[str, Any] | None = None,
    close: bool = True,
) -> list[tuple[Any, pika.BasicProperties, bytes]]:
    """The next `count` deliveries, acknowledged. `close` the channel only when there are no more: pika would give back
    what it has not handed out, which streams refuse.
    """
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    got: list[tuple[Any, pika.BasicProperties, bytes]] = []

    def take(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        got.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)

    asked = {"x-stream-offset": offset} if arguments is None else dict(arguments)
    channel.basic_consume(name, take, arguments=asked, **({} if tag is None else {"consumer_tag": tag}))
    deadline = time.monotonic() + TIMEOUT_S
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} deliveries"
        connection.process_data_events(0.1)
    if close:
        channel.queue_declare(name, passive=True)  # whatever else there is precedes the answer
        connection.process_data_events(0)
        channel.close()
    return got


def bodies(*arguments: Any, **options: Any) -> list[bytes]:
    return [body for _, _, body in read(*arguments, **options)]


def read_natively(server: str, topic: str, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline
            found += consumer.fetch(10_000)
    return found


def test_every_position(connection: BlockingConnection, name: str) -> None:
    channel = declare(connection, name)
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number)
    now = datetime.now(UTC)
    everything = [b"%d" % number for number in range(20)]
    for offset, expected in [
        ("first", everything),
        (0, everything),
        (7, everything[7:]),
        ("last", everything[-1:]),
        (-3, everything[-3:]),
        ("1h", everything),
        ("7D", everything),
        (now - timedelta(hours=1), everything),
        (now + timedelta(hours=1), []),
        ("next", []),
        (20, []),
    ]:
        assert bodies(connection, name, len(expected), offset) == expected, offset
    method, properties, _ = read(connection, name, 1, "last")[0]
    assert (method.exchange, method.routing_key, method.redelivered) == ("", name, False)
    assert properties.headers == {"x-stream-offset": 19}
    found = channel.queue_declare(name, passive=True).method
    assert (found.message_count, found.consumer_count) == (20, 0)
    assert bodies(connection, name, 0, arguments={}) == []


def test_only_what_is_marked_with_what_a_consumer_asks_for(connection: BlockingConnection, name: str) -> None:
    channel = declare(connection, name)
    for number in range(9):
        headers = {} if number % 3 == 0 else {"x-stream-filter-value": "one" if number % 3 == 1 else "two"}
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(headers=headers))
    for asked, expected in [
        ({"x-stream-filter": "one"}, [1, 4, 7]),
        ({"x-stream-filter": ["one", "two"]}, [1, 2, 4, 5, 7, 8]),
        ({"x-stream-filter": "two", "x-stream-match-unfiltered": True}, [0, 2, 3, 5, 6, 8]),
    ]:
        found = read(connection, name, len(expected), arguments={"x-stream-offset": "first"} | asked)
        assert [properties.headers["x-stream-offset"] for _, properties, _ in found] == expected
        assert [int(body) for _, _, body in found] == expected


def test_the_same_records_by_both_doors(
    connection: BlockingConnection, shared_broker: BrokerProcess, name: str
) -> None:
    rng = random.Random(3)
    channel = declare(connection, name)
    channel.queue_bind(name, "amq.topic", f"{name}.#")
    sent: list[tuple[str, str, dict[str, Any] | None, bytes, str]] = []
    for number in range(300):
        exchange, key = ("", name) if number % 2 else ("amq.topic", f"{name}.{rng.randint(0, 5)}")
        headers = {"number": number, "text": "täxt", "table": {"a": [1, True]}} if number % 3 else None
        sent.append((exchange, key, headers, rng.randbytes(rng.randint(0, 3000)), f"id-{number}"))
    for exchange, key, headers, body, identity in sent:
        properties = pika.BasicProperties(
            content_type="application/x", headers=headers, delivery_mode=1 + len(body) % 2, message_id=identity
        )
        channel.basic_publish(exchange, key, body, properties)
    server = f"127.0.0.1:{shared_broker.native_port}"
    records = read_natively(server, name, len(sent))
    deliveries = read(connection, name, len(sent))
    assert [record.offset for record in records] == list(range(len(sent)))
    for (exchange, key, headers, body, identity), record, (method, got, delivered) in zip(
        sent, records, deliveries, strict=True
    ):
        assert record.value == delivered == body
        assert record.key is not None
        assert (record.key.decode(), method.routing_key, method.exchange) == (key, key, exchange)
        own = dict(record.headers)
        assert own["millrace.message-id"] == identity.encode()
        if headers is not None:
            assert (own["number"], own["text"]) == (b"%d" % headers["number"], "täxt".encode())
        assert got.headers == (headers or {}) | {"x-stream-offset": record.offset}
        assert (got.message_id, got.content_type, got.delivery_mode) == (identity, "application/x", 1 + len(body) % 2)


def test_what_native_producers_append(connection: BlockingConnection, shared_broker: BrokerProcess, name: str) -> None:
    declare(connection, name)
    server = f"127.0.0.1:{shared_broker.native_port}"
    rng = random.Random(4)
    values = [rng.randbytes(rng.randint(0, 200)) for _ in range(1000)]
    with BlockingProducer(server, compression="lz4") as producer:
        for number, value in enumerate(values):
            headers = [("n", b"%d" % number), ("raw", b"\xff"), ("millrace.content-type", b"text/x")]
            producer.send(name, value, key=b"k%d" % (number % 7), headers=headers)
        producer.flush()
    deliveries = read(connection, name, 1000)
    assert [body for _, _, body in deliveries] == values
    for number, (method, properties, _) in enumerate(deliveries):
        assert method.routing_key == f"k{number % 7}"
        assert properties.content_type == "text/x"
        assert properties.headers == {"n": str(number), "raw": b"\xff", "x-stream-offset": number}


def test_a_native_topic_becomes_a_stream(
    connection: BlockingConnection, shared_broker: BrokerProcess, name: str
) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic(name)
        with BlockingProducer(server) as producer:
            producer.send(name, b"before")
            producer.flush()
        declare(connection, name).basic_publish("", name, b"after")
        assert bodies(connection, name, 2) == [b"before", b"after"]
        assert [record.value for record in read_natively(server, name, 2)] == [b"before", b"after"]
        connection.channel().queue_delete(name)
        assert name not in client.metadata()


def test_a_slow_consumer_slows_nobody_and_a_large_message_arrives(connection: BlockingConnection, name: str) -> None:
    channel = declare(connection, name)
    large = random.Random(5).randbytes(3 << 20)
    expected = [b"%06d" % number * 20 for number in range(2000)]
    plain = connection.channel()
    for body in expected:
        plain.basic_publish("", name, body)
    channel.basic_publish("", name, large)
    stuck = connection.channel()
    stuck.basic_qos(prefetch_count=1)
    held: list[bytes] = []
    stuck.basic_consume(name, lambda *delivery: held.append(delivery[3]), arguments={"x-stream-offset": 0})
    for prefetch in (50, 1000):
        assert bodies(connection, name, 2001, prefetch=prefetch) == [*expected, large]
    assert held == expected[:1]


def test_what_a_stream_takes_back(connection: BlockingConnection, shared_broker: BrokerProcess, name: str) -> None:
    declare(connection, name).basic_publish("", name, b"one")
    text = f"NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues queue '{name}' in vhost '/'"
    for refuse in ("basic_nack", "basic_reject"):
        other = connect(shared_broker)
        channel = other.channel()
        channel.basic_qos(prefetch_count=5)
        got: list[Any] = []
        channel.basic_consume(name, lambda *delivery: got.append(delivery), arguments={"x-stream-offset": 0})  # noqa: B023
        while not got:
            other.process_data_events(0.1)
        with pytest.raises(ConnectionClosedByBroker) as caught:  # noqa: PT012
            getattr(channel, refuse)(1)
            channel.queue_declare(name, passive=True)
        assert (caught.value.reply_code, caught.value.reply_text) == (540, text)
    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().basic_consume(name, print)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - consumer prefetch count is not set for 'queue '{name}' in vhost '/''"
    )


def test_retention_by_arguments(shared_broker: BrokerProcess, connection: BlockingConnection, name: str) -> None:
    declare(connection, name, **{"x-max-age": "1h", "x-max-length-bytes": 8 << 20})
    with BlockingClient(f"127.0.0.1:{shared_broker.native_port}") as client:
        config = client.describe_topic(name).config
    assert config["retention.ms"] == "3600000"
    assert config["retention.bytes"] == str(8 << 20)
    assert config["segment.bytes"] == str(1 << 20)


def test_positions_survive_kill_9(tmp_path: Path) -> None:
    tracked = {"x-stream-offset": None}
    with broker_process(tmp_path / "data") as broker:
        connection = connect(broker)
        channel = declare(connection, "s", **{"x-max-age": "7D"})
        expected = [b"%d" % number for number in range(30)]
        for body in expected:
            channel.basic_publish("", "s", body)
        assert bodies(connection, "s", 10, tag="mine", arguments=tracked, close=False)[:10] == expected[:10]
        reader = connection.channel()
        reader.basic_qos(prefetch_count=5)
        got: list[tuple[int, int]] = []

        def take(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            got.append((method.delivery_tag, int(body)))

        reader.basic_consume(
            "s", take, arguments={"x-stream-offset": "first", **{TRACKING: True}}, consumer_tag="other"
        )
        while len(got) < 5:
            connection.process_data_events(0.1)
        reader.basic_ack(3, multiple=True)
        while len(got) < 8:
            connection.process_data_events(0.1)
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
            group, place = "millrace.stream.other", ("s", 0)
            while client.committed_offsets(group, [place]) != {place: 3}:
                connection.process_data_events(0.01)
            while client.committed_offsets("millrace.stream.mine", [place]).get(place, 0) < 10:
                connection.process_data_events(0.01)
            client.commit_offsets("mark", {place: 0})  # what was noted before it is durable, too
        flood = [b"unconfirmed %d" % number for number in range(2000)]
        plain = connection.channel()
        for body in flood:
            plain.basic_publish("", "s", body)
        broker.kill9()
        broker.start()
        connection = connect(broker)
        channel = declare(connection, "s", **{"x-max-age": "7D"})
        there = channel.queue_declare("s", passive=True).method.message_count
        everything = [*expected, *flood[: there - 30]]
        found = read(connection, "s", there, prefetch=1000)
        assert [body for _, _, body in found] == everything
        assert [properties.headers["x-stream-offset"] for _, properties, _ in found] == list(range(there))
        (_, properties, body) = read(connection, "s", 1, tag="other", arguments={TRACKING: True}, close=False)[0]
        assert (properties.headers, body) == ({"x-stream-offset": 3}, b"3")
        (_, properties, _) = read(connection, "s", 1, tag="mine", arguments=tracked, close=False)[0]
        assert properties.headers["x-stream-offset"] >= 10
