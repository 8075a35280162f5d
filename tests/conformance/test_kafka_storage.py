"""What topics' settings mean to Kafka's own clients: compaction, times; and AMQP consumers that read their codecs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from core_log.batch_header import parse_header
from core_log.compression import Compression
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("kafka-storage")
    config = directory / "millrace.toml"
    config.write_text("[engine]\ncompaction_check_interval_ms = 100\n")
    arguments = ("--config", str(config))
    with broker_process(directory / "data", doors=("amqp", "kafka"), arguments=arguments) as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def create(server: str, name: str, config: dict[str, str]) -> None:
    client = admin.AdminClient({"bootstrap.servers": server})
    client.create_topics([admin.NewTopic(name, 1, config=config)])[name].result(10)


def produce(server: str, topic: str, rows: list[tuple[bytes | None, bytes | None]], **more: Any) -> list[str]:
    """The names of errors, of those records that were refused."""
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "linger.ms": 0})
    refused: list[str] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(error.name())

    for key, value in rows:
        producer.produce(topic, value, key, on_delivery=report, **more)
        producer.flush(10)
    return refused


def read(server: str, topic: str, start: int = 0) -> list[Any]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        found = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append(message)
        assert message is not None
        return found
    finally:
        consumer.close()


def test_a_compacted_topic(server: str) -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.01"}
    create(server, "compacted", settings)
    assert produce(server, "compacted", [(None, b"x")]) == ["INVALID_RECORD"]
    rows: list[tuple[bytes | None, bytes | None]] = [(b"k%d" % (n % 5), b"%d" % n * 20) for n in range(100)]
    assert produce(server, "compacted", rows) == []
    deadline = time.monotonic() + 20
    while len(found := read(server, "compacted")) > 30:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {message.key(): message.value() for message in found} == dict(rows[-5:])
    assert all(rows[message.offset()] == (message.key(), message.value()) for message in found)
    assert found[-1].offset() == 99
    offsets = [message.offset() for message in found]
    later = [message.offset() for message in read(server, "compacted", 1)]
    assert set(later) <= set(offsets), "it may have been compacted again"
    assert later[-5:] == offsets[-5:] == [95, 96, 97, 98, 99]


def test_the_brokers_time(server: str) -> None:
    create(server, "stamped", {"message.timestamp.type": "LogAppendTime"})
    began_ms = int(time.time() * 1000)
    assert produce(server, "stamped", [(b"k", b"1"), (b"k", b"2")], timestamp=1000) == []
    (kind, first_ms), (_, second_ms) = [message.timestamp() for message in read(server, "stamped")]
    assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
    assert began_ms <= first_ms <= second_ms <= time.time() * 1000
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "none"})
    try:
        for asked, offset in ((1000, 0), (first_ms, 0), (second_ms + 60_000, -1)):
            (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition("stamped", 0, asked)], timeout=10)
            assert found.offset == offset
    finally:
        consumer.close()


def test_times_that_a_topic_does_not_take(server: str) -> None:
    create(server, "timely", {"message.timestamp.before.max.ms": "3600000"})
    now_ms = int(time.time() * 1000)
    for time_ms, refused in (
        (now_ms, []),
        (now_ms - 7_200_000, ["INVALID_TIMESTAMP"]),
        (now_ms + 7_200_000, ["INVALID_TIMESTAMP"]),
    ):
        assert produce(server, "timely", [(b"k", b"1")], timestamp=time_ms) == refused


@pytest.mark.parametrize("codec", CODECS)
def test_amqp_consumers_read_what_kafkas_clients_compress(server: str, broker: BrokerProcess, codec: str) -> None:
    topic = f"codec-{codec}"
    create(server, topic, {})
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "compression.type": codec, "linger.ms": 100})
    for number in range(50):
        producer.produce(topic, b"value %d " % number * 20, b"k%d" % number, headers=[("h", b"%d" % number)])
    producer.flush(10)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_qos(prefetch_count=100)
    found = []
    for method, properties, body in channel.consume(
        topic, arguments={"x-stream-offset": "first"}, inactivity_timeout=10
    ):
        assert method is not None
        found.append((method.routing_key, properties.headers["h"], body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == 50:
            break
    assert found == [(f"k{number}", str(number), b"value %d " % number * 20) for number in range(50)]
    connection.close()


def codecs_of(broker: BrokerProcess, topic: str) -> list[int]:
    """The compression of each batch that is in the file of a topic."""
    data = (broker.data_dir / f"topics/{topic}-0/00000000000000000000.log").read_bytes()
    found, at = [], 0
    while at < len(data):
        header = parse_header(data, at)
        found.append(header.compression)
        at += header.size
    return found


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_topic_says_how_batches_are_compressed(broker: BrokerProcess, server: str, idempotent: bool) -> None:
    topic = f"zstd-{idempotent}"
    create(server, topic, {"compression.type": "zstd"})
    values = [codec.encode() * 50 for codec in ("none", *CODECS)]
    for codec, value in zip(("none", *CODECS), values, strict=True):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": server, "compression.type": codec, "enable.idempotence": idempotent}
        )
        for _ in range(3):
            producer.produce(topic, value)
        assert producer.flush(10) == 0
    assert [message.value() for message in read(server, topic)] == [value for value in values for _ in range(3)]
    assert set(codecs_of(broker, topic)) == {Compression.ZSTD}


def test_what_other_doors_append_is_compressed_as_well(broker: BrokerProcess, server: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.ports["amqp"]))
    channel = connection.channel()
    channel.queue_declare("squeezed", durable=True, arguments={"x-queue-type": "stream"})
    client = admin.AdminClient({"bootstrap.servers": server})
    entry = admin.ConfigEntry("compression.type", "gzip", incremental_operation=admin.AlterConfigOpType.SET)
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, "squeezed", incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(10)
    channel.confirm_delivery()
    channel.basic_publish("", "squeezed", b"x" * 1000)
    connection.close()
    assert [message.value() for message in read(server, "squeezed")] == [b"x" * 1000]
    assert codecs_of(broker, "squeezed") == [Compression.GZIP]
