"""Priorities for plain Kafka clients: records that overtake others, in topics that have a group for which they do."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
kafka = pytest.importorskip("kafka")
DOORS = ("amqp", "mqtt", "native", "kafka")
GROUP, AHEAD = "workers", 20


def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def made(broker: BrokerProcess, partitions: int = 1, **config: str) -> str:
    name = f"first.{uuid.uuid4().hex}"
    client = admin.AdminClient({"bootstrap.servers": server(broker)})
    asked = {"millrace.priority.group": GROUP, "millrace.priority.ahead": str(AHEAD)} | config
    client.create_topics([admin.NewTopic(name, partitions, 1, config=asked)])[name].result(30)
    return name


def send(broker: BrokerProcess, topic: str, values: range, priority: object = None, partitions: int = 1) -> list[Any]:
    reports: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server(broker), "enable.idempotence": True})
    headers = [] if priority is None else [("x-priority", str(priority).encode())]
    for value in values:
        producer.produce(
            topic, b"%d" % value, partition=value % partitions, headers=headers,
            on_delivery=lambda error, message: reports.append(error),
        )  # fmt: skip
    assert not producer.flush(30)
    return reports


class Worker:
    """kafka-python's consumer, that commits each record."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.client = kafka.KafkaConsumer(
            topic, bootstrap_servers=server(broker), group_id=GROUP, auto_offset_reset="earliest",
            enable_auto_commit=False, max_poll_records=1, session_timeout_ms=6000, heartbeat_interval_ms=1000,
        )  # fmt: skip

    def take(self, count: int, patience_s: float = 20) -> list[int]:
        found: list[int] = []
        ends = time.monotonic() + patience_s
        while len(found) < count and time.monotonic() < ends:
            for records in self.client.poll(200).values():
                found += [int(one.value) for one in records]
                self.client.commit()
        return found

    def await_end(self, offset: int, patience_s: float = 20) -> None:
        """Until the log ends there."""
        (place,) = self.client.assignment()
        ends = time.monotonic() + patience_s
        while self.client.end_offsets([place])[place] != offset and time.monotonic() < ends:
            time.sleep(0.01)
        assert self.client.end_offsets([place])[place] == offset


def test_urgent_records_overtake_those_that_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    options = ("--config", str(config))
    with broker_process(tmp_path / "data", doors=DOORS, arguments=options) as broker:
        topic = made(broker)
        assert not any(send(broker, topic, range(300)))
        worker = Worker(broker, topic)
        assert worker.take(5) == list(range(5))
        worker.await_end(300 + 5 + AHEAD)  # there is no room again, so that no single one comes before the others
        assert not any(send(broker, topic, range(1000, 1010), 9) + send(broker, topic, range(2000, 2005), 4))
        found = worker.take(60)
        worker.client.close()
        urgent = found.index(1000)
        assert urgent <= AHEAD, "no more than is ahead of the group is before it"
        assert found[urgent : urgent + 15] == [*range(1000, 1010), *range(2000, 2005)]
        broker.kill9()
        broker.start()
        worker = Worker(broker, topic)
        assert not any(send(broker, topic, range(3000, 3002), 9))
        missing = {*range(300), *range(1000, 1010), *range(2000, 2005), 3000, 3001} - {*range(5), *found}
        ends, left = time.monotonic() + 30, list[int]()
        while missing - set(left) and time.monotonic() < ends:
            left += worker.take(1, 1)
        worker.client.close()
        assert not missing - set(left)
        assert left.index(3000) <= 2 * AHEAD + 15, "and of those before the crash"


def test_partitions_wait_each_for_itself_and_all_may_be_let_go(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as broker:
        topic = made(broker, 2)
        assert not any(send(broker, topic, range(100), partitions=2))
        reader = confluent_kafka.Consumer({"bootstrap.servers": server(broker), "group.id": "others"})
        ends = [confluent_kafka.TopicPartition(topic, index, 0) for index in range(2)]

        def read(count: int) -> list[int]:
            reader.assign(ends)
            found: list[int] = []
            while len(found) < count:
                message = reader.poll(20)
                assert message is not None, f"{len(found)} of {count}"
                assert not message.error()
                found.append(int(message.value()))
            assert reader.poll(0.3) is None, "no more is there yet"
            return found

        assert sorted(read(2 * AHEAD)) == list(range(2 * AHEAD))
        committed = confluent_kafka.Consumer({"bootstrap.servers": server(broker), "group.id": GROUP})
        committed.commit(offsets=[confluent_kafka.TopicPartition(topic, 1, 1000)], asynchronous=False)
        assert sorted(read(AHEAD + 50)) == sorted([*range(0, 2 * AHEAD, 2), *range(1, 100, 2)])
        client = admin.AdminClient({"bootstrap.servers": server(broker)})
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)
        resource.add_incremental_config(
            admin.ConfigEntry("millrace.priority.group", None, incremental_operation=admin.AlterConfigOpType.DELETE)
        )
        client.incremental_alter_configs([resource])[resource].result(20)
        assert sorted(read(100)) == list(range(100))
        assert not any(send(broker, topic, range(100, 104), "no matter", partitions=2))
        assert len(read(104)) == 104
        reader.close()
        committed.close()


@pytest.mark.parametrize("priority", ["", "high", "-1", "1.5"])
def test_what_is_no_priority_is_refused(shared: BrokerProcess, priority: str) -> None:
    topic = made(shared)
    (error,) = send(shared, topic, range(1), priority)
    assert error.code() == confluent_kafka.KafkaError.INVALID_RECORD


def test_larger_priorities_count_as_the_largest_and_delays_count_as_well(shared: BrokerProcess) -> None:
    topic = made(shared, **{"millrace.delay.enable": "true", "millrace.priority.ahead": "1"})
    assert not any(send(shared, topic, range(3)) + send(shared, topic, range(10, 11), 9))
    assert not any(send(shared, topic, range(20, 21), 255))
    worker = Worker(shared, topic)
    assert worker.take(5) == [0, 10, 20, 1, 2]
    producer = kafka.KafkaProducer(bootstrap_servers=server(shared))
    at = time.monotonic()
    producer.send(topic, b"31", headers=[("x-delay", b"700"), ("x-priority", b"9")]).get(10)
    assert worker.take(1) == [31]
    assert time.monotonic() - at >= 0.6
    worker.client.close()
    producer.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("priorities")
    (directory / "config.toml").write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    arguments = ("--config", str(directory / "config.toml"))
    with broker_process(directory / "data", doors=DOORS, arguments=arguments) as broker:
        yield broker
