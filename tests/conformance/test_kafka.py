"""Kafka's own clients against a broker in a process of its own, on the same records as all other clients."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaStorageError

from core_log.record_batch import parse_header
from protocols.native.clients.blocking import BlockingClient
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
DOORS = ("amqp", "mqtt", "native", "kafka")
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
READ_BY_KAFKA_PYTHON = (None, "gzip")
"""Others it reads with libraries of its own choice, if they are there."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("kafka") / "data", doors=DOORS) as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def read_all(server: str, topic: str, count: int, **options: Any) -> list[Any]:
    """So many records of a topic's partition, from the beginning."""
    consumer = KafkaConsumer(bootstrap_servers=server, consumer_timeout_ms=10_000, **options)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return [record for _, record in zip(range(count), consumer)]
    finally:
        consumer.close()


def confluent_read_all(server: str, topic: str, count: int) -> list[Any]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while len(found) < count:
            got = consumer.consume(count - len(found), 10)
            assert got, f"{len(found)} of {count}"
            assert not any(one.error() for one in got)
            found += got
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_compresses_the_others_read(server: str, broker: BrokerProcess, codec: str | None) -> None:
    topic = f"kafka-{codec}"
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "compression.type": codec or "none"})
    reports: list[Any] = []
    for number in range(500):
        producer.produce(
            topic, b"value %d " % number * 10, key=b"k%d" % number, headers=[("h", b"\xff"), ("none", None)],
            on_delivery=lambda error, message: reports.append((error, message.offset())),
        )  # fmt: skip
    producer.flush(20)
    assert reports == [(None, number) for number in range(500)]
    mine = [(b"k%d" % number, b"value %d " % number * 10) for number in range(500)]
    headers = [("h", b"\xff"), ("none", None)]
    if codec in READ_BY_KAFKA_PYTHON:
        assert [(one.key, one.value) for one in read_all(server, topic, 500)] == mine
    assert [(one.key(), one.value()) for one in confluent_read_all(server, topic, 500)] == mine
    assert confluent_read_all(server, topic, 1)[0].headers() == headers
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        (first, *_) = client.fetch(topic, 0, 0).batches
        assert parse_header(first).compression == CODECS.index(codec)


def test_records_without_keys_and_values_and_where_they_are(server: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server)
    began = int(time.time() * 1000) - 10_000  # retention takes what is old
    sent = [producer.send("kafka-nulls", value, key=key, timestamp_ms=at) for key, value, at in (
        (None, b"v", began + 1000), (b"k", None, began + 2000), (b"", b"", began + 3000),
    )]  # fmt: skip
    assert [one.get(10).offset for one in sent] == [0, 1, 2]
    producer.close()
    found = read_all(server, "kafka-nulls", 3)
    assert [(one.key, one.value, one.timestamp) for one in found] == [
        (None, b"v", began + 1000), (b"k", None, began + 2000), (b"", b"", began + 3000),
    ]  # fmt: skip
    consumer = KafkaConsumer(bootstrap_servers=server)
    partition = TopicPartition("kafka-nulls", 0)
    assert consumer.offsets_for_times({partition: began + 1500})[partition].offset == 1
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 3}
    assert consumer.partitions_for_topic("kafka-nulls") == {0}
    consumer.close()


def test_a_record_larger_than_a_topic_takes_is_the_producers_to_know(server: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "message.max.bytes": 10_000_000})
    reports: list[Any] = []
    producer.produce("kafka-large", bytes(3_000_000), on_delivery=lambda error, message: reports.append(error))
    producer.flush(20)
    assert [error.code() for error in reports] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_record_survives_the_broker(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as process:
        server = f"127.0.0.1:{process.ports['kafka']}"
        producer = KafkaProducer(bootstrap_servers=server, acks="all")
        offset = producer.send("kafka-kept", b"kept").get(10).offset
        process.kill9()
        process.start(same_ports=True)
        assert producer.send("kafka-kept", b"more").get(20).offset == offset + 1
        producer.close()
        assert [one.value for one in read_all(server, "kafka-kept", 2)] == [b"kept", b"more"]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(server: str) -> None:
    def kcat(*arguments: str, said: str | None = None) -> str:
        done = subprocess.run(
            ["kcat", "-q", "-b", server, *arguments], input=said, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout

    kcat("-P", "-t", "kafka-kcat", "-K:", said="a:1\nb:2\n")
    assert kcat("-C", "-t", "kafka-kcat", "-e", "-f", "%k=%s@%o ") == "a=1@0 b=2@1 "
    assert 'topic "kafka-kcat" with 1 partitions' in kcat("-L")


def test_clients_of_two_kinds_share_a_group(server: str, broker: BrokerProcess) -> None:
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        client.create_topic("kafka-group", partitions=6)
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    for number in range(300):
        producer.send("kafka-group", b"%d" % number, key=b"%d" % number)
    producer.flush()
    seen: dict[str, list[bytes]] = {"one": [], "two": [], "three": []}
    stop = threading.Event()

    def with_kafka_python(name: str) -> None:
        consumer = KafkaConsumer(
            "kafka-group", bootstrap_servers=server, group_id="kafka-mixed", auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
        )  # fmt: skip
        while not stop.is_set():
            for records in consumer.poll(100).values():
                seen[name] += [record.value for record in records]
        consumer.close()

    def with_confluent(name: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server, "group.id": "kafka-mixed", "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
            }
        )  # fmt: skip
        consumer.subscribe(["kafka-group"])
        while not stop.is_set():
            seen[name] += [one.value() for one in consumer.consume(100, 0.1)]
        consumer.close()

    kinds = {"one": with_kafka_python, "two": with_confluent, "three": with_kafka_python}
    threads = [threading.Thread(target=run, args=(name,)) for name, run in kinds.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    count = 300
    while (sum(map(len, seen.values())) < count or not all(seen.values())) and time.monotonic() < deadline:
        if sum(map(len, seen.values())) >= count:  # who came late has partitions by now, or will
            for number in range(count, count + 30):
                producer.send("kafka-group", b"%d" % number, key=b"%d" % number)
            producer.flush()
            count += 30
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert sorted(value for found in seen.values() for value in found) == sorted(
        b"%d" % number for number in range(count)
    )
    assert all(seen.values()), {name: len(found) for name, found in seen.items()}
    again = KafkaConsumer("kafka-group", bootstrap_servers=server, group_id="kafka-mixed", auto_offset_reset="earliest")
    producer.send("kafka-group", b"more").get(10)
    deadline, found = time.monotonic() + 20, list[bytes]()
    while not found and time.monotonic() < deadline:
        found += [record.value for records in again.poll(100).values() for record in records]
    assert found == [b"more"], "from where the group had come"
    again.close()
    producer.close()


def test_who_produces_while_the_disk_is_low_is_told_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[engine]\ndisk_free_bytes_min = 1000000000000000\n")
    with broker_process(
        tmp_path / "data", doors=DOORS, arguments=("--config", str(tmp_path / "config.toml"))
    ) as broker:
        server = f"127.0.0.1:{broker.ports['kafka']}"
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
            client.create_topic("low")
        producer = KafkaProducer(bootstrap_servers=server, retries=0, acks=1, enable_idempotence=False)
        for _ in range(3):
            with pytest.raises(KafkaStorageError):
                producer.send("low", b"x").get(timeout=10)
        producer.close()
