"""Transactions of Kafka's own clients against a broker in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pika
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Place
from kafka.structs import OffsetAndMetadata

from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.records import batch_records, offset_after
from tests.support import HOST, BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
DOORS = ("amqp", "mqtt", "native", "kafka")
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"MILLRACE_ENGINE_GROUP_INITIAL_DELAY_MS": "0"}
    directory = tmp_path_factory.mktemp("transactions")
    with mock.patch.dict(os.environ, settings), broker_process(directory / "data", doors=DOORS) as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def transactional(server: str, name: str, **options: Any) -> Any:
    """A producer that has taken its transactional id over."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server, "transactional.id": name, **{k.replace("_", "."): v for k, v in options.items()}}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def values(server: str, topic: str, *, isolation: str = "read_committed", partition: int = 0) -> list[bytes]:
    """All that librdkafka gives out of a partition up to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found: list[bytes] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for one in consumer.consume(1000, 0.5):
                if one.error() is None:
                    found.append(one.value())
                elif one.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError(f"no end after {len(found)}")
    finally:
        consumer.close()


def python_values(server: str, topic: str, isolation: str) -> list[bytes]:
    """The same of kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=server, isolation_level=isolation)
    try:
        place = Place(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while consumer.position(place) < end and time.monotonic() < deadline:
            found += [record.value for records in consumer.poll(500).values() for record in records]
        return found
    finally:
        consumer.close()


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(server: str) -> None:
    producer = transactional(server, "both")
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.produce("both", b"%d-%d" % (number, part))
        producer.flush(PATIENCE_S)  # else what is not sent yet is not sent at all
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = [b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    assert values(server, "both") == python_values(server, "both", "read_committed") == committed
    everything = values(server, "both", isolation="read_uncommitted")
    assert everything == [b"%d-%d" % (number, part) for number in range(6) for part in range(3)]
    assert python_values(server, "both", "read_uncommitted") == everything


def test_what_is_open_is_waited_for(server: str) -> None:
    producer, other = transactional(server, "open-1"), transactional(server, "open-2")
    producer.begin_transaction()
    producer.produce("open", b"a")
    producer.flush(PATIENCE_S)
    other.begin_transaction()
    other.produce("open", b"b")
    other.commit_transaction(PATIENCE_S)
    assert values(server, "open") == []
    assert values(server, "open", isolation="read_uncommitted") == [b"a", b"b"]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "none"})
    place = confluent_kafka.TopicPartition("open", 0)
    assert consumer.get_watermark_offsets(place, timeout=PATIENCE_S) == (0, 0), "the default is read_committed"
    consumer.close()
    producer.commit_transaction(PATIENCE_S)
    assert values(server, "open") == [b"a", b"b"]


def test_who_takes_the_id_over_fences_who_had_it_and_ends_what_that_had_begun(server: str) -> None:
    first = transactional(server, "fenced")
    first.begin_transaction()
    first.produce("fenced", b"zombie")
    first.flush(PATIENCE_S)
    second = transactional(server, "fenced")
    with pytest.raises(confluent_kafka.KafkaException) as failed:
        first.commit_transaction(PATIENCE_S)
    assert failed.value.args[0].code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
    )
    second.begin_transaction()
    second.produce("fenced", b"heir")
    second.commit_transaction(PATIENCE_S)
    assert values(server, "fenced") == [b"heir"]


