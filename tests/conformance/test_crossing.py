"""What one protocol publishes and another receives, with its properties, for every ordered pair: see `docs/mqtt.md`.

One message with everything that its protocol can say goes through the exchange `amq.topic`, or a topic, and each of the
others is asked what it sees.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from pika.adapters.blocking_connection import BlockingChannel

from millrace import BlockingClient, BlockingConsumer, BlockingProducer
from tests.support import BrokerProcess, broker_process

HOST, WAIT_S = "127.0.0.1", 15
USER_PROPERTIES = [("site", "plant 7"), ("unit", "°C"), ("tag", "a"), ("tag", "b")]
HEADERS = {"site": "plant 7", "unit": "°C", "tag": ["a", "b"]}
RECORD_HEADERS = [("site", b"plant 7"), ("unit", "°C".encode()), ("tag", b"a"), ("tag", b"b")]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    doors = ("amqp", "mqtt", "native", "kafka")
    with broker_process(tmp_path_factory.mktemp("crossing") / "data", doors=doors) as process:
        yield process


@pytest.fixture
def name() -> str:
    """A level of topics that no other test uses."""
    return f"cross{next(_numbers)}"


class Device:
    """A client of MQTT 5; what it is sent is in `came`."""

    def __init__(self, client: paho.Client) -> None:
        self.client = client
        self.came: queue.Queue[paho.MQTTMessage] = queue.Queue()

    def publish(self, topic: str, body: bytes, properties: Properties | None = None, qos: int = 1) -> None:
        self.client.publish(topic, body, qos, properties=properties).wait_for_publish(WAIT_S)

    def next(self) -> paho.MQTTMessage:
        return self.came.get(timeout=WAIT_S)


@contextmanager
def device(broker: BrokerProcess, topic_filter: str = "") -> Iterator[Device]:
    """A connected device, subscribed at QoS 1."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    found, ready = Device(client), queue.Queue[Any]()
    client.on_message = lambda _client, _data, message: found.came.put(message)
    client.on_connect = lambda *arguments: ready.put(arguments[3])
    client.on_subscribe = lambda *_: ready.put(None)
    client.connect(HOST, broker.mqtt_port)
    client.loop_start()
    try:
        assert ready.get(timeout=WAIT_S) == "Success"
        if topic_filter:
            client.subscribe(topic_filter, options=SubscribeOptions(qos=1))
            ready.get(timeout=WAIT_S)
        yield found
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def amqp(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    """A channel with confirms."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        yield channel
    finally:
        connection.close()


def bound_queue(channel: BlockingChannel, pattern: str) -> str:
    """A queue of what is published by a pattern."""
    name: str = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(name, "amq.topic", pattern)
    return name


def got(channel: BlockingChannel, queue_name: str) -> tuple[Any, pika.BasicProperties, bytes]:
    """The next message of a queue."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        method, properties, body = channel.basic_get(queue_name, auto_ack=True)
        if method is not None:
            return method, properties, body
        time.sleep(0.02)
    raise AssertionError(f"nothing came to {queue_name}")


def bound_topic(broker: BrokerProcess, name: str, pattern: str, **config: str) -> None:
    """A topic of one partition with what is published by a pattern."""
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        client.create_topic(name, config={f"millrace.{key.replace('_', '.')}": value for key, value in config.items()})
        if pattern:
            client.bind_topic(name, "amq.topic", pattern)


def native_record(broker: BrokerProcess, topic: str) -> Any:
    """The first record, as the native client reads it."""
    with BlockingConsumer(f"{HOST}:{broker.native_port}", auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for record in consumer.fetch():
                return record
    raise AssertionError(f"no record in {topic}")


def kafka_record(broker: BrokerProcess, topic: str) -> Any:
    """The first record, as a client of Kafka's reads it."""
    kafka = pytest.importorskip("kafka")
    consumer = kafka.KafkaConsumer(bootstrap_servers=f"{HOST}:{broker.ports['kafka']}", enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            for records in consumer.poll(200).values():
                return records[0]
    finally:
        consumer.close()
    raise AssertionError(f"no record in {topic}")


def everything(**more: Any) -> Properties:
    """What a device can say of a message."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/json"
    properties.CorrelationData = b"\0\xffid"
    properties.ResponseTopic = "answers/7"
    properties.UserProperty = USER_PROPERTIES
    properties.PayloadFormatIndicator = 1
    for field, value in more.items():
        setattr(properties, field, value)
    return properties


def test_mqtt_to_mqtt(broker: BrokerProcess, name: str) -> None:
    with device(broker, f"{name}/#") as subscriber, device(broker) as publisher:
        publisher.publish(f"{name}/v1.2/x", b"body", everything(MessageExpiryInterval=3600))
        message = subscriber.next()
    assert (message.topic, message.payload, message.qos) == (f"{name}/v1.2/x", b"body", 1)
    seen = message.properties
    assert seen.UserProperty == USER_PROPERTIES
    assert (seen.ContentType, seen.CorrelationData, seen.ResponseTopic) == (
        "application/json",
        b"\0\xffid",
        "answers/7",
    )
    assert seen.PayloadFormatIndicator == 1
    assert 3590 <= seen.MessageExpiryInterval <= 3600


def test_mqtt_to_amqp(broker: BrokerProcess, name: str) -> None:
    with amqp(broker) as channel, device(broker) as publisher:
        bound = bound_queue(channel, f"{name}.#")
        publisher.publish(f"{name}/a.b/x", b"body", everything(MessageExpiryInterval=60))
        method, properties, body = got(channel, bound)
        publisher.publish(f"{name}/light", b"light", qos=0)
        _, light, _ = got(channel, bound)
    assert (method.exchange, method.routing_key, body) == ("amq.topic", f"{name}.a/b.x", b"body")
    assert {key: value for key, value in properties.headers.items() if not key.startswith("x-")} == HEADERS
    assert (properties.content_type, properties.reply_to, properties.delivery_mode) == (
        "application/json",
        "answers.7",
        2,
    )
    assert properties.correlation_id == b"\0\xffid"
    assert 0 < int(properties.expiration) <= 60_000
    assert light.delivery_mode in (None, 1)


def test_amqp_to_mqtt(broker: BrokerProcess, name: str) -> None:
    with amqp(broker) as channel, device(broker, f"{name}/#") as subscriber:
        properties = pika.BasicProperties(
            content_type="text/plain", headers={"site": "plant 7", "count": 3}, delivery_mode=2, correlation_id="id",
            reply_to="answers.7", expiration="60000", message_id="m-1", type="reading", app_id="app", timestamp=1234,
        )  # fmt: skip
        channel.basic_publish("amq.topic", f"{name}.x", b"body", properties)
        message = subscriber.next()
        channel.basic_publish("amq.topic", f"{name}.y", b"light")
        light = subscriber.next()
    assert (message.topic, message.payload, message.qos) == (f"{name}/x", b"body", 1)
    seen = message.properties
    assert (seen.ContentType, seen.CorrelationData, seen.ResponseTopic) == ("text/plain", b"id", "answers/7")
    assert 50 <= seen.MessageExpiryInterval <= 60
    pairs = dict(seen.UserProperty)
    assert (pairs["site"], pairs["count"]) == ("plant 7", "3")
    assert {"millrace.message-id", "millrace.type", "millrace.app-id", "millrace.timestamp-s"} <= set(pairs)
    assert pairs["millrace.message-id"] == "m-1"
    assert light.qos == 0


def test_what_went_through_amqp_comes_back_as_it_was(broker: BrokerProcess, name: str) -> None:
    """Moved by dead letters from a queue to an exchange, the message is the device's own."""
    with amqp(broker) as channel, device(broker, f"{name}/back") as subscriber, device(broker) as publisher:
        arguments = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": f"{name}.back"}
        held: str = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
        channel.queue_bind(held, "amq.topic", f"{name}.there")
        publisher.publish(f"{name}/there", b"body", everything())
        deadline = time.monotonic() + WAIT_S
        method = None
        while method is None and time.monotonic() < deadline:
            method, _, _ = channel.basic_get(held)
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
        message = subscriber.next()
    seen = message.properties
    assert (seen.ContentType, seen.CorrelationData, seen.ResponseTopic) == (
        "application/json",
        b"\0\xffid",
        "answers/7",
    )
    assert [pair for pair in seen.UserProperty if not pair[0].startswith("x-")] == USER_PROPERTIES


def test_a_user_id_that_nobody_has_checked_is_none(broker: BrokerProcess, name: str) -> None:
    """AMQP's is who has published; in a user property or a header anybody may write anything. A stream keeps both."""
    with amqp(broker) as channel, device(broker) as publisher:
        bound, stream = bound_queue(channel, f"{name}.#"), f"{name}.stream"
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(stream, "amq.topic", f"{name}.#")
        channel.basic_publish("amq.topic", f"{name}.x", b"amqp", pika.BasicProperties(user_id="guest"))
        publisher.publish(f"{name}/x", b"mqtt", everything(UserProperty=[("millrace.user-id", "root")]))
        found = [got(channel, bound) for _ in range(2)]
        with BlockingProducer(f"{HOST}:{broker.native_port}") as producer:
            producer.send(stream, b"native", headers=[("millrace.user-id", b"root")])
        channel.basic_qos(prefetch_count=10)
        for method, properties, body in channel.consume(stream, arguments={"x-stream-offset": "first"}):
            found.append((method, properties, body))
            channel.basic_ack(method.delivery_tag)
            if body == b"native":
                break
        channel.cancel()
        channel.queue_delete(stream)
    said = [
        (body, properties.user_id, (properties.headers or {}).get("millrace.user-id")) for _, properties, body in found
    ]
    both = [(b"amqp", "guest", None), (b"mqtt", None, "root")]
    assert said == [*both, *both, (b"native", None, "root")]


@pytest.mark.parametrize("read", [native_record, kafka_record])
def test_mqtt_to_records(broker: BrokerProcess, name: str, read: Any) -> None:
    bound_topic(broker, name, f"{name}.#")
    with device(broker) as publisher:
        publisher.publish(f"{name}/x", b"body", everything())
    record = read(broker, name)
    assert (record.key, record.value) == (f"{name}.x".encode(), b"body")
    own = [(key, bytes(value)) for key, value in record.headers if not key.startswith(("millrace.", "x-"))]
    assert own == RECORD_HEADERS
    typed = {key: bytes(value) for key, value in record.headers if key.startswith("millrace.")}
    assert typed["millrace.content-type"] == b"application/json"
    assert typed["millrace.correlation-id"] == b"\0\xffid"
    assert typed["millrace.reply-to"] == b"answers.7"


@pytest.mark.parametrize("read", [native_record, kafka_record])
def test_amqp_to_records(broker: BrokerProcess, name: str, read: Any) -> None:
    bound_topic(broker, name, f"{name}.#")
    with amqp(broker) as channel:
        properties = pika.BasicProperties(content_type="text/plain", headers={"site": "plant 7"}, correlation_id="id")
        channel.basic_publish("amq.topic", f"{name}.x", b"body", properties)
    record = read(broker, name)
    headers = {key: bytes(value) for key, value in record.headers}
    assert (record.key, record.value, headers["site"]) == (f"{name}.x".encode(), b"body", b"plant 7")
    assert (headers["millrace.content-type"], headers["millrace.correlation-id"]) == (b"text/plain", b"id")


@pytest.mark.parametrize("read", [native_record, kafka_record])
def test_what_is_too_old_for_one_door_is_seen_by_no_other(broker: BrokerProcess, name: str, read: Any) -> None:
    bound_topic(broker, name, f"{name}.#", expiry_enable="true")
    properties = Properties(PacketTypes.PUBLISH)
    properties.MessageExpiryInterval = 1
    with amqp(broker) as channel, device(broker) as one:
        channel.basic_publish("amq.topic", f"{name}.x", b"old", pika.BasicProperties(expiration="1000"))
        one.publish(f"{name}/x", b"old", properties)
        channel.basic_publish("amq.topic", f"{name}.x", b"lasts", pika.BasicProperties(expiration="600000"))
        time.sleep(1.1)
        assert read(broker, name).value == b"lasts"


def produce_native(broker: BrokerProcess, topic: str) -> None:
    """A record with a key and headers."""
    with BlockingProducer(f"{HOST}:{broker.native_port}") as producer:
        producer.send(topic, b"body", key=f"{topic}.x".encode(), headers=RECORD_HEADERS[:2])
        producer.flush()


def produce_kafka(broker: BrokerProcess, topic: str) -> None:
    """The same by a client of Kafka's."""
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=f"{HOST}:{broker.ports['kafka']}")
    producer.send(topic, b"body", key=f"{topic}.x".encode(), headers=RECORD_HEADERS[:2]).get(WAIT_S)
    producer.close()


@pytest.mark.parametrize(("produce", "read"), [(produce_native, kafka_record), (produce_kafka, native_record)])
def test_native_and_kafka_share_records(broker: BrokerProcess, name: str, produce: Any, read: Any) -> None:
    bound_topic(broker, name, "")
    produce(broker, name)
    record = read(broker, name)
    assert (record.key, record.value) == (f"{name}.x".encode(), b"body")
    assert [(key, bytes(value)) for key, value in record.headers] == RECORD_HEADERS[:2]


@pytest.mark.parametrize("produce", [produce_native, produce_kafka])
def test_records_to_amqp_and_to_mqtt(broker: BrokerProcess, name: str, produce: Any) -> None:
    """By a view, whose dead letters go to the exchange that devices subscribe to."""
    bound_topic(broker, name, "")
    with amqp(broker) as channel, device(broker, f"{name}/#") as subscriber:
        arguments = {"x-queue-type": "view", "x-view-topic": name, "x-dead-letter-exchange": "amq.topic"}
        channel.queue_declare(f"{name}.view", durable=True, arguments=arguments)
        produce(broker, name)
        deadline = time.monotonic() + WAIT_S
        method, properties, body = None, None, None
        while method is None and time.monotonic() < deadline:
            method, properties, body = channel.basic_get(f"{name}.view")
        assert method is not None
        assert properties is not None
        assert (method.routing_key, body) == (f"{name}.x", b"body")
        assert {key: properties.headers[key] for key in ("site", "unit")} == {"site": "plant 7", "unit": "°C"}
        channel.basic_reject(method.delivery_tag, requeue=False)
        message = subscriber.next()
    assert (message.topic, message.payload) == (f"{name}/x", b"body")
    pairs = dict(message.properties.UserProperty)
    assert (pairs["site"], pairs["unit"]) == ("plant 7", "°C")


def test_each_message_that_waited_has_its_own_expiry_over_amqp(broker: BrokerProcess, name: str) -> None:
    with amqp(broker) as channel, device(broker) as one:
        waits = bound_queue(channel, f"{name}.#")
        for expiry_s in (50, None, 600):
            properties = Properties(PacketTypes.PUBLISH)
            if expiry_s is not None:
                properties.MessageExpiryInterval = expiry_s
            one.publish(f"{name}/{expiry_s}", str(expiry_s).encode(), properties)
        came = [
            (body, properties.expiration)
            for _, (_, properties, body) in zip(range(3), channel.consume(waits, auto_ack=True), strict=False)
        ]
        assert came == [(b"50", "50000"), (b"None", None), (b"600", "600000")]
        channel.cancel()
