"""paho-mqtt, the client most devices use, against a real broker. Each wait is for an event, never for a time."""

from __future__ import annotations

import itertools
import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.support import BrokerProcess

HOST, WAIT_S = "127.0.0.1", 10
_names = itertools.count(1)


class Device:
    """A paho client whose callbacks fill queues."""

    def __init__(self, client_id: str = "", **options: Any) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connects: queue.Queue[ReasonCode] = queue.Queue()
        self.disconnects: queue.Queue[ReasonCode] = queue.Queue()
        self.grants: queue.Queue[list[ReasonCode]] = queue.Queue()
        self.removals: queue.Queue[int] = queue.Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, **options)
        self.client.max_inflight_messages_set(200)
        self.client.on_connect = lambda client, data, flags, code, properties: self.connects.put(code)
        self.client.on_disconnect = lambda client, data, flags, code, properties: self.disconnects.put(code)
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_subscribe = lambda client, data, mid, codes, properties: self.grants.put(codes)
        self.client.on_unsubscribe = lambda client, data, mid, codes, properties: self.removals.put(mid)

    def subscribe(self, *requests: tuple[str, int]) -> list[int]:
        """The granted QoS of each."""
        self.client.subscribe(list(requests))
        return [code.value for code in self.grants.get(timeout=WAIT_S)]

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> None:
        """Publish and wait for the PUBACK, if there is one to come."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(WAIT_S)

    def next(self) -> tuple[str, bytes, int]:
        message = self.messages.get(timeout=WAIT_S)
        assert not message.retain
        assert not message.dup
        return message.topic, message.payload, message.qos


@contextmanager
def connected(broker: BrokerProcess, device: Device | None = None, keep_alive_s: int = 60) -> Iterator[Device]:
    """A connected device whose network loop runs."""
    device = device or Device()
    device.client.connect(HOST, broker.mqtt_port, keep_alive_s)
    device.client.loop_start()
    try:
        assert device.connects.get(timeout=WAIT_S) == "Success"
        yield device
    finally:
        device.client.disconnect()
        device.client.loop_stop()


@pytest.fixture
def topic() -> str:
    """A prefix that no other test uses."""
    return f"paho/{next(_names)}"


@pytest.mark.parametrize("protocol", list(MQTTProtocolVersion))
@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("granted", [0, 1])
def test_publish_and_subscribe(
    shared_broker: BrokerProcess, topic: str, protocol: MQTTProtocolVersion, published: int, granted: int
) -> None:
    payloads = [b"", b"x", bytes(range(256)) * 300, "grün".encode()]
    client_id = topic.replace("/", "-")
    with connected(shared_broker, Device(client_id, protocol=protocol)) as device:
        assert device.subscribe((f"{topic}/+/temp", granted)) == [granted]
        for payload in payloads:
            device.publish(f"{topic}/7/temp", payload, published)
        for payload in payloads:
            assert device.next() == (f"{topic}/7/temp", payload, min(published, granted))


def test_many_messages_at_qos_1_arrive_once_and_in_order(shared_broker: BrokerProcess, topic: str) -> None:
    with connected(shared_broker) as subscriber, connected(shared_broker) as publisher:
        subscriber.subscribe((topic, 1))
        sent = [publisher.client.publish(topic, b"%d" % number, 1) for number in range(3000)]
        assert [subscriber.next()[1] for _ in range(3000)] == [b"%d" % number for number in range(3000)]
        sent[-1].wait_for_publish(WAIT_S)


def test_wildcards_and_dollar_topics(shared_broker: BrokerProcess, topic: str) -> None:
    with connected(shared_broker) as device:
        assert device.subscribe((f"{topic}/#", 0), (f"$own/{topic}/+", 1), ("+/nothing", 2)) == [0, 1, 2]
        for name in (topic, f"{topic}/a/b.c", f"$own/{topic}/x", f"{topic}x", f"{topic}/last"):
            device.publish(name, name.encode())
        assert [device.next()[0] for _ in range(4)] == [topic, f"{topic}/a/b.c", f"$own/{topic}/x", f"{topic}/last"]


def test_unsubscribe(shared_broker: BrokerProcess, topic: str) -> None:
    with connected(shared_broker) as device:
        device.subscribe((f"{topic}/a", 1), (f"{topic}/b", 1))
        device.client.unsubscribe(f"{topic}/a")
        device.removals.get(timeout=WAIT_S)
        device.publish(f"{topic}/a", b"1")
        device.publish(f"{topic}/b", b"2")
        assert device.next() == (f"{topic}/b", b"2", 1)


def test_retained_publishes_arrive_live_and_are_kept(shared_broker: BrokerProcess, topic: str) -> None:
    with connected(shared_broker) as first, connected(shared_broker) as late, connected(shared_broker) as last:
        first.subscribe((topic, 1))
        first.publish(topic, b"now", retain=True)
        assert first.next() == (topic, b"now", 1)
        late.subscribe((topic, 1))
        kept = late.messages.get(timeout=WAIT_S)
        assert (kept.payload, kept.qos, kept.retain) == (b"now", 1, True)
        first.publish(topic, b"", retain=True)
        assert first.next() == late.next() == (topic, b"", 1)
        last.subscribe((topic, 1))
        first.publish(topic, b"later")
        assert last.next() == (topic, b"later", 1)


def test_the_will_of_a_client_that_vanishes(shared_broker: BrokerProcess, topic: str) -> None:
    with connected(shared_broker) as watcher:
        watcher.subscribe((topic, 1))
        mortal = Device()
        mortal.client.will_set(topic, b"gone", 1)
        with connected(shared_broker, mortal):
            mortal.client.socket().shutdown(socket.SHUT_RDWR)
            assert watcher.next() == (topic, b"gone", 1)
        leaving = Device()
        leaving.client.will_set(topic, b"never", 1)
        with connected(shared_broker, leaving):
            pass
        watcher.publish(topic, b"after")
        assert watcher.next() == (topic, b"after", 1)


def test_a_second_connection_takes_over(shared_broker: BrokerProcess, topic: str) -> None:
    client_id = topic.replace("/", "-")
    with connected(shared_broker, Device(client_id)) as first:
        first.subscribe((topic, 1))
        with connected(shared_broker, Device(client_id)) as second:
            assert first.disconnects.get(timeout=WAIT_S).is_failure
            first.client.loop_stop()  # or it would connect again and take over in turn
            second.subscribe((topic, 1))
            second.publish(topic, b"mine")
            assert second.next() == (topic, b"mine", 1)


def test_keep_alive_pings_keep_the_connection(shared_broker: BrokerProcess, topic: str) -> None:
    pings: queue.Queue[str] = queue.Queue()
    device = Device()
    device.client.on_log = lambda client, data, level, text: pings.put(text) if "PINGRESP" in text else None
    with connected(shared_broker, device, keep_alive_s=1):
        for _ in range(2):
            assert "PINGRESP" in pings.get(timeout=WAIT_S)
        assert device.disconnects.empty()


@pytest.mark.parametrize(
    ("user", "password", "code"),
    [
        ("guest", "guest", "Success"),
        ("guest", "wrong", "Bad user name or password"),
        ("nobody", "", "Bad user name or password"),
    ],
)
def test_credentials(shared_broker: BrokerProcess, user: str, password: str, code: str) -> None:
    device = Device(reconnect_on_failure=False)
    device.client.username_pw_set(user, password)
    device.client.connect(HOST, shared_broker.mqtt_port)
    device.client.loop_start()
    assert device.connects.get(timeout=WAIT_S) == ReasonCode(PacketTypes.CONNACK, code)
    device.client.disconnect()
    device.client.loop_stop()


@pytest.mark.parametrize("qos", [0, 1])
def test_properties_of_mqtt_5_arrive(shared_broker: BrokerProcess, topic: str, qos: int) -> None:
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = [("a", "1"), ("b", "2"), ("a", "3")]
    sent.ContentType, sent.ResponseTopic, sent.CorrelationData = "text/plain", f"{topic}/reply", b"\0\1"
    sent.PayloadFormatIndicator = 1
    name = topic.replace("/", "-")
    with (
        connected(shared_broker, Device(f"{name}-a", protocol=MQTTProtocolVersion.MQTTv5)) as subscriber,
        connected(shared_broker, Device(f"{name}-b", protocol=MQTTProtocolVersion.MQTTv5)) as publisher,
    ):
        assert subscriber.subscribe((f"{topic}/#", qos)) == [qos]
        publisher.client.publish(f"{topic}/x", b"hello", qos, properties=sent).wait_for_publish(WAIT_S)
        aliased = Properties(PacketTypes.PUBLISH)
        aliased.TopicAlias = 5
        publisher.client.publish(f"{topic}/y", b"1", qos, properties=aliased)
        publisher.client.publish("", b"2", qos, properties=aliased)
        message = subscriber.messages.get(timeout=WAIT_S)
        assert (message.topic, message.payload, message.qos) == (f"{topic}/x", b"hello", qos)
        assert message.properties is not None
        assert message.properties.json() == sent.json()
        for payload in (b"1", b"2"):
            assert subscriber.next() == (f"{topic}/y", payload, qos)


def test_devices_and_amqp_workers_share_messages(shared_broker: BrokerProcess, topic: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, shared_broker.amqp_port))
    channel = connection.channel()
    name = topic.replace("/", "-")
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, "amq.topic", topic.replace("/", ".") + ".*")
    with connected(shared_broker) as device:
        device.subscribe((f"{topic}/commands", 1))
        device.publish(f"{topic}/temp", b"21")
        device.publish(f"{topic}/temp", b"22", 0)
        device.publish(f"{topic}/v1.2", b"x")
        got = [channel.basic_get(name, auto_ack=True) for _ in range(3)]
        key = topic.replace("/", ".")
        assert [(method.routing_key, properties.delivery_mode, body) for method, properties, body in got] == [
            (f"{key}.temp", 2, b"21"),
            (f"{key}.temp", 1, b"22"),
            (f"{key}.v1/2", 2, b"x"),
        ]
        channel.basic_publish("amq.topic", f"{key}.commands", b"stop", pika.BasicProperties(delivery_mode=2))
        assert device.next() == (f"{topic}/commands", b"stop", 1)
        channel.basic_publish("amq.topic", f"{key}.commands", b"go", pika.BasicProperties(content_type="text/plain"))
        assert device.next() == (f"{topic}/commands", b"go", 0)
    channel.queue_delete(name)
    connection.close()
