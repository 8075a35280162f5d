"""Topics that Kafka's clients have written, in each of their codecs, are read as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millrace import BlockingClient
from spark_bridge.data_source import MillraceDataSource
from tests.support import BrokerProcess
from tests.support.broker_process import broker_process

COUNT = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("compressed") / "data"
    with broker_process(directory, doors=("amqp", "mqtt", "native", "kafka")) as process:
        yield process


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_compressed(broker: BrokerProcess, codec: str) -> None:
    server, topic = f"127.0.0.1:{broker.native_port}", f"compressed-{codec}"
    with BlockingClient(server) as client:
        client.create_topic(topic, partitions=2, config={"retention.ms": "-1"})  # the records are from 2023
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.ports['kafka']}",
            "compression.type": codec,
            "linger.ms": 50,
            "batch.num.messages": 700,
        }
    )
    for number in range(COUNT):
        body = b'{"id": %d, "text": "%b"}' % (number, b"the same again " * (number % 20))
        producer.produce(
            topic, body, b"k%d" % (number % 50), number % 2, timestamp=1_700_000_000_000 + number,
            headers=[("n", b"%d" % number)] if number % 3 else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(30) == 0
    source = MillraceDataSource({"millrace.servers": server, "subscribe": topic, "includeHeaders": "true"})
    reader = source.reader(schema=source.schema())
    found: dict[int, Any] = {}
    for part in reader.partitions():
        for rows in reader.read(part):
            rows.validate(full=True)
            for row in rows.to_pylist():
                found[int(row["value"].split(b",")[0][7:])] = row
    assert len(found) == COUNT
    for number, row in found.items():
        assert row["value"] == b'{"id": %d, "text": "%b"}' % (number, b"the same again " * (number % 20))
        assert (row["key"], row["partition"]) == (b"k%d" % (number % 50), number % 2)
        assert int(row["timestamp"].timestamp() * 1000 + 0.5) == 1_700_000_000_000 + number
        assert row["headers"] == ([{"key": "n", "value": b"%d" % number}] if number % 3 else None)
