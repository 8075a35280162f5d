"""Who is connected while somebody looks at the page: clients of AMQP, MQTT and Kafka, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import paho.mqtt.client as mqtt
import pika
from kafka import KafkaConsumer, KafkaProducer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pika.exceptions import AMQPError

from tests.support import BrokerProcess

HOST = "127.0.0.1"
PATIENCE_S = 20.0
LASTS_S = 3600
BEGAN_MS = int(time.time() * 1000) - 3_600_000
"""The time of the first record; each has a second more than the one before."""


class Device:
    """A client of MQTT 5 with a session that lasts."""

    def __init__(self, port: int, client_id: str, user: str | None = None, password: str | None = None) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.got = threading.Condition()
        self.reasons: list[str] = []
        """Why it was not connected, or not any more, in the order told."""
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        if user is not None:
            self.client.username_pw_set(user, password)
        self.client.on_message = self._on_message
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.connected = threading.Event()
        self._port = port

    def connect(self, *, comes_again: bool = True) -> Device:
        """Connect in the background; what is lost comes again unless told otherwise."""
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = LASTS_S
        self.client.reconnect_delay_set(1, 1)
        self._comes_again = comes_again
        self.client.connect(HOST, self._port, clean_start=False, properties=lasting)
        self.client.loop_start()
        return self

    def subscribed(self, topic: str) -> Device:
        """Subscribe, and wait until that is so."""
        assert self.connected.wait(PATIENCE_S), self.reasons
        done = threading.Event()
        self.client.on_subscribe = lambda *_: done.set()
        self.client.subscribe(topic, qos=1)
        assert done.wait(PATIENCE_S)
        return self

    def waits_for(self, topic: str, payload: bytes) -> None:
        """Raises AssertionError unless the message comes."""
        with self.got:
            assert self.got.wait_for(lambda: (topic, payload) in self.messages, PATIENCE_S), self.messages

    def told(self, reason: str) -> None:
        """Raises AssertionError unless the broker says so why it is not connected."""
        with self.got:
            assert self.got.wait_for(lambda: any(reason in one for one in self.reasons), PATIENCE_S), self.reasons

    def close(self) -> None:
        """Disconnect; the session stays."""
        self.client.disconnect()
        self.client.loop_stop()

    def _on_message(self, client: Any, data: Any, message: mqtt.MQTTMessage) -> None:
        with self.got:
            self.messages.append((message.topic, message.payload))
            self.got.notify_all()

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._tell(str(reason))
        else:
            self.connected.set()

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self.connected.clear()
        self._tell(str(reason))

    def _tell(self, reason: str) -> None:
        with self.got:
            self.reasons.append(reason)
            self.got.notify_all()
        if not self._comes_again:
            self.client.disconnect()


class Consumer:
    """A consumer of pika that keeps what it gets."""

    def __init__(self, port: int, queue: str) -> None:
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
        channel = self._connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(queue, lambda *_: None)
        self._channel = channel
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(AMQPError, OSError):
            self._channel.start_consuming()
        self.ended.set()

    def close(self) -> None:
        """End it, if it has not ended."""
        if not self.ended.is_set():
            with suppress(AMQPError):
                self._connection.add_callback_threadsafe(self._channel.stop_consuming)
            self._thread.join(PATIENCE_S)
        with suppress(AMQPError):
            self._connection.close()


class Reader:
    """A member of a group of kafka-python that commits after every so many records."""

    def __init__(self, port: int, topic: str, group: str) -> None:
        self._stop = threading.Event()
        self.joined = threading.Event()
        self._arguments = topic, group, f"{HOST}:{port}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.joined.wait(PATIENCE_S), "the group does not begin"

    def _run(self) -> None:
        topic, group, server = self._arguments
        consumer = KafkaConsumer(
            topic, group_id=group, bootstrap_servers=server, auto_offset_reset="earliest", enable_auto_commit=False
        )
        while not self._stop.is_set():
            # kafka-python 3.0 forgets an assignment that comes while a poll ends: few of them end.
            if consumer.poll(500, max_records=10):
                consumer.commit()
            if consumer.assignment():
                self.joined.set()
        consumer.close()

    def close(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(PATIENCE_S)


def produced(port: int, topic: str, count: int) -> None:
    """So many records, in order, with keys that come again."""
    producer = KafkaProducer(bootstrap_servers=f"{HOST}:{port}")
    for number in range(count):
        value = b'{"order": %d, "state": "new"}' % number
        key, time_ms = b"customer-%d" % (number % 7), BEGAN_MS + number * 1000
        producer.send(topic, key=key, value=value, headers=[("source", b"shop")], timestamp_ms=time_ms)
    producer.flush()
    producer.close()


@contextmanager
def clients(broker: BrokerProcess, queue: str, topic: str, group: str) -> Iterator[dict[str, Any]]:
    """All of them: "consumer" of a queue, a "reader" of a topic, the devices "thermometer" and "lamp"."""
    with ExitStack() as stack:
        produced(broker.ports["kafka"], topic, 40)
        found: dict[str, Any] = {
            "consumer": Consumer(broker.ports["amqp"], queue),
            "reader": Reader(broker.ports["kafka"], topic, group),
        }
        for name in ("thermometer", "lamp"):
            found[name] = Device(broker.mqtt_port, name).connect().subscribed(f"house/{name}/#")
        for one in found.values():
            stack.callback(one.close)
        yield found
