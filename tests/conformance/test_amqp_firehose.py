"""RabbitMQ's firehose with pika: what `amq.rabbitmq.trace` gets while tracing is on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from millrace import BlockingClient
from tests.support import BrokerProcess, broker_process

TRACE = "amq.rabbitmq.trace"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(Path(tmp_path_factory.mktemp("firehose"), "data"), doors=("amqp", "mqtt", "native")) as process:
        yield process


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    with BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        yield connection.channel(3)


def trace(broker: BrokerProcess, on: bool) -> None:
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        client.administer("vhosts.trace", name="/", on=on)


def drained(channel: BlockingChannel, queue: str) -> list[tuple[str, bytes, dict[str, Any]]]:
    """Key, body and headers of everything in a queue."""
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        assert method.exchange == TRACE
        found.append((method.routing_key, body, properties.headers))


def test_copies_have_what_rabbitmq_tells(broker: BrokerProcess, channel: BlockingChannel) -> None:
    watch = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(watch, TRACE, "#")
    for queue in ("q", "q2"):
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, "amq.fanout")
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1, "CC": ["c1"]}, delivery_mode=2, priority=3, correlation_id="x",
        message_id="m", timestamp=1234, app_id="app", expiration="60000",
    )  # fmt: skip
    channel.basic_publish("amq.fanout", "k", b"unseen", properties)
    channel.basic_get("q", auto_ack=True)
    channel.queue_purge("q2")
    trace(broker, on=True)
    channel.basic_publish("amq.fanout", "k", b"body", properties)
    channel.basic_publish("", "nowhere", b"lost")
    channel.basic_get("q", auto_ack=True)
    method, _, _ = next(channel.consume("q2"))
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, _ = next(channel.consume("q2"))
    channel.basic_ack(method.delivery_tag)
    channel.cancel()
    trace(broker, on=False)
    channel.basic_publish("", "nowhere", b"unseen")
    found = drained(channel, watch)
    keys = ["publish.amq.fanout", "publish.", "deliver.q", "deliver.q2", "deliver.q2"]
    assert [key for key, _, _ in found] == keys
    assert [body for _, body, _ in found] == [b"body", b"lost", b"body", b"body", b"body"]
    published, lost, got, _, again = [headers for _, _, headers in found]
    # As RabbitMQ 3.10 was seen to write it, but for the names of the node and the connection.
    common = {
        "exchange_name": "amq.fanout",
        "routing_keys": ["k", "c1"],
        "properties": {
            "app_id": "app", "timestamp": 1234, "message_id": "m", "expiration": "60000", "correlation_id": "x",
            "priority": 3, "delivery_mode": 2, "headers": {"a": 1, "CC": ["c1"]}, "content_type": "text/plain",
        },
        "vhost": "/", "channel": 3, "user": "guest", "node": published["node"], "connection": published["connection"],
    }  # fmt: skip
    assert published == common | {"routed_queues": ["q", "q2"]}
    assert got == common | {"redelivered": 0}
    assert again == common | {"redelivered": 1}
    assert (lost["exchange_name"], lost["routing_keys"], lost["properties"]) == ("", ["nowhere"], {})
    assert published["connection"].startswith("127.0.0.1:")
    channel.queue_unbind("q2", "amq.fanout")


def test_streams_transactions_and_who_watches_only_one_queue(broker: BrokerProcess, channel: BlockingChannel) -> None:
    watch = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(watch, TRACE, "publish.")
    channel.queue_bind(watch, TRACE, "deliver.s.#")
    channel.queue_declare("s.traced", durable=True, arguments={"x-queue-type": "stream"})
    trace(broker, on=True)
    channel.tx_select()
    channel.basic_publish("", "s.traced", b"undone")
    channel.tx_rollback()
    channel.basic_publish("", "s.traced", b"one")
    channel.basic_publish("", "s.traced", b"two")
    channel.tx_commit()
    channel.basic_qos(prefetch_count=10)
    reader = channel.consume("s.traced", arguments={"x-stream-offset": "first"})
    assert [next(reader)[2] for _ in range(2)] == [b"one", b"two"]
    trace(broker, on=False)
    channel.cancel()
    other = channel.connection.channel()
    found = [(key, body) for key, body, _ in drained(other, watch)]
    assert sorted(found) == [
        ("deliver.s.traced", b"one"), ("deliver.s.traced", b"two"), ("publish.", b"one"), ("publish.", b"two"),
    ]  # fmt: skip
    other.queue_delete("s.traced")
