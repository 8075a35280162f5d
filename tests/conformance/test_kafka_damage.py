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


def said(consumer: Any, wanted: int, timeout_s: float = 10.0) -> list[tuple[bytes | None, str | None]]:
    """(value, name of the error) of what comes, until so much was there."""
    found: list[tuple[bytes | None, str | None]] = []
    end = time.monotonic() + timeout_s
    while len(found) < wanted and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and message.error():
            found.append((None, message.error().name()))
        elif message is not None:
            found.append((message.value(), None))
    return found


def server_of(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def test_consumers_are_told_of_what_is_damaged_and_go_on_behind_it(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("kafka",)) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": server_of(broker), "linger.ms": 0})
        for value in (b"first", b"second", b"third"):
            producer.produce(TOPIC, value)
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
            assert said(consumer, 2) == [(b"first", None), (None, "INVALID_MSG")]
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 2)])
            assert (b"third", None) in said(consumer, 3, timeout_s=1.5)  # and the error, if it was said again before
        finally:
            consumer.close()
        assert broker.log().count("is not what was written") == 1
