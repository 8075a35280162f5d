"""Kafka's own clients read: in sessions of many partitions, by time, and what brokers and topics there are."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from protocols.native.clients.blocking import BlockingClient
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
PARTITIONS = 40
EOF = confluent_kafka.KafkaError._PARTITION_EOF


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("kafka") / "data", doors=DOORS) as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def poll(consumer: Any, wanted: int, found: dict[int, list[bytes]]) -> None:
    """Until so many records more are there."""
    deadline = time.monotonic() + 20
    while wanted > 0:
        assert time.monotonic() < deadline, f"{wanted} records are missing"
        for place, records in consumer.poll(200).items():
            found[place.partition] += [record.value for record in records]
            wanted -= len(records)


def test_many_partitions_of_which_few_have_news(server: str, broker: BrokerProcess) -> None:
    """The client fetches in a session: it says and is told what has changed."""
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        client.create_topic("reading", partitions=PARTITIONS)
    dice = random.Random(1)
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    consumer = KafkaConsumer(bootstrap_servers=server, auto_offset_reset="earliest", fetch_max_wait_ms=100)
    places = [TopicPartition("reading", number) for number in range(PARTITIONS)]
    consumer.assign(places)
    sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    paused: list[TopicPartition] = []
    for step in range(40):
        chosen = dice.sample(range(PARTITIONS), 3)
        for number in chosen:
            sent[number].append(b"%d" % step)
            producer.send("reading", sent[number][-1], partition=number)
        producer.flush()
        consumer.resume(*paused)
        missing = sum(map(len, sent.values())) - sum(map(len, found.values()))
        poll(consumer, missing, found)
        paused = dice.sample(places, 5)
        consumer.pause(*paused)
        consumer.poll(0)
    assert found == sent
    (session,) = consumer._fetcher._session_handlers.values()
    assert session.next_metadata.epoch > 10, "it has not gone on with one session"
    consumer.close()
    producer.close()


def test_the_newest_requests_of_administrators(server: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    began_ms = int(time.time() * 1000) - 60_000  # retention looks at what is older than a week
    for number, time_ms in enumerate((began_ms, began_ms + 9_000, began_ms + 5_000)):
        producer.produce("reading-times", b"%d" % number, timestamp=time_ms)
        producer.flush(10)
    client = admin.AdminClient({"bootstrap.servers": server})
    place = confluent_kafka.TopicPartition("reading-times", 0)
    spec = admin.OffsetSpec
    wanted = {
        spec.earliest(): 0,
        spec.latest(): 3,
        spec.max_timestamp(): 1,
        spec.for_timestamp(began_ms + 1_000): 1,
    }
    for asked, offset in wanted.items():
        (done,) = client.list_offsets({place: asked}, request_timeout=10).values()
        assert done.result(10).offset == offset
    cluster = client.describe_cluster(request_timeout=10).result(10)
    assert [(node.id, f"{node.host}:{node.port}") for node in cluster.nodes] == [(0, server)]
    described = client.describe_topics(
        confluent_kafka.TopicCollection(["reading-times"]), include_authorized_operations=True, request_timeout=10
    )
    topic = described["reading-times"].result(10)
    assert [partition.id for partition in topic.partitions] == [0]
    assert str(topic.topic_id)
    assert {operation.name for operation in topic.authorized_operations} >= {"READ", "WRITE", "ALTER"}


def test_a_client_with_a_request_for_each_of_many_partitions_is_waited_with(tmp_path: Path) -> None:
    """librdkafka sends a request for each partition, and as many as there are behind one that waits."""
    config = tmp_path / "config.toml"
    config.write_text("[kafka]\nrequests_in_flight_max = 10\n")
    with broker_process(tmp_path / "data", doors=("native", "kafka"), arguments=["--config", str(config)]) as broker:
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
            client.create_topic("many", partitions=200)
            failures: list[Any] = []
            settings = {"bootstrap.servers": f"127.0.0.1:{broker.ports['kafka']}", "error_cb": failures.append}
            producer = confluent_kafka.Producer({**settings, "linger.ms": 200})
            for _ in range(3):
                for number in range(200):
                    producer.produce("many", b"x", partition=number, on_delivery=lambda e, _: e and failures.append(e))
                assert producer.flush(20) == 0
            stored = client.list_many_offsets([("many", number, "latest") for number in range(200)])
        assert stored == [3] * 200
        assert failures == []
        assert "kafka connection ended" not in broker.log_path.read_text()


@pytest.mark.parametrize(
    ("setting", "value", "header"),
    [
        ("millrace.delay.enable", "true", ("x-delay", "600000")),
        ("millrace.expiry.enable", "true", ("x-ttl", "0")),
        ("millrace.deduplication.window.ms", "600000", ("message-id", "1")),
        ("millrace.priority.group", "somebody", ("x-priority", "3")),
    ],
)
def test_batches_of_which_nothing_is_left_are_no_error(
    server: str, setting: str, value: str, header: tuple[str, str]
) -> None:
    """librdkafka doubles what it asks for at each reply without a record, and raises an error when that is too much."""
    client = admin.AdminClient({"bootstrap.servers": server})
    client.create_topics([admin.NewTopic(setting, 1, 1, config={setting: value})])[setting].result(30)
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": server, "group.id": "g", "enable.partition.eof": True, "fetch.wait.max.ms": 20,
    })  # fmt: skip
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "linger.ms": 0})
    consumer.assign([confluent_kafka.TopicPartition(setting, 0, 0)])
    deadline = time.monotonic() + 30
    for number in range(20):
        producer.produce(setting, b"x", partition=0, headers=[header])
        assert not producer.flush(20)
        while True:
            assert time.monotonic() < deadline
            found = consumer.poll(0.5)
            if found is not None and found.error() is not None:
                assert found.error().code() == EOF, found.error()
                if found.offset() > number:
                    break
    consumer.close()
