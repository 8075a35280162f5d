"""Time for plain Kafka clients: records that ask to be delivered later, in topics that allow it."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
SETTING = "millrace.delay.enable"


def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def made(broker: BrokerProcess, partitions: int = 2, **config: str) -> str:
    name = f"later.{uuid.uuid4().hex}"
    client = admin.AdminClient({"bootstrap.servers": server(broker)})
    asked = {SETTING: "true"} | config
    client.create_topics([admin.NewTopic(name, partitions, 1, config=asked)])[name].result(30)
    return name


class Producer:
    """A producer that remembers what it was told."""

    def __init__(self, broker: BrokerProcess, **options: Any) -> None:
        self.client = confluent_kafka.Producer({"bootstrap.servers": server(broker), "linger.ms": 20} | options)
        self.reports: list[tuple[Any, bytes]] = []

    def send(
        self, topic: str, value: bytes, partition: int = 0, *, key: bytes | None = None, **headers: object
    ) -> None:
        said = [(name.replace("_", "-"), str(text).encode()) for name, text in headers.items()]
        self.client.produce(
            topic, value, key, partition, headers=[("raw", b"\xff"), ("none", None), *said],
            on_delivery=lambda error, message: self.reports.append((error, message.value())),
        )  # fmt: skip

    def flush(self) -> None:
        assert not self.client.flush(20)


def read(broker: BrokerProcess, topic: str, count: int, partitions: int = 2) -> list[tuple[float, Any]]:
    """So many records, with the time when each was there."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server(broker), "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found = []
    ends = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < ends, f"{len(found)} of {count}"
        got = consumer.poll(0.5)
        if got is not None:
            assert not got.error()
            found.append((time.time(), got))
    assert consumer.poll(0.3) is None
    consumer.close()
    return found


@pytest.mark.parametrize(("idempotent", "codec"), [(True, "none"), (False, "gzip")])
def test_records_are_there_when_they_are_due_and_others_overtake_them(
    tmp_path: Path, idempotent: bool, codec: str
) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as broker:
        topic = made(broker)
        producer = Producer(broker, **{"enable.idempotence": idempotent, "compression.type": codec})
        began = time.time()
        due: dict[bytes, float] = {}
        for number in range(40):
            value, partition = b"%d" % number, number % 2
            if number % 4 == 1:
                due[value] = began + 1.0
                producer.send(topic, value, partition, key=b"k", x_delay=1000)
            elif number % 4 == 2:
                due[value] = began + 0.6
                producer.send(topic, value, partition, deliver_at=int(began * 1000) + 600)
            else:
                producer.send(topic, value, partition, x_delay=0 if number % 3 else -5)
        producer.flush()
        assert [error for error, _ in producer.reports] == [None] * 40
        producer.send(topic, b"after", 0)  # sequences go on
        producer.flush()
        found = read(broker, topic, 41)
        assert Counter(one.value() for _, one in found) == Counter(
            [b"after", *(b"%d" % number for number in range(40))]
        )
        for at, one in found:
            assert at >= due.get(one.value(), 0)
            if one.value() in due:
                number = int(one.value())
                assert one.partition() == number % 2
                assert one.key() == (b"k" if number % 4 == 1 else None)
                assert one.headers()[:2] == [("raw", b"\xff"), ("none", None)]
        positions = [(one.partition(), one.offset()) for _, one in found if one.partition() == 0]
        assert positions == sorted(positions)


def test_what_waits_outlives_a_crash_and_bad_times_are_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as broker:
        topic = made(broker, 1)
        producer = Producer(broker)
        for number in range(50):
            producer.send(topic, b"%d" % number, x_delay=1500)
        producer.send(topic, b"now")
        producer.flush()
        broker.kill9()
        broker.start()
        found = read(broker, topic, 51, 1)
        assert Counter(one.value() for _, one in found) == Counter([b"now", *(b"%d" % number for number in range(50))])
        producer = Producer(broker)
        producer.send(topic, b"bad", x_delay="soon")
        producer.flush()
        ((error, _),) = producer.reports
        assert error.code() == confluent_kafka.KafkaError.INVALID_RECORD
        with_client = admin.AdminClient({"bootstrap.servers": server(broker)})
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
        described = with_client.describe_configs([resource])[resource].result(20)
        assert described[SETTING].value == "true"
        plain = made(broker, 1, **{SETTING: "false"})
        producer.send(plain, b"at once", x_delay=60_000)
        producer.flush()
        assert [one.value() for _, one in read(broker, plain, 1, 1)] == [b"at once"]
