"""One group with members of both protocols: confluent-kafka, kafka-python and the native client, on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio
from kafka import KafkaConsumer

from millrace import BlockingClient, BlockingProducer, Consumer, LinkConfig
from tests.support.broker_process import BrokerProcess, broker_process

PARTITIONS = 12
Partition = tuple[str, int]
Assigned = dict[str, set[Partition]]


class Members:
    """Members in threads, and what each has at the moment."""

    def __init__(self, broker: BrokerProcess, topic: str, assignor: str, *, served: bool) -> None:
        self.served = served
        self.kafka = f"127.0.0.1:{broker.ports['kafka']}"
        self.native = f"127.0.0.1:{broker.ports['native']}"
        self.topic, self.assignor = topic, assignor
        self.assigned: Assigned = {}
        self.seen: dict[str, list[bytes | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._stops: dict[str, threading.Event] = {}

    def start(self, name: str, run: Callable[[str, threading.Event], None]) -> None:
        self._stops[name] = threading.Event()
        self.seen[name] = []
        self._threads[name] = threading.Thread(target=run, args=(name, self._stops[name]))
        self._threads[name].start()

    def stop(self, *names: str) -> None:
        for name in names:
            self._stops[name].set()
        for name in names:
            self._threads.pop(name).join(20)
            self.assigned.pop(name, None)

    def stop_all(self) -> None:
        self.stop(*self._threads)

    def until_divided(self, count: int) -> None:
        """All partitions have exactly one owner, and each member some."""
        every = {(self.topic, index) for index in range(PARTITIONS)}
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            parts = list(self.assigned.values())
            if (
                len(parts) == count
                and all(parts)
                and sum(map(len, parts)) == PARTITIONS
                and set().union(*parts) == every
            ):
                return
            time.sleep(0.02)
        raise AssertionError(self.assigned)

    def kafka_python(self, name: str, stop: threading.Event) -> None:
        consumer = KafkaConsumer(
            self.topic, bootstrap_servers=self.kafka, group_id=self.topic, auto_offset_reset="earliest",
            heartbeat_interval_ms=200, metadata_max_age_ms=500,
        )  # fmt: skip
        while not stop.is_set():
            for records in consumer.poll(50).values():
                self.seen[name] += [record.value for record in records]
            self.assigned[name] = {(one.topic, one.partition) for one in consumer.assignment()}
        consumer.close()

    def confluent(self, name: str, stop: threading.Event) -> None:
        settings = {"bootstrap.servers": self.kafka, "group.id": self.topic, "auto.offset.reset": "earliest"}
        if self.served:
            settings |= {"group.protocol": "consumer", "group.remote.assignor": self.assignor}
        else:
            settings |= {"heartbeat.interval.ms": "200", "partition.assignment.strategy": self.assignor}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self.topic])
        while not stop.is_set():
            self.seen[name] += [one.value() for one in consumer.consume(100, 0.05)]
            self.assigned[name] = {(one.topic, one.partition) for one in consumer.assignment()}
        consumer.close()

    def of_native(self, name: str, stop: threading.Event) -> None:
        async def run() -> None:
            ways: dict[str, Any] = {"assignors": [self.assignor], "heartbeat_interval_ms": 200}
            if self.served:
                ways = {"group_protocol": "consumer", "server_assignor": self.assignor}
            async with Consumer(
                self.native, self.topic, topics=self.topic, auto_offset_reset="earliest", auto_commit_interval_ms=500,
                link=LinkConfig(client_name=name), **ways,
            ) as consumer:  # fmt: skip
                while not stop.is_set():
                    self.seen[name] += [record.value for record in await consumer.poll(50)]
                    self.assigned[name] = set(consumer.assignment)

        trio.run(run)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    config = tmp_path_factory.mktemp("shared") / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 300\nconsumer_heartbeat_interval_ms = 200\n")
    with broker_process(
        Path(config).with_name("data"),
        doors=["native", "kafka"],
        arguments=["--config", str(config)],
    ) as found:
        yield found


@pytest.mark.parametrize("first", ["native", "kafka"])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", "uniform"])
def test_members_of_both_protocols_share_a_group(broker: BrokerProcess, assignor: str, first: str) -> None:
    topic = f"{assignor}-{first}"
    members = Members(broker, topic, assignor, served=assignor == "uniform")
    with BlockingClient(members.native) as client:
        client.create_topic(topic, partitions=PARTITIONS)
    values = [b"%d" % number for number in range(600)]
    with BlockingProducer(members.native) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
    kinds = [("n1", members.of_native), ("c1", members.confluent)]
    if assignor == "range":
        kinds.append(("k1", members.kafka_python))
    if first == "kafka":
        kinds.reverse()
    try:
        for count, (name, run) in enumerate(kinds, 1):
            members.start(name, run)  # who comes first leads, and divides for all
            members.until_divided(count)
        members.start("n2", members.of_native)
        members.until_divided(len(kinds) + 1)
        members.stop(kinds[0][0])
        members.until_divided(len(kinds))
        deadline = time.monotonic() + 20
        while sum(map(len, members.seen.values())) < len(values) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        members.stop_all()
    assert sorted(value for seen in members.seen.values() for value in seen if value) == sorted(values)
