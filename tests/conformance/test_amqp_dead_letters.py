"""Dead letters, delivery limits and retries with pika; histories beside those of RabbitMQ."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conformance import histories
from tests.conformance.histories import connect, get
from tests.faults.wire_clients import MqttPublisher, Stream
from tests.support import BrokerProcess

Properties = pika.BasicProperties


@pytest.fixture
def channel(shared_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    connection = connect(shared_broker.amqp_port)
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def name() -> str:
    return f"letters.{uuid.uuid4().hex}"


def test_histories_are_those_of_rabbitmq(shared_broker: BrokerProcess) -> None:
    theirs, ours = histories.read_table(), histories.found_at(shared_broker.amqp_port)
    assert list(ours) == list(theirs)
    for scenario, expected in theirs.items():
        assert ours[scenario] == expected, scenario


def test_at_least_once_a_dead_letter_waits_for_a_queue(channel: BlockingChannel, name: str) -> None:
    terms = {
        "x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead",
    }  # fmt: skip
    channel.queue_declare(name, durable=True, arguments=terms)
    channel.basic_publish("", name, b"m", Properties(delivery_mode=2))
    method, _, _ = get(channel, name)
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare(f"{name}.dead", durable=True)
    assert get(channel, f"{name}.dead", auto_ack=True)[2] == b"m"


# --- what RabbitMQ has not ------------------------------------------------------------------------------------------


def test_a_retry_ladder_keeps_its_gaps_and_holds_nobody_up(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(f"{name}.dead", durable=True)
    channel.queue_declare(name, durable=True, arguments={"x-retry": [50, 150], "x-retry-then": f"{name}.dead"})
    arrivals: list[float] = []
    all_arrivals: list[float] = []

    def failing(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        all_arrivals.append(time.monotonic())
        if body == b"fails":
            assert (properties.headers or {}).get("x-delivery-count", 0) == len(arrivals)
            arrivals.append(all_arrivals[-1])
            channel.basic_nack(method.delivery_tag, requeue=len(arrivals) < 3)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, failing)
    channel.basic_publish("", name, b"fails", Properties(delivery_mode=2, headers={"h": 1}))
    deadline = time.monotonic() + 30
    while len(arrivals) < 3:
        channel.basic_publish("", name, b"works", Properties(delivery_mode=2))
        channel.connection.process_data_events(0.005)
        assert time.monotonic() < deadline
    assert len(all_arrivals) > 3
    silence_s = max(second - first for first, second in pairwise(all_arrivals))
    for gap_s, first, second in zip((0.05, 0.15), arrivals, arrivals[1:], strict=False):
        assert gap_s - 0.002 <= second - first < gap_s + 0.1 + silence_s, "it came as soon as anything did"
    _, properties, body = get(channel, f"{name}.dead", auto_ack=True)
    assert (body, properties.headers["h"]) == (b"fails", 1)
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)
    for queue in (name, f"{name}.dead"):
        channel.queue_delete(queue)


def test_duplicates_are_confirmed_and_dropped_after_a_kill_too(broker: BrokerProcess, name: str) -> None:
    def publish(channel: BlockingChannel, *ids: int) -> None:
        channel.confirm_delivery()
        for number in ids:
            channel.basic_publish(
                "", name, b"%d" % number, Properties(delivery_mode=2, message_id=f"id-{number}"), mandatory=True
            )

    connection = connect(broker.amqp_port)
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments={"x-deduplication-window-ms": 600_000})
    publish(channel, 1, 2, 2, 1, 3)
    broker.kill9()
    broker.start()
    connection = connect(broker.amqp_port)
    channel = connection.channel()
    publish(channel, 3, 1, 4)
    bodies = [get(channel, name, auto_ack=True)[2] for _ in range(4)]
    assert bodies == [b"1", b"2", b"3", b"4"]
    assert channel.basic_get(name) == (None, None, None)
    connection.close()


def test_an_mqtt_message_dies_with_a_history_too(shared_broker: BrokerProcess, name: str) -> None:
    connection = connect(shared_broker.amqp_port)
    channel = connection.channel()
    channel.queue_declare(f"{name}.dead", exclusive=True)
    channel.queue_declare(
        name, exclusive=True,
        arguments={"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"},
    )  # fmt: skip
    channel.queue_bind(name, "amq.topic", "letters.mqtt")
    stream = Stream(name)
    publisher = MqttPublisher(shared_broker.mqtt_port, stream, "letters/mqtt")
    publisher.run(iter((3,)))
    for _ in range(3):
        _, properties, _ = get(channel, f"{name}.dead", auto_ack=True)
        (death,) = properties.headers["x-death"]
        assert (death["reason"], death["routing-keys"], death["exchange"]) == ("expired", ["letters.mqtt"], "amq.topic")
        assert properties.delivery_mode == 2
    connection.close()
