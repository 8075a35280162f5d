"""Partitions added under load to a topic whose keys keep their order, with the clients of Kafka and the native one."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from millrace import Consumer, LinkConfig
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
KEYS, AGE_MS, PATIENCE_S = 40, 100, 150
NUMBERS_MAX = 200_000
SETTLE = "millrace.split.settle.ms"


def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


class Ledger:
    """What a group has got, whichever of its members."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = defaultdict(int)
        """By key, how many: the number of a record within its key is the same if their order is kept."""
        self.partitions: dict[bytes, list[int]] = defaultdict(list)
        """By key, those that its records were in, in their order."""
        self.wrong: list[tuple[bytes, int, int]] = []
        self.slow = False
        """Whoever works on the first four takes long."""
        self._lock = threading.Lock()

    @property
    def moved(self) -> list[list[int]]:
        """Where the records of keys were that have come to a new partition."""
        with self._lock:
            return [found for found in self.partitions.values() if max(found) > 3]

    def took(self, key: bytes, value: bytes, index: int) -> None:
        number = int(value)
        if self.slow and index < 4:
            time.sleep(0.002)
        with self._lock:
            if number > self.counts[key]:
                self.wrong.append((key, self.counts[key], number))
            self.counts[key] = max(self.counts[key], number + 1)  # what was not committed may come once more
            if index not in self.partitions[key]:
                self.partitions[key].append(index)


class Load:
    """What producers have sent, and whether they know of all partitions."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.sent: dict[bytes, int] = defaultdict(int)
        self.stop = threading.Event()
        self.settled = [threading.Event(), threading.Event()]
        """Of each producer: all that it divides among fewer partitions has been delivered."""

    def keys(self, name: bytes, pause_s: float) -> Iterator[tuple[bytes, bytes]]:
        """Numbered records of each key."""
        for number in range(NUMBERS_MAX):
            if self.stop.is_set():
                break
            key = b"%s.%d" % (name, number % KEYS)
            yield key, b"%d" % self.sent[key]
            self.sent[key] += 1
            if not number % KEYS:
                time.sleep(pause_s)

    def by_librdkafka(self) -> None:
        """It learns of partitions in its own time, and tells it by where records have gone."""
        producer = confluent_kafka.Producer({
            "bootstrap.servers": server(self.broker), "linger.ms": 5, "enable.idempotence": True,
            "topic.metadata.refresh.interval.ms": AGE_MS, "partitioner": "murmur2_random",
        })  # fmt: skip
        knows = threading.Event()

        def delivered(error: object, message: Any) -> None:
            assert error is None
            if message.partition() > 3:
                knows.set()

        for key, value in self.keys(b"rdkafka", 0.02):
            producer.produce(self.topic, value, key, on_delivery=delivered)
            producer.poll(0)
            if knows.is_set() and not self.settled[0].is_set() and not producer.flush(60):
                self.settled[0].set()
        assert not producer.flush(60)

    def by_kafka_python(self) -> None:
        """The same; it is asked."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=server(self.broker), linger_ms=5, metadata_max_age_ms=AGE_MS
        )  # fmt: skip
        for key, value in self.keys(b"python", 0.04):
            knows = not self.settled[1].is_set() and len(producer.partitions_for(self.topic)) > 4
            producer.send(self.topic, value, key)
            if knows:
                producer.flush(60)
                self.settled[1].set()
        producer.flush(60)
        producer.close()


def read_in_python(broker: BrokerProcess, topic: str, over: threading.Event, ledger: Ledger) -> None:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=server(broker), group_id="kafka", auto_offset_reset="earliest",
        enable_auto_commit=False, metadata_max_age_ms=AGE_MS, fetch_max_wait_ms=50, max_poll_records=50,
        heartbeat_interval_ms=100,
        partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
    )  # fmt: skip
    while not over.is_set():
        # A poll that ends in a rebalance would be the end of this member: kafka-python 3.0.12 forgets it then.
        for record in [one for each in consumer.poll(700).values() for one in each]:
            ledger.took(record.key, record.value, record.partition)
        with suppress(kafka.errors.KafkaError):  # the other member came
            consumer.commit()
    consumer.close(autocommit=False)


