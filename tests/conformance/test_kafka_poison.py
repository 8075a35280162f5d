"""Dead letters for plain Kafka clients: a record that nobody in a group gets past goes, and the group moves on."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support import broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
_DIES_AT = """
import os, sys, confluent_kafka
server, topic, poison, enough = sys.argv[1], sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
consumer = confluent_kafka.Consumer({
    "bootstrap.servers": server, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    "session.timeout.ms": 1000, "heartbeat.interval.ms": 100,
})
consumer.subscribe([topic])
for _ in range(enough):
    got = consumer.poll(20)
    print(got.value().decode(), flush=True)
    if got.value() == poison:
        os._exit(3)
    consumer.commit(got, asynchronous=False)
consumer.close()
"""
"""A consumer that commits each record, and dies of one."""


def test_a_consumer_that_dies_of_a_record_goes_on_behind_it_after_some_tries(tmp_path: Path) -> None:
    config_file = tmp_path / "config.toml"
    config_file.write_text("[engine]\ngroup_initial_delay_ms = 0\ngroup_session_timeout_ms_min = 500\n")
    with broker_process(tmp_path / "data", doors=DOORS, arguments=["--config", str(config_file)]) as broker:
        server, topic = f"127.0.0.1:{broker.ports['kafka']}", f"poisoned.{uuid.uuid4().hex}"
        client = admin.AdminClient({"bootstrap.servers": server})
        config = {"millrace.dead.letter.fetches": "1"}
        client.create_topics([admin.NewTopic(topic, 1, 1, config=config)])[topic].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": server})
        for number in range(6):
            producer.produce(topic, b"%d" % number, b"k%d" % number, headers=[("h", b"\xff")])
        assert not producer.flush(20)
        command = [sys.executable, "-c", _DIES_AT, server, topic, "2"]
        runs = []
        for enough in (6, 6, 3):
            done = subprocess.run([*command, str(enough)], capture_output=True, text=True, timeout=60, check=False)
            runs.append((done.returncode, done.stdout.split()))
        assert runs == [(3, ["0", "1", "2"]), (3, ["2"]), (0, ["3", "4", "5"])]
        reader = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "r"})
        reader.assign([confluent_kafka.TopicPartition(f"{topic}.dlq", 0, 0)])
        dead = reader.poll(20)
        assert (dead.key(), dead.value()) == (b"k2", b"2")
        headers = dict(dead.headers())
        timestamp = headers.pop("x-dead-letter-timestamp")
        assert timestamp.isdigit()
        assert headers == {
            "h": b"\xff", "x-dead-letter-reason": b"fetches", "x-dead-letter-group": b"g",
            "x-dead-letter-topic": topic.encode(), "x-dead-letter-partition": b"0", "x-dead-letter-offset": b"2",
            "x-dead-letter-tries": b"1",
        }  # fmt: skip
        assert reader.poll(0.2) is None
        reader.close()
