"""Retries and times to live for plain Kafka clients in a cluster, one broker of which is killed in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import cluster_processes

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
TOPIC, EXPIRING, POISON, DELAY_MS = "tried", "expiring", b"2", 3000


class Cluster:
    """What clients of it do."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = admin.AdminClient({"bootstrap.servers": servers})

    def leader(self, topic: str) -> int:
        found: int = self.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
        return found

    def coordinator(self, group: str) -> int:
        (described,) = self.admin.describe_consumer_groups([group]).values()
        found: int = described.result(20).coordinator.id
        return found

    def send(self, topic: str, values: dict[bytes, list[tuple[str, bytes]]]) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        reports: list[Any] = []
        for value, headers in values.items():
            producer.produce(topic, value, headers=headers, on_delivery=lambda error, _: reports.append(error))
        assert not producer.flush(30)
        assert reports == [None] * len(values)

    def work(self, group: str, until: bytes, *, patience_s: float) -> list[tuple[bytes, bool]]:
        """A worker that commits each record, and leaves behind the one `until`, or at one that it cannot bear: values,
        and whether they come again.
        """
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": self.servers, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 6000, "fetch.wait.max.ms": 50,
        })  # fmt: skip
        consumer.subscribe([TOPIC])
        found, ends = [], time.monotonic() + patience_s
        try:
            while time.monotonic() < ends:
                record = consumer.poll(0.1)
                if record is None or record.error():
                    continue
                found.append((record.value(), "x-retry-count" in dict(record.headers() or ())))
                if record.value() == POISON:
                    break
                consumer.commit(record, asynchronous=False)
                if record.value() == until:
                    break
            return found
        finally:
            consumer.close()

    def read(self, topic: str, count: int, quiet_s: float = 0.5) -> list[Any]:
        """So many records from the beginning, and no more."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "reader"})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found, ends = [], time.monotonic() + 30
        while time.monotonic() < ends:
            record = consumer.poll(0.1)
            if record is not None and not record.error():
                found.append(record)
                if len(found) == count:
                    ends = time.monotonic() + quiet_s
        consumer.close()
        return found


@pytest.mark.soak
def test_what_is_put_off_comes_again_and_what_is_too_old_does_not_though_their_leader_is_killed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    arguments = ("--config", str(tmp_path / "config.toml"))
    with cluster_processes(tmp_path, relayed=False, arguments=arguments, doors=DOORS) as brokers:
        brokers.until_whole()
        clients = Cluster(",".join(f"{one.host}:{one.ports['kafka']}" for one in brokers.brokers.values()))
        retries = {"millrace.dead.letter.fetches": "1", "millrace.retry.delays.ms": str(DELAY_MS)}
        dead, group = f"{TOPIC}.dlq", "workers"
        leader, *others = sorted(brokers.brokers, key=lambda number: number == clients.coordinator(group))
        for name, config, where in (
            (TOPIC, retries, [leader, *others]),
            (EXPIRING, {"millrace.expiry.enable": "true"}, [leader, *others]),
            (dead, {}, [*others, leader]),
        ):
            made = admin.NewTopic(name, 1, replica_assignment=[where], config=config)
            clients.admin.create_topics([made])[name].result(30)
        brokers.until_whole(topics=(TOPIC, EXPIRING, dead))
        assert clients.leader(TOPIC) == clients.leader(EXPIRING) == leader != clients.leader(dead)
        clients.send(TOPIC, {b"%d" % number: [("h", b"\xff")] for number in range(4)})
        lives = {b"0": [("x-ttl", b"600000")], b"1": [("x-ttl", b"1")], b"2": []}
        clients.send(EXPIRING, lives)
        assert [one.value() for one in clients.read(EXPIRING, 2)] == [b"0", b"2"]
        assert clients.work(group, b"3", patience_s=20) == [(b"0", False), (b"1", False), (POISON, False)]
        assert clients.work(group, b"3", patience_s=20) == [(POISON, False)]
        assert clients.work(group, b"3", patience_s=20) == [(b"3", False)], "it is put off"
        brokers.kill9(leader)
        again = [clients.work(group, b"", patience_s=20) for _ in range(2)]
        assert again == [[(POISON, True)]] * 2
        assert clients.leader(TOPIC) != leader
        assert clients.work(group, b"", patience_s=2) == []
        (letter,) = clients.read(dead, 1)
        said = dict(letter.headers())
        assert (letter.value(), said["h"], said["x-dead-letter-offset"]) == (POISON, b"\xff", b"2")
        assert [one.value() for one in clients.read(TOPIC, 5)] == [b"0", b"1", b"2", b"3", b"2"]
        assert clients.leader(EXPIRING) != leader
        assert [one.value() for one in clients.read(EXPIRING, 2)] == [b"0", b"2"]
