"""One message that two clients send: which is there once, whichever doors they came through, also after a kill -9.

Each client calls it in the way of its protocol: AMQP by the property message-id, MQTT 5 by a user property, the others
by a header.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from millrace import BlockingClient, BlockingConsumer, BlockingProducer
from tests.conformance.test_crossing import HOST, WAIT_S, amqp, device
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")
Send = Callable[[str, str, bytes], None]
"""Topic, id and body; returns when it is confirmed."""
WINDOW = {"millrace.deduplication.window.ms": "600000"}
DOORS = ("amqp", "mqtt", "native", "kafka")
_numbers = itertools.count(1)


@contextmanager
def senders(broker: BrokerProcess) -> Iterator[dict[str, Send]]:
    """A client of each protocol, `librdkafka` beside kafka-python; that one is idempotent."""
    with ExitStack() as stack:
        channel, publisher = stack.enter_context(amqp(broker)), stack.enter_context(device(broker))
        native = stack.enter_context(BlockingProducer(f"{HOST}:{broker.native_port}"))
        server = f"{HOST}:{broker.ports['kafka']}"
        plain = kafka.KafkaProducer(bootstrap_servers=server)
        stack.callback(plain.close)
        idempotent = confluent_kafka.Producer({"bootstrap.servers": server, "enable.idempotence": True})

        def by_amqp(topic: str, name: str, body: bytes) -> None:
            channel.basic_publish("amq.topic", topic, body, pika.BasicProperties(message_id=name, delivery_mode=2))

        def by_mqtt(topic: str, name: str, body: bytes) -> None:
            said = Properties(PacketTypes.PUBLISH)
            said.UserProperty = [("message-id", name)]
            publisher.publish(topic, body, said)

        def by_native(topic: str, name: str, body: bytes) -> None:
            native.send(topic, body, key=topic.encode(), headers=[("message-id", name.encode())])
            native.flush()

        def by_kafka(topic: str, name: str, body: bytes) -> None:
            headers = [("message-id", name.encode())]
            plain.send(topic, body, key=topic.encode(), headers=headers).get(WAIT_S)

        def by_librdkafka(topic: str, name: str, body: bytes) -> None:
            reports: list[Any] = []
            idempotent.produce(
                topic, body, topic.encode(), headers=[("x-deduplication-header", name.encode())],
                on_delivery=lambda error, _: reports.append(error),
            )  # fmt: skip
            assert not idempotent.flush(WAIT_S)
            assert reports == [None]

        yield {
            "amqp": by_amqp, "mqtt": by_mqtt, "native": by_native, "kafka": by_kafka, "librdkafka": by_librdkafka,
        }  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, dict[str, Send]]]:
    with broker_process(tmp_path_factory.mktemp("once") / "data", doors=DOORS) as process, senders(process) as found:
        yield process, found


def made(broker: BrokerProcess, **config: str) -> str:
    """A topic that takes an id once, and everything that is published by its name."""
    name = f"once{next(_numbers)}"
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        client.create_topic(name, config=WINDOW | config)
        client.bind_topic(name, "amq.topic", name)
    return name


def bodies(broker: BrokerProcess, topic: str, last: bytes) -> list[bytes]:
    """All up to one."""
    found: list[bytes] = []
    with BlockingConsumer(f"{HOST}:{broker.native_port}", auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        for record in consumer:
            found.append(bytes(record.value or b""))
            if record.value == last:
                return found
    raise AssertionError(found)


@pytest.mark.parametrize("second", ["amqp", "mqtt", "native", "librdkafka"])
@pytest.mark.parametrize("first", ["amqp", "mqtt", "native", "kafka"])
def test_every_door_knows_what_came_through_the_other(
    world: tuple[BrokerProcess, dict[str, Send]], first: str, second: str
) -> None:
    broker, by = world
    topic = made(broker)
    by[first](topic, "a", b"first")
    by[second](topic, "a", b"again")
    by[second](topic, "b", b"second")
    by[first](topic, "b", b"again")
    by[first](topic, "c", b"last")
    assert bodies(broker, topic, b"last") == [b"first", b"second", b"last"]


def test_clients_of_kafka_read_on_and_batches_of_several_keep_what_is_new(
    world: tuple[BrokerProcess, dict[str, Send]],
) -> None:
    broker, _ = world
    topic, server = made(broker), f"{HOST}:{broker.ports['kafka']}"
    offsets: dict[bytes, int] = {}
    for codec in ("none", "gzip"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": server, "enable.idempotence": True, "linger.ms": 50, "compression.type": codec}
        )
        for place, number in enumerate((1, 2, 3, 2, 4) if codec == "none" else (4, 1, 5)):
            body = b"%s %d" % (codec.encode(), place)
            producer.produce(
                topic, body, b"k", headers=[("message-id", b"%d" % number)],
                on_delivery=lambda _, told: offsets.__setitem__(told.value(), told.offset()),
            )  # fmt: skip
        assert not producer.flush(WAIT_S)
    expected = {b"none 0": 0, b"none 1": 1, b"none 2": 2, b"none 4": 4, b"gzip 2": 7}
    consumer = kafka.KafkaConsumer(bootstrap_servers=server, enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found = {record.value: record.offset for record in itertools.islice(consumer, len(expected))}
    consumer.close()
    other = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "g"})
    other.assign([confluent_kafka.TopicPartition(topic, 0, 3)])
    assert [one.offset() for one in other.consume(2, WAIT_S)] == [4, 7]
    other.close()
    assert found == expected
    assert {value: offset for value, offset in offsets.items() if value in found} == expected


def test_what_was_confirmed_is_known_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with broker_process(tmp_path_factory.mktemp("killed") / "data", doors=DOORS) as broker:
        topic = made(broker)
        with senders(broker) as by:
            for name, send in by.items():
                send(topic, name, name.encode())
            sent = list(by)
        broker.kill9()
        broker.start_again()
        with senders(broker) as by:
            for send in by.values():
                for name in sent:
                    send(topic, name, b"again")
            for name, send in by.items():
                send(topic, f"new {name}", f"new {name}".encode())
        expected = [name.encode() for name in sent]
        assert bodies(broker, topic, b"new librdkafka") == [*expected, *(b"new " + one for one in expected)]
