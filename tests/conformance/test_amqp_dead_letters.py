"""Dead letters, delivery limits and retries with pika; histories are compared with a real RabbitMQ if installed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pika.data
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from benchmarks.peers import rabbitmq, rabbitmq_installed
from tests.faults.wire_clients import MqttPublisher, Stream
from tests.support import BrokerProcess

Properties = pika.BasicProperties


def connect(port: int) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


@pytest.fixture
def channel(shared_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    connection = connect(shared_broker.amqp_port)
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def name() -> str:
    return f"letters.{uuid.uuid4().hex}"


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = False, wait_s: float = 5) -> tuple[Any, Any, bytes]:
    """The next message of a queue, waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, f"nothing in {queue}"
        time.sleep(0.01)


# --- beside RabbitMQ ---------------------------------------------------------------------------------------------


class Letters:
    """Runs scenarios against a broker; `found` has what arrived, as plain values that can be compared.

    Values of tables keep the letter of their type on the wire. Times only say whether they are about now.
    """

    def __init__(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[str, Any] = {}
        decode = pika.data.decode_value

        def with_type(encoded: bytes, offset: int) -> tuple[Any, int]:
            kind = encoded[offset : offset + 1].decode()
            value, end = decode(encoded, offset)
            if kind == "T":
                value = abs(value.timestamp() - time.time()) < 60
            return (value if kind in "FA" else (kind, value)), end

        monkeypatch.setattr(pika.data, "decode_value", with_type)
        self.connection = connect(port)
        self.channel = self.connection.channel()
        self.channel.exchange_declare("letters", "fanout")
        self.channel.exchange_declare("letters.in", "topic")
        self.channel.queue_declare("letters.dead", exclusive=True)
        self.channel.queue_bind("letters.dead", "letters")

    def queue(self, name: str, key: str = "", **arguments: Any) -> str:
        """Declare a queue of the scenarios."""
        arguments = {f"x-{part.replace('_', '-')}": value for part, value in arguments.items()}
        self.channel.queue_declare(
            name, durable="x-queue-type" in arguments, exclusive="x-queue-type" not in arguments, arguments=arguments
        )
        if key:
            self.channel.queue_bind(name, "letters.in", key)
        return name

    def arrived(self, scenario: str, queue: str = "letters.dead") -> None:
        """Note the next message of a queue."""
        method, properties, body = get(self.channel, queue, auto_ack=True)
        fields = {part: value for part, value in vars(properties).items() if value is not None}
        fields["headers"] = headers = dict(properties.headers or {})
        for part in ("queue", "reason", "exchange"):
            headers.pop(f"x-last-death-{part}", None)  # RabbitMQ 3.13 and later
        self.found[scenario] = [method.exchange, method.routing_key, method.redelivered, fields, body]

    def reject(self, queue: str) -> None:
        """Refuse the next message of a queue."""
        method, _, _ = get(self.channel, queue)
        self.channel.basic_reject(method.delivery_tag, requeue=False)


def scenarios(letters: Letters) -> None:
    """Everything that is compared."""
    channel, queue, arrived = letters.channel, letters.queue, letters.arrived
    queue("rejected", "k.#", dead_letter_exchange="letters")
    rich = Properties(
        content_type="text/plain", headers={"h": 1, "big": 1 << 40, "z": b"\xff", "t": {"x": [1, "y"]}, "CC": ["k.2"]},
        expiration="60000", message_id="m", priority=3, delivery_mode=2, timestamp=5, app_id="ap", user_id="guest",
        correlation_id="c", reply_to="r", type="t",
    )  # fmt: skip
    channel.basic_publish("letters.in", "k.1", b"rich", rich)
    letters.reject("rejected")
    arrived("rejected, with CC")
    queue("keyed", dead_letter_exchange="letters", dead_letter_routing_key="own")
    channel.basic_publish("", "keyed", b"keyed", Properties(headers={"CC": ["nowhere"]}))
    letters.reject("keyed")
    arrived("under another key")
    queue("short", dead_letter_exchange="letters", message_ttl=20)
    for scenario, properties in {
        "expired": Properties(),
        "expired by itself": Properties(expiration="5", headers={}),
        "no history": Properties(headers={"x-death": "text"}),
        "an odd history": Properties(headers={"x-death": [{"queue": "short", "reason": "expired", "count": 7}]}),
        "another history": Properties(headers={"x-death": [{"queue": "q", "reason": "expired", "n": 1 << 40}]}),
    }.items():
        channel.basic_publish("", "short", b"x", properties)
        arrived(scenario)
    queue("one", dead_letter_exchange="letters", max_length=1)
    channel.basic_publish("", "one", b"first")
    channel.basic_publish("", "one", b"second")
    arrived("too many")
    queue("there", dead_letter_exchange="", dead_letter_routing_key="back", message_ttl=20)
    queue("back", dead_letter_exchange="", dead_letter_routing_key="there")
    channel.basic_publish("", "back", b"round")
    for turn in range(3):
        letters.reject("back")
        time.sleep(0.05)
        method, properties, _ = get(channel, "back")
        letters.found[f"round {turn}"] = [properties.headers["x-death"], properties.headers["x-first-death-queue"]]
        channel.basic_nack(method.delivery_tag, requeue=True)
    queue("itself", dead_letter_exchange="", dead_letter_routing_key="itself", message_ttl=20)
    channel.basic_publish("", "itself", b"gone")
    queue("missing", dead_letter_exchange="letters.missing", message_ttl=20)
    channel.basic_publish("", "missing", b"gone")
    time.sleep(0.2)
    for dropped in ("itself", "missing"):
        letters.found[f"dropped by {dropped}"] = channel.queue_declare(dropped, passive=True).method.message_count
    queue("limited", dead_letter_exchange="letters", queue_type="quorum", delivery_limit=2)
    try:
        channel.basic_publish("", "limited", b"poison", Properties(headers={"h": 1}))
        for turn in range(3):
            method, properties, _ = get(channel, "limited")
            count = properties.headers.get("x-delivery-count", ("l", 0))
            letters.found[f"delivery {turn}"] = [method.redelivered, count, properties.headers["h"]]
            channel.basic_nack(method.delivery_tag, requeue=True)
        arrived("delivered too often")
    finally:
        channel.queue_delete("limited")


@pytest.mark.skipif(not rabbitmq_installed(), reason="RabbitMQ is not installed")
def test_histories_are_those_of_rabbitmq(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    with rabbitmq() as (port, _):
        for each in (port, shared_broker.amqp_port):
            with monkeypatch.context() as patch:
                letters = Letters(each, patch)
                scenarios(letters)
                found.append(letters.found)
                letters.channel.exchange_delete("letters")
                letters.channel.exchange_delete("letters.in")
                letters.connection.close()
    theirs, ours = found
    assert list(ours) == list(theirs)
    for scenario, expected in theirs.items():
        assert ours[scenario] == expected, scenario


# --- what RabbitMQ has not ------------------------------------------------------------------------------------------


def test_a_retry_ladder_keeps_its_gaps_and_holds_nobody_up(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(f"{name}.dead", durable=True)
    channel.queue_declare(name, durable=True, arguments={"x-retry": [50, 150], "x-retry-then": f"{name}.dead"})
    arrivals: list[float] = []
    others = 0

    def failing(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        nonlocal others
        if body == b"fails":
            assert (properties.headers or {}).get("x-delivery-count", 0) == len(arrivals)
            arrivals.append(time.monotonic())
            channel.basic_nack(method.delivery_tag, requeue=len(arrivals) < 3)
        else:
            others += 1
            channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, failing)
    channel.basic_publish("", name, b"fails", Properties(delivery_mode=2, headers={"h": 1}))
    deadline = time.monotonic() + 5
    while len(arrivals) < 3:
        channel.basic_publish("", name, b"works", Properties(delivery_mode=2))
        channel.connection.process_data_events(0.005)
        assert time.monotonic() < deadline
    assert others > 10
    for gap_s, first, second in zip((0.05, 0.15), arrivals, arrivals[1:], strict=False):
        assert gap_s - 0.002 <= second - first < gap_s + 0.1
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