def test_offsets_are_committed_with_the_records_or_not_at_all(server: str) -> None:
    source = KafkaProducer(bootstrap_servers=server)
    for number in range(10):
        source.send("source", b"%d" % number).get(10)
    source.close()
    producer = transactional(server, "copy")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "copy",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["source"])
    taken: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < 10 and time.monotonic() < deadline:
        taken += [one for one in consumer.consume(10, 0.5) if one.error() is None]
    assert len(taken) == 10

    def copy(until: int) -> None:
        producer.begin_transaction()
        for one in taken[:until]:
            producer.produce("copies", one.value())
        producer.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition("source", 0, until)], consumer.consumer_group_metadata(), PATIENCE_S
        )

    place = [confluent_kafka.TopicPartition("source", 0)]
    copy(4)
    producer.abort_transaction(PATIENCE_S)
    assert consumer.committed(place, PATIENCE_S)[0].offset == confluent_kafka.OFFSET_INVALID
    copy(7)
    producer.commit_transaction(PATIENCE_S)
    assert consumer.committed(place, PATIENCE_S)[0].offset == 7
    consumer.close()
    assert values(server, "copies") == [b"%d" % number for number in range(7)]


def test_a_transaction_that_takes_too_long_is_given_up(server: str) -> None:
    producer = transactional(server, "late", transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.produce("late", b"too late")
    producer.flush(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    other = KafkaProducer(bootstrap_servers=server)
    other.send("late", b"in time").get(10)
    other.close()
    while values(server, "late") != [b"in time"]:
        assert time.monotonic() < deadline
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(PATIENCE_S)


def test_kafka_python_has_transactions_too(server: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server, transactional_id="python", enable_idempotence=True)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send("python", b"%d" % number)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.begin_transaction()
    producer.send("python", b"last")
    producer.send_offsets_to_transaction({Place("python", 0): OffsetAndMetadata(2, "", -1)}, "python-group")
    producer.commit_transaction()
    producer.close()
    assert values(server, "python") == python_values(server, "python", "read_committed") == [b"0", b"2", b"last"]
    consumer = KafkaConsumer(bootstrap_servers=server, group_id="python-group")
    assert consumer.committed(Place("python", 0)) == 2
    consumer.close()


def test_who_knows_nothing_of_transactions_reads_what_is_committed(server: str, broker: BrokerProcess) -> None:
    """AMQP, from a stream, and the native protocol: both pass over markers and what was aborted."""
    name = "read-by-all"
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    producer = transactional(server, name)
    for number in range(5):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(name, b"%d-%d" % (number, part))
        producer.flush(PATIENCE_S)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(name, b"open")
    producer.flush(PATIENCE_S)
    committed = [b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        assert client.list_offsets(name, 0, "latest") == 20
        found: list[bytes] = []
        offset = 0
        while offset < 20:
            fetched = client.fetch(name, 0, offset)
            assert fetched.high_watermark == 20
            for batch in fetched.batches:
                found += [one.value or b"" for one in batch_records(name, 0, batch, offset)]
                offset = offset_after(batch)
        assert found == committed
    channel.basic_qos(prefetch_count=100)
    channel.basic_consume(name, lambda _c, _m, _p, body: got.append(body), arguments={"x-stream-offset": "first"})
    got: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < len(committed) and time.monotonic() < deadline:
        connection.process_data_events(0.1)
    connection.process_data_events(0.3)
    assert got == committed
    producer.commit_transaction(PATIENCE_S)
    while len(got) == len(committed) and time.monotonic() < deadline:
        connection.process_data_events(0.1)
    assert got == [*committed, b"open"]
    connection.close()


def test_an_operator_sees_what_is_open_and_aborts_it(server: str, broker: BrokerProcess) -> None:
    producer = transactional(server, "forgotten")
    producer.begin_transaction()
    producer.produce("forgotten", b"x")
    producer.flush(PATIENCE_S)

    def millrace(*arguments: str) -> str:
        command = [sys.executable, "-m", "gateway", "transactions", *arguments]
        command += ["--server", f"{HOST}:{broker.native_port}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    (found,) = [one for one in json.loads(millrace("list", "--json")) if one["transactional_id"] == "forgotten"]
    assert (found["state"], found["partitions"]) == ("Ongoing", ["forgotten-0"])
    assert found["owner"].startswith("guest@127.0.0.1")
    assert 0 <= found["age_ms"] < 60_000
    assert "aborted" in millrace("abort", "forgotten")
    assert values(server, "forgotten") == []
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(PATIENCE_S)
