"""A Kafka client and three brokers, one of which is killed: nothing confirmed is lost, nothing is there twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import cluster_processes

confluent_kafka = pytest.importorskip("confluent_kafka")
TOPIC = "kafka-cluster"
DOORS = ("amqp", "mqtt", "native", "kafka")


def test_an_idempotent_producer_and_a_group_live_through_the_death_of_a_leader(tmp_path: Path) -> None:
    with cluster_processes(tmp_path, relayed=False, doors=DOORS) as brokers:
        brokers.until_whole()
        servers = ",".join(f"{broker.host}:{broker.ports['kafka']}" for broker in brokers.brokers.values())
        producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        sent: list[bytes] = []
        reports: list[Any] = []

        def send(count: int) -> None:
            for _ in range(count):
                sent.append(b"%d" % len(sent))
                producer.produce(TOPIC, sent[-1], on_delivery=lambda error, _: reports.append(error))
                producer.poll(0)

        send(200)
        assert producer.flush(30) == 0
        (partition,) = producer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
        assert sorted(partition.replicas) == [1, 2, 3]
        send(100)
        brokers.kill9(partition.leader)
        send(200)
        assert producer.flush(60) == 0
        assert reports == [None] * 500
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": "kafka-cluster", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < len(sent) and time.monotonic() < deadline:
            found += [one.value() for one in consumer.consume(500, 0.5) if not one.error()]
        consumer.close()
        assert found == sent
