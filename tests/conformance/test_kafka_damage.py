"""A bit that flipped in a topic's file, as Kafka's consumers see it: they are told where, and can go on behind it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")

TOPIC = "damaged"


def flip(data: Path, text: bytes) -> None:
    path = data / f"topics/{TOPIC}-0/00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[content.index(text)] ^= 1
    path.write_bytes(content)


def said(consumer: Any, last: str, timeout_s: float = 10.0) -> list[str]:
    """The values and names of errors that come, up to one of them."""
    found: list[str] = []
    end = time.monotonic() + timeout_s
    while last not in found and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None:
            found.append(message.error().name() if message.error() else message.value().decode())
    return found


def server_of(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def test_consumers_are_told_of_what_is_damaged_and_go_on_behind_it(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("kafka",)) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": server_of(broker), "linger.ms": 0})
        now_ms = int(time.time() * 1000)
        for time_ms, value in enumerate((b"first", b"second", b"third"), now_ms):
            producer.produce(TOPIC, value, timestamp=time_ms)
            assert producer.flush(10) == 0
        del producer
        broker.terminate()
        flip(tmp_path / "data", b"second")
        broker.start()
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": server_of(broker), "group.id": "none", "enable.auto.commit": False}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            assert said(consumer, "INVALID_MSG") == ["first", "INVALID_MSG"]
            asked = [confluent_kafka.TopicPartition(TOPIC, 0, now_ms + 2)]
            assert consumer.offsets_for_times(asked, timeout=5)[0].offset == 2
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 2)])
            assert "third" in said(consumer, "third")
        finally:
            consumer.close()
        assert broker.log().count("is not what was written") == 1
