"""Retries and times to live for plain Kafka clients: what a group fails at comes again, what is too old does not."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from shutil import which
from typing import Any

import pytest

from tests.support import broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
POISON = b"2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("retries")
    (directory / "config.toml").write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    arguments = ("--config", str(directory / "config.toml"))
    with broker_process(directory / "data", doors=DOORS, arguments=arguments) as broker:
        yield f"127.0.0.1:{broker.ports['kafka']}"


def made(server: str, **config: str) -> str:
    name = f"t.{uuid.uuid4().hex}"
    asked = {f"millrace.{key.replace('_', '.')}": value for key, value in config.items()}
    client = admin.AdminClient({"bootstrap.servers": server})
    client.create_topics([admin.NewTopic(name, 1, 1, config=asked)])[name].result(30)
    return name


def topics(server: str) -> set[str]:
    return set(admin.AdminClient({"bootstrap.servers": server}).list_topics(timeout=30).topics)


def worked_on(server: str, topic: str, *, until_s: float) -> list[tuple[bytes, int, bool]]:
    """A worker of kafka-python that commits each record and leaves at one that it cannot bear: value, offset, is it one
    that comes again.
    """
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=server, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
        max_poll_records=1, fetch_max_wait_ms=50,
    )  # fmt: skip
    found: list[tuple[bytes, int, bool]] = []
    try:
        while time.monotonic() < until_s:
            for record in [one for each in consumer.poll(50).values() for one in each]:
                found.append((record.value, record.offset, "x-retry-count" in dict(record.headers)))
                if record.value == POISON:
                    return found
                consumer.commit()
        return found
    finally:
        consumer.close(autocommit=False)


def read(server: str, topic: str) -> list[Any]:
    """All that a consumer of librdkafka gets who begins at the beginning, up to the end."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": server, "group.id": "r", "fetch.wait.max.ms": 50, "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while (got := consumer.poll(20)) is not None and got.error() is None:
        found.append(got)
    consumer.close()
    assert got is not None
    assert got.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    return found


def test_a_worker_goes_on_and_the_record_comes_again_until_it_is_a_dead_letter(server: str) -> None:
    topic = made(server, dead_letter_fetches="1", retry_delays_ms="200,400")
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    for number in range(4):
        producer.produce(topic, b"%d" % number, b"k", headers=[("h", b"\xff")])
    assert not producer.flush(20)
    began, runs = time.monotonic(), []
    while sum(len(run) for run in runs) < 9 and time.monotonic() < began + 60:
        # Each ends with what it cannot bear: one that ended before that may have fetched it.
        runs.append(worked_on(server, topic, until_s=time.monotonic() + 20))
    first = [(b"0", 0, False), (b"1", 1, False), (POISON, 2, False)]
    assert runs[:2] == [first, first[2:]]
    assert [one for run in runs[2:] for one in run] == [
        (b"3", 3, False), (POISON, 4, True), (POISON, 4, True), (POISON, 5, True), (POISON, 5, True),
    ]  # fmt: skip
    while f"{topic}.dlq" not in topics(server) and time.monotonic() < began + 80:
        assert worked_on(server, topic, until_s=time.monotonic() + 0.3) == []
    (dead,) = read(server, f"{topic}.dlq")
    said = dict(dead.headers())
    assert (dead.key(), dead.value(), said["h"]) == (b"k", POISON, b"\xff")
    assert (said["x-dead-letter-offset"], said["x-dead-letter-tries"]) == (b"2", b"3")
    found = read(server, topic)
    assert [(one.offset(), one.value()) for one in found] == list(enumerate([b"0", b"1", b"2", b"3", b"2", b"2"]))
    assert [one.timestamp() for one in found[4:]] == [found[2].timestamp()] * 2


def test_a_record_whose_time_is_up_is_seen_by_nobody(server: str) -> None:
    topic = made(server, expiry_enable="true")
    producer = confluent_kafka.Producer({
        "bootstrap.servers": server, "linger.ms": 20, "compression.type": "gzip", "enable.idempotence": True,
    })  # fmt: skip
    reports: list[Any] = []
    at_ms = int(time.time() * 1000)
    said = {0: ("x-ttl", b"60000"), 1: ("x-ttl", b"1"), 2: ("expires-at", b"%d" % (at_ms + 60_000)),
            3: ("expires-at", b"%d" % at_ms), 5: ("x-ttl", b"1")}  # fmt: skip
    for number in range(6):
        headers = [said[number]] if number in said else []
        producer.produce(topic, b"%d" % number, headers=headers, on_delivery=lambda error, _: reports.append(error))
    assert not producer.flush(20)
    assert reports == [None] * 6
    there = [0, 2, 4]
    assert [one.offset() for one in read(server, topic)] == there
    reader = kafka.KafkaConsumer(bootstrap_servers=server, check_crcs=True, consumer_timeout_ms=1000)
    place = kafka.TopicPartition(topic, 0)
    reader.assign([place])
    reader.seek(place, 0)
    assert [one.offset for one in reader] == there
    assert reader.position(place) == 6, "nobody stands still before what is gone"
    reader.close()
    if which("kcat"):
        command = ["kcat", "-b", server, "-t", topic, "-C", "-o", "beginning", "-e", "-q", "-J"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        assert [json.loads(line)["offset"] for line in told.splitlines()] == there
    producer.produce(topic, b"bad", headers=[("x-ttl", b"soon")], on_delivery=lambda error, _: reports.append(error))
    producer.flush(20)
    assert reports[-1].code() == confluent_kafka.KafkaError.INVALID_RECORD
    plain = made(server)
    producer.produce(plain, b"stays", headers=[("x-ttl", b"1")])
    assert not producer.flush(20)
    assert [one.value() for one in read(server, plain)] == [b"stays"]
