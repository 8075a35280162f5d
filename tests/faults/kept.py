"""What one is told once and has to keep: a generation of everything that a data directory can hold, and the look at it.

`Kept.fill` adds a generation by any broker, `Kept.check` looks through any broker that all of them are there as they
were, takes what the latest holds for clients, and leaves the others for the next look:

1. queues: priorities, times to live, what is delayed, what died and why, in the order that is due; bindings; a stream;
2. topics: the last value of each key of one that is compacted, of transactions what was committed and nothing else;
3. where groups stand, one of them told so in a transaction;
4. MQTT: sessions with what was published at QoS 1 and 2 while they were away, in order and once; what is retained;
5. users with passwords, who may do what they might, and no more.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pika
import pika.exceptions
import pytest
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from core_log.record_batch import BatchBuilder
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.blocking_consumer import BlockingConsumer
from protocols.native.clients.blocking_transactional import BlockingTransactionalProducer
from tests.support.broker_process import BrokerProcess
from tests.support.pika_channel import pika_channel

_PATIENCE_S = 20.0
_SETTLED_S = 0.2
_MESSAGES = 12
_DELAY_MS = 1500
COMPACTED, _TRANSACTED, _EXCHANGE, _STREAM, _DEAD = ("kept.compacted", "kept.tx", "kept", "kept.stream", "kept.dead")
_LASTING_MS = 3_600_000
_QUEUE = {
    "x-max-priority": 4,
    "x-delayed": True,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": _DEAD,
    "x-message-ttl": _LASTING_MS,
}
_VERSIONS = {"311": MQTTv311, "5": MQTTv5}


def _server(broker: BrokerProcess) -> str:
    return f"{broker.host}:{broker.native_port}"


def _channel(broker: BrokerProcess, user: str = "guest", password: str = "guest") -> AbstractContextManager[Any]:
    told = pika.PlainCredentials(user, password)
    return pika_channel(broker.host, broker.amqp_port, credentials=told)


@contextmanager
def _device(broker: BrokerProcess, name: str, version: str, *, lasting: bool = True) -> Iterator[tuple[Client, Any]]:
    """A connected client, and what it is told: whether it had a session, then messages."""
    told: queue.Queue[Any] = queue.Queue()
    options: dict[str, Any] = {"clean_session": not lasting} if version == "311" else {}
    client = Client(CallbackAPIVersion.VERSION2, name, protocol=_VERSIONS[version], **options)
    client.on_connect = lambda *given: told.put(given[2].session_present)
    client.on_message = lambda *given: told.put(given[2])
    client.on_subscribe = lambda *_: told.put("subscribed")
    if version == "311":
        client.connect(broker.host, broker.mqtt_port)
    else:
        kept = Properties(PacketTypes.CONNECT)
        kept.SessionExpiryInterval = _LASTING_MS if lasting else 0
        client.connect(broker.host, broker.mqtt_port, clean_start=not lasting, properties=kept)
    client.loop_start()
    try:
        yield client, told
    finally:
        client.disconnect()
        client.loop_stop()


class Kept:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._generations = 0
        self._latest: dict[str, int] = {}
        """Of the topic's keys."""
        self._stood = 0
        """Where the group of the transactions stands."""
        self._dead: list[str] = []

    def fill(self, broker: BrokerProcess) -> None:
        """One generation more."""
        number = self._generations
        with BlockingClient(_server(broker), timeout_s=_PATIENCE_S) as client:
            if not number:
                client.create_topic(COMPACTED, config={"cleanup.policy": "compact", "segment.bytes": "65536"})
                client.create_topic(_TRANSACTED)
            self._fill_topics(client, number)
            user = f"kept-{number}"
            client.administer("users.add", name=user, password=f"secret-{number}", tags=["management"])
            client.administer(
                "permissions.set", vhost="/", name=user, configure="^$", write=f"kept.queue-{number}", read="^$"
            )
        self._fill_transactions(broker, number)
        self._fill_queues(broker, number)
        self._fill_mqtt(broker, number)
        self._generations += 1

    def check(self, broker: BrokerProcess) -> None:
        """Raises AssertionError."""
        with BlockingClient(_server(broker), timeout_s=_PATIENCE_S) as client:
            self._check_topics(client, broker)
            users = {row[0]: row[1] for row in client.administer("users.list")["rows"]}
        for number in range(self._generations):
            assert users[f"kept-{number}"] == ["management"], users
        latest = self._generations - 1
        self._check_rights(broker, self._dice.randrange(self._generations))
        self._check_queue(broker, latest)
        self._check_stream(broker)
        self._check_mqtt(broker, latest)
        self._check_retained(broker)

    # --- topics and groups

    def _fill_topics(self, client: BlockingClient, number: int) -> None:
        for place in range(40):
            key, value = f"k{self._dice.randrange(20)}", number * 1000 + place
            builder = BatchBuilder(0, -1, int(time.time() * 1000))
            builder.add(0, key.encode(), b"%d %b" % (value, b"." * 3000), [])
            client.produce(COMPACTED, 0, builder.build())
            self._latest[key] = value
        client.commit_offsets(f"kept-{number}", {(COMPACTED, 0): number + 7}, metadata="where it was")

    def _fill_transactions(self, broker: BrokerProcess, number: int) -> None:
        with BlockingTransactionalProducer(_server(broker), "kept-writer") as producer:
            for place in range(4):
                producer.begin()
                said = "kept" if place % 2 else "undone"
                for row in range(3):
                    producer.send(_TRANSACTED, b"%b %d" % (said.encode(), number * 100 + place * 10 + row), partition=0)
                producer.send_offsets({(_TRANSACTED, 0): number * 100 + place}, "kept-movers")
                if place % 2:
                    producer.commit()
                    self._stood = number * 100 + place
                else:
                    producer.flush()
                    producer.abort()

    def _check_topics(self, client: BlockingClient, broker: BrokerProcess) -> None:
        config = client.describe_topic(COMPACTED).config
        assert config["cleanup.policy"] == "compact", config
        with BlockingConsumer(_server(broker), timeout_s=_PATIENCE_S, auto_offset_reset="earliest") as consumer:
            rows = list(_records(consumer, client, COMPACTED))
            found = {row.key.decode(): int(row.value.split()[0]) for row in rows if row.key is not None}
            assert found == self._latest, f"of a compacted topic {found} is there, not {self._latest}"
            there = [row.value.decode() for row in _records(consumer, client, _TRANSACTED)]
        wanted = [
            f"kept {number * 100 + place * 10 + row}"
            for number in range(self._generations)
            for place in (1, 3)
            for row in range(3)
        ]
        assert there == wanted, f"of transactions {there} is there, not {wanted}"
        for number in range(self._generations):
            stood = client.committed_offsets(f"kept-{number}")
            assert stood == {(COMPACTED, 0): number + 7}, f"group kept-{number} stands at {stood}"
        stood = client.committed_offsets("kept-movers")
        assert stood == {(_TRANSACTED, 0): self._stood}, f"the transactions' group stands at {stood}, not {self._stood}"

    # --- queues and rights

    def _fill_queues(self, broker: BrokerProcess, number: int) -> None:
        name = f"kept.queue-{number}"
        with _channel(broker) as channel:
            channel.exchange_declare(_EXCHANGE, "topic", durable=True)
            channel.queue_declare(_STREAM, durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_bind(_STREAM, _EXCHANGE, "#")
            channel.queue_declare(_DEAD, durable=True)
            channel.queue_declare(name, durable=True, arguments=_QUEUE)
            channel.queue_bind(name, _EXCHANGE, f"of.{number}.*")
            for place in range(_MESSAGES):
                self._publish(channel, f"of.{number}.here", f"{number} {place}", priority=place % 3)
            expiring, refused = f"{number} {_MESSAGES}", f"{number} {_MESSAGES + 1}"
            self._publish(channel, f"of.{number}.here", expiring, expiration="1")
            self._publish(channel, f"of.{number}.here", refused, priority=4)
            method, _, body = channel.basic_get(name)
            assert body.decode() == refused, f"{body} came before what has a higher priority"
            channel.basic_reject(method.delivery_tag, requeue=False)
            self._dead += [f"expired {expiring}", f"rejected {refused}"]
            late = {"x-delay": _DELAY_MS}
            self._publish(channel, f"of.{number}.later", f"{number} {_MESSAGES + 2}", priority=3, headers=late)

    @staticmethod
    def _publish(channel: Any, key: str, body: str, **said: Any) -> None:
        properties = pika.BasicProperties(delivery_mode=2, message_id=body, **said)
        channel.basic_publish(_EXCHANGE, key, body.encode(), properties, mandatory=True)

    def _check_queue(self, broker: BrokerProcess, number: int) -> None:
        """The messages of the latest queue, and whatever died so far."""
        places = [place for priority in (2, 1, 0) for place in range(_MESSAGES) if place % 3 == priority]
        wanted = [f"{number} {place}" for place in places] + [f"{number} {_MESSAGES + 2}"]
        with _channel(broker) as channel:
            found = _taken(channel, f"kept.queue-{number}", len(wanted))
            bodies = sorted(found, key=lambda one: one == wanted[-1])  # when that one came depends on the delay
            assert bodies == wanted, f"a queue holds {found}, not {wanted}"
            dead: list[str] = []
            for _ in range(len(self._dead)):
                _, properties, body = _get(channel, _DEAD)
                dead.append(f"{properties.headers['x-first-death-reason']} {body.decode()}")
                assert properties.headers["x-death"][0]["queue"] == f"kept.queue-{body.split()[0].decode()}"
            assert sorted(dead) == sorted(self._dead), f"what died is {dead}, not {self._dead}"
            # what is not acknowledged waits for the next look

    def _check_stream(self, broker: BrokerProcess) -> None:
        wanted = [f"{number} {place}" for number in range(self._generations) for place in range(_MESSAGES + 2)]
        found: list[str] = []

        def take(channel: Any, method: Any, _: Any, body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            if int(body.split()[1]) < _MESSAGES + 2:  # what was delayed comes to it at another time
                found.append(body.decode())

        with _channel(broker) as channel:
            channel.basic_qos(prefetch_count=100)
            channel.basic_consume(_STREAM, take, arguments={"x-stream-offset": "first"})
            deadline = time.monotonic() + _PATIENCE_S
            while len(found) < len(wanted):
                assert time.monotonic() < deadline, f"a stream gave only {found}"
                channel.connection.process_data_events(0.2)
        assert found == wanted, f"a stream holds {found}, not {wanted}"

    def _check_rights(self, broker: BrokerProcess, number: int) -> None:
        with (
            _channel(broker, f"kept-{number}", f"secret-{number}") as channel,
            pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"),
        ):
            channel.basic_get(f"kept.queue-{number}")

    # --- MQTT

    def _fill_mqtt(self, broker: BrokerProcess, number: int) -> None:
        for version in _VERSIONS:
            with _device(broker, f"kept-{number}-{version}", version) as (client, told):
                assert told.get(timeout=_PATIENCE_S) is False
                client.subscribe(f"kept/{number}/#", 2)
                assert told.get(timeout=_PATIENCE_S) == "subscribed"
        with _device(broker, f"kept-publisher-{number}", "5", lasting=False) as (client, told):
            told.get(timeout=_PATIENCE_S)
            sent = [client.publish(f"kept/{number}/{qos}", b"%d" % place, qos) for place in range(30) for qos in (1, 2)]
            sent.append(client.publish(f"kept-retained/{number}", b"%d" % number, 1, retain=True))
            for one in sent:
                one.wait_for_publish(_PATIENCE_S)
                assert one.is_published(), "a publish is not acknowledged"

    def _check_mqtt(self, broker: BrokerProcess, number: int) -> None:
        wanted = {f"kept/{number}/{qos}": list(range(30)) for qos in (1, 2)}
        for version in _VERSIONS:
            with _device(broker, f"kept-{number}-{version}", version) as (_, told):
                assert told.get(timeout=_PATIENCE_S) is True, f"the session of MQTT {version} is gone"
                found: dict[str, list[int]] = {topic: [] for topic in wanted}
                for _ in range(60):
                    message = told.get(timeout=_PATIENCE_S)
                    found[message.topic].append(int(message.payload))
                assert found == wanted, f"a session of MQTT {version} was given {found}"
                _require_nothing(told)

    def _check_retained(self, broker: BrokerProcess) -> None:
        wanted = {f"kept-retained/{number}": b"%d" % number for number in range(self._generations)}
        with _device(broker, "kept-asker", "5", lasting=False) as (client, told):
            told.get(timeout=_PATIENCE_S)
            client.subscribe("kept-retained/#", 1)
            found: dict[str, bytes] = {}
            while len(found) < len(wanted):
                message = told.get(timeout=_PATIENCE_S)
                if message != "subscribed":
                    assert message.retain
                    found[message.topic] = message.payload
        assert found == wanted, f"{found} is retained, not {wanted}"


def _require_nothing(told: queue.Queue[Any]) -> None:
    try:
        raise AssertionError(f"a session was given {told.get(timeout=_SETTLED_S)} once more")
    except queue.Empty:
        pass


def _records(consumer: BlockingConsumer, client: BlockingClient, topic: str) -> Iterator[Any]:
    """All of a topic."""
    end = client.list_offsets(topic, 0, "latest")
    assert end is not None
    consumer.assign(topic)
    place, deadline = 0, time.monotonic() + _PATIENCE_S
    while place < end:
        rows = consumer.fetch(timeout_ms=200)
        yield from rows
        if not rows:
            break  # the end is a marker, or was compacted away
        place = rows[-1].offset + 1
        assert time.monotonic() < deadline, f"{topic} has no end"


def _get(channel: Any, name: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue; waits for it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        method, properties, body = channel.basic_get(name)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, f"{name} is empty"
        time.sleep(0.02)


def _taken(channel: Any, name: str, count: int) -> list[str]:
    """What a queue gives, and nothing more than so many; all is acknowledged."""
    found = []
    for _ in range(count):
        method, _, body = _get(channel, name)
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(name)[0] is None, f"{name} holds more than {count}"
    return found
