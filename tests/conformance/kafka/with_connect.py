"""Kafka Connect and MirrorMaker 2: programs that keep all they know in topics, groups and transactions of the broker.

A distributed worker copies the lines of a file into a topic, each exactly once, and those of the topic into another
file, while lines come and the broker is killed. MirrorMaker then copies the topic, and how far a group has read it, to
another broker.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from gateway.free_ports import free_ports
from millrace import BlockingClient
from tests.conformance.kafka.checks import until
from tests.conformance.kafka.java import CONNECT_JARS, VERSION, Java
from tests.support import BrokerProcess, broker_process

TOPIC, GROUP = "lines", "readers"
COUNT = 2_000
"""Lines before each kill."""
KILLS = 3
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
WORKER = {
    "group.id": "workers", "key.converter": CONVERTER, "value.converter": CONVERTER,
    "exactly.once.source.support": "enabled", "offset.flush.interval.ms": "500",
}  # fmt: skip
STORES = {f"{name}.storage.topic": f"connect-{name}" for name in ("offset", "config", "status")}
ONE_REPLICA = {
    f"{name}.replication.factor": "1"
    for name in ("offset.storage", "config.storage", "status.storage", "checkpoints.topic", "heartbeats.topic",
                 "offset-syncs.topic")
} | {"replication.factor": "1"}  # fmt: skip
MIRROR = {
    "clusters": "a, b", "a->b.enabled": "true", "a->b.topics": TOPIC, "b->a.enabled": "false",
    "sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1", "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
}  # fmt: skip
CONNECTORS = "org.apache.kafka.connect.file.FileStream{}Connector"


def written(path: Path, settings: Mapping[str, str]) -> str:
    """A file of properties."""
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return str(path)


def lines_of(path: Path) -> list[str]:
    """The lines that are in a file now."""
    return path.read_text().splitlines() if path.exists() else []


def end_of(broker: BrokerProcess, topic: str) -> int:
    """The offset after the last record of the only partition; 0 if there is no such topic."""
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        return client.list_offsets(topic, 0, "latest") or 0 if topic in client.metadata() else 0


class Worker:
    """The operations of a worker over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/connectors"

    def add(self, name: str, **config: str) -> None:
        """Create a connector. Raises OSError while the worker cannot."""
        said = json.dumps({"name": name, "config": {key.replace("_", "."): value for key, value in config.items()}})
        request = urllib.request.Request(self._url, said.encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()

    def states(self) -> list[str]:
        """Of all connectors and their tasks."""
        with urllib.request.urlopen(f"{self._url}?expand=status", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        states = [one["status"] for one in found.values()]
        return [part["state"] for one in states for part in (one["connector"], *one["tasks"])]


def is_added(worker: Worker, name: str, **config: str) -> bool:
    """Whether the connector could be created by now."""
    try:
        worker.add(name, **config)
    except OSError:
        return False
    return True


def check_connect(java: Java, broker: BrokerProcess) -> int:
    """File to topic to file; how many lines."""
    source, target = java.directory / "source.txt", java.directory / "target.txt"
    port = free_ports(1)[0]
    server = {"bootstrap.servers": f"127.0.0.1:{broker.ports['kafka']}", "listeners": f"http://127.0.0.1:{port}"}
    properties = written(java.directory / "worker.properties", WORKER | STORES | ONE_REPLICA | server)
    lines: list[str] = []
    with java.started("org.apache.kafka.connect.cli.ConnectDistributed", properties) as said:
        worker = Worker(port)
        one = {"topic_creation_default_replication_factor": "1", "topic_creation_default_partitions": "1"}
        source.touch()
        kind, what = CONNECTORS.format("Source"), {"file": str(source), "topic": TOPIC}
        until(lambda: is_added(worker, "source", connector_class=kind, **what, **one), said.read_text, seconds=120)
        kind, what = CONNECTORS.format("Sink"), {"file": str(target), "topics": TOPIC}
        until(lambda: is_added(worker, "sink", connector_class=kind, **what), said.read_text)
        for kills in range(KILLS + 1):
            more = [f"line {kills} {number}" for number in range(COUNT)]
            lines += more
            with source.open("a") as file:
                file.writelines(f"{line}\n" for line in more)
            if kills < KILLS:
                until(lambda: end_of(broker, TOPIC) > 0, said.read_text)
                broker.kill9()
                broker.start_again()
        until(lambda: len(lines_of(target)) >= len(lines), lambda: f"{len(lines_of(target))} {said.read_text()}")
        assert worker.states() == ["RUNNING"] * 4
    with KafkaConsumer(TOPIC, **consumer_settings(broker), group_id=GROUP, auto_offset_reset="earliest") as consumer:
        found: list[str] = []
        while len(found) < len(lines):
            for records in consumer.poll(5_000).values():
                found += [record.value.decode() for record in records]
        consumer.commit()
    assert found == lines, "each exactly once, in order"
    assert set(lines_of(target)) == set(lines)
    return len(lines)


def consumer_settings(broker: BrokerProcess) -> dict[str, Any]:
    """For those who read what is committed."""
    return {"bootstrap_servers": f"127.0.0.1:{broker.ports['kafka']}", "isolation_level": "read_committed"}


def check_mirror(java: Java, first: BrokerProcess, second: BrokerProcess, count: int) -> None:
    """The topic and the group of one broker are at another one."""
    servers = {
        f"{name}.bootstrap.servers": f"127.0.0.1:{broker.ports['kafka']}"
        for name, broker in (("a", first), ("b", second))
    }
    properties = written(java.directory / "mirror.properties", MIRROR | ONE_REPLICA | servers)
    copied = f"a.{TOPIC}"
    with java.started("org.apache.kafka.connect.mirror.MirrorMaker", properties) as said:
        until(lambda: end_of(second, copied) >= count, said.read_text, seconds=120)
        place = TopicPartition(copied, 0)

        def committed() -> OffsetAndMetadata | None:
            with KafkaConsumer(**consumer_settings(second), group_id=GROUP) as consumer:
                return consumer.committed(place)

        until(lambda: committed() is not None, said.read_text, seconds=60)
    with KafkaConsumer(**consumer_settings(second)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found: list[bytes] = []
        while len(found) < count:
            for records in consumer.poll(5_000).values():
                found += [record.value for record in records]
        assert len(set(found)) == len(found) == count


def run(directory: Path) -> str:
    """All of it, on brokers of its own."""
    java = Java(directory, VERSION, CONNECT_JARS)
    doors = ("native", "kafka")
    with (
        broker_process(directory / "first", doors=doors) as first,
        broker_process(directory / "second", doors=doors) as second,
    ):
        count = check_connect(java, first)
        check_mirror(java, first, second, count)
    return f"Connect and MirrorMaker {VERSION}: {count} lines, {KILLS} kills of the broker, each line once"
