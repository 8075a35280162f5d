"""A disk that is full, or fails to sync, for a while: nothing false is confirmed, reading goes on, service resumes.

The broker is a real process; only its files refuse, from one signal to another (`faulty_broker`).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.wire_proto import BrokerError
from core_log.record_batch import decode_runs
from gateway.cluster_status import cluster_status, show_troubles
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import StorageUnavailable
from tests.faults.neighbours import batch_of
from tests.faults.wire_clients import AmqpConsumer, AmqpPublisher, MqttPublisher, Stream, amqp, declare, read_queue
from tests.support import HOST, BrokerProcess, broker_process

PATIENCE_S = 20
BACKLOG = 300
TOPIC = "full-records"


@pytest.fixture(params=["full", "sync"])
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose disk has no room, or whose fdatasync fails, between SIGUSR1 and SIGUSR2."""
    os.environ["FAULTY_BROKER_FAULT"] = request.param
    try:
        with broker_process(tmp_path / "data", module="tests.faults.faulty_broker") as broker:
            yield broker
    finally:
        del os.environ["FAULTY_BROKER_FAULT"]


def publish(publisher: AmqpPublisher, count: int) -> bool:
    """Publish and wait for all answers; whether all were confirmed."""
    refused = len(publisher.stream.refused)
    publisher.send(count)
    while publisher.open:
        publisher.receive()
    return len(publisher.stream.refused) == refused


def refuses_mqtt(port: int, stream: Stream, silence_s: float = 1) -> bool:
    """Whether a QoS 1 publish gets no PUBACK: a closed connection, or silence."""
    publisher = MqttPublisher(port, stream, "full/mqtt")
    publisher.connection.sock.settimeout(silence_s)
    before = len(stream.confirmed)
    try:
        publisher.send(1)
        publisher.receive()
    except (OSError, BrokerError):
        pass
    finally:
        publisher.connection.sock.close()
    return len(stream.confirmed) == before


def settle(broker: BrokerProcess, stream: Stream, count: int) -> None:
    """Consume and acknowledge `count` messages, one after the other."""
    consumer = AmqpConsumer(broker.amqp_port, stream.name, prefetch=1)
    consumer.connection.sock.settimeout(PATIENCE_S)
    for _ in range(count):
        while not (deliveries := consumer.receive()):
            pass
        (delivery,) = deliveries
        stream.settled.add(stream.number(delivery.body))
        consumer.ack(delivery.tag)
    consumer.close()


def check_queue(broker: BrokerProcess, stream: Stream) -> None:
    """Everything confirmed and not settled is there, unchanged; nothing is twice."""
    found = Counter(stream.number(body) for body, _ in read_queue(broker, stream.name))
    assert not stream.confirmed - stream.settled - set(found)
    assert set(found.values()) <= {1}


def until(done: Callable[[], bool]) -> None:
    """Try again until it is done."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "service did not resume"


def test_a_disk_that_refuses(faulty: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """One story on all doors: before, while, after, and after a crash."""
    over_amqp, over_mqtt = Stream("full-amqp"), Stream("full-mqtt")
    connection = amqp(faulty.amqp_port)
    declare(connection, over_mqtt.name, "full.mqtt")
    publisher = AmqpPublisher(faulty.amqp_port, over_amqp)
    native = BlockingClient(f"{HOST}:{faulty.native_port}", timeout_s=PATIENCE_S)
    native.create_topic(TOPIC)
    records: dict[int, bytes] = {}

    def produces(value: bytes) -> bool:
        try:
            offset = native.produce(TOPIC, 0, batch_of([value]), timeout_ms=PATIENCE_S * 1000)
        except StorageUnavailable:
            return False
        assert offset is not None
        records[offset] = value
        return True

    def shown() -> str:
        show_troubles(cluster_status(native))
        return capsys.readouterr().out

    assert publish(publisher, BACKLOG)
    assert not refuses_mqtt(faulty.mqtt_port, over_mqtt, PATIENCE_S)
    assert produces(b"before")

    os.kill(faulty.pid, signal.SIGUSR1)
    until(lambda: not publish(publisher, 1))
    assert refuses_mqtt(faulty.mqtt_port, over_mqtt)
    assert not produces(b"while")
    assert not publish(publisher, 10)
    assert native.fetch(TOPIC, 0, 0).batches
    settle(faulty, over_amqp, BACKLOG // 2)
    assert "the disk takes nothing at broker: 0" in shown()

    os.kill(faulty.pid, signal.SIGUSR2)
    until(lambda: publish(publisher, 1))
    until(lambda: not refuses_mqtt(faulty.mqtt_port, over_mqtt))
    until(lambda: produces(b"after"))
    assert publish(publisher, 10)
    until(lambda: "the disk takes nothing" not in shown())

    faulty.kill9()
    faulty.start()
    check_queue(faulty, over_amqp)
    check_queue(faulty, over_mqtt)
    with BlockingClient(f"{HOST}:{faulty.native_port}", timeout_s=PATIENCE_S) as reader:
        for offset, value in records.items():
            first = decode_runs(reader.fetch(TOPIC, 0, offset).batches[0])[0]
            assert (first.first_offset, first.values) == (offset, [value])