def read(broker: BrokerProcess, topic: str, over: threading.Event, ledger: Ledger) -> None:
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": server(broker), "group.id": "kafka", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": AGE_MS, "fetch.wait.max.ms": 50,
        "heartbeat.interval.ms": 100, "partition.assignment.strategy": "range",
    })  # fmt: skip
    consumer.subscribe([topic])
    while not over.is_set():
        found = consumer.consume(50, 0.05)
        for record in found:
            assert not record.error()
            ledger.took(record.key(), record.value(), record.partition())
        if found:
            with suppress(confluent_kafka.KafkaException):  # the other member came
                consumer.commit(asynchronous=False)
    consumer.close()


def read_natively(broker: BrokerProcess, topic: str, over: threading.Event, ledger: Ledger) -> None:
    async def run() -> None:
        link = LinkConfig(metadata_max_age_ms=AGE_MS)
        async with Consumer(
            f"127.0.0.1:{broker.native_port}", "native", topics=topic, auto_offset_reset="earliest", link=link
        ) as consumer:
            while not over.is_set():
                with trio.move_on_after(0.05):
                    for record in await consumer.fetch():
                        ledger.took(record.key or b"", record.value or b"", record.partition)
                await consumer.commit()

    trio.run(run)


@pytest.mark.soak
def test_keys_keep_their_order_while_four_partitions_become_eight(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    arguments = ("--config", str(tmp_path / "config.toml"))
    with broker_process(tmp_path / "data", doors=DOORS, arguments=arguments) as broker:
        topic = f"split.{uuid.uuid4().hex}"
        client = admin.AdminClient({"bootstrap.servers": server(broker)})
        config = {"millrace.split.groups": "kafka,native"}
        client.create_topics([admin.NewTopic(topic, 4, 1, config=config)])[topic].result(30)
        load, over = Load(broker, topic), threading.Event()
        ledgers = [Ledger(), Ledger()]
        readers = [(read, ledgers[0]), (read_in_python, ledgers[0]), (read_natively, ledgers[1])]
        errors: list[BaseException] = []
        ends = time.monotonic() + PATIENCE_S

        def until(condition: Callable[[], bool]) -> None:
            while not errors and time.monotonic() < ends and not condition():
                time.sleep(0.02)
            assert not errors
            assert condition(), [(one.counts, one.wrong[:3]) for one in ledgers]

        def work(what: Callable[[], None]) -> None:
            try:
                what()
            except BaseException as error:
                errors.append(error)

        works = [load.by_librdkafka, load.by_kafka_python]
        works += [partial(one, broker, topic, over, ledger) for one, ledger in readers]
        threads = [threading.Thread(target=work, args=(one,)) for one in works]
        try:
            for one in threads:
                one.start()
            until(lambda: all(len(one.counts) == 2 * KEYS for one in ledgers))
            for ledger in ledgers:
                ledger.slow = True
            client.create_partitions([admin.NewPartitions(topic, 8)])[topic].result(30)
            until(lambda: all(one.is_set() for one in load.settled))
            assert not any(one.moved for one in ledgers), "much waits in the four that were there"
            change = admin.ConfigEntry(SETTLE, "1", incremental_operation=admin.AlterConfigOpType.SET)
            resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[change])
            client.incremental_alter_configs([resource])[resource].result(30)
            for ledger in ledgers:
                ledger.slow = False
            until(lambda: all(len(one.moved) > KEYS // 2 for one in ledgers))
            load.stop.set()
            until(lambda: not any(one.is_alive() for one in threads[:2]))
            until(lambda: all(one.counts == load.sent for one in ledgers))
        finally:
            load.stop.set()
            over.set()
            for one in threads:
                one.join()
        assert not errors
        for ledger in ledgers:
            assert ledger.wrong == []
            assert KEYS // 2 < len(ledger.moved) < 2 * KEYS
            assert all(one[1] == one[0] + 4 for one in ledger.moved), "from one that was there to one that is new, once"
