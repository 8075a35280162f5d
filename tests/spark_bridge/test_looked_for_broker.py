"""Filters on keys and headers at a real broker: topics with transactions, files, queues, streams and MQTT filters."""

from __future__ import annotations

import random
from typing import Any

import paho.mqtt.publish
import pika
import pytest
from pyspark.sql import datasource as ds

from millrace import BlockingClient, BlockingProducer, BlockingTransactionalProducer
from tests.spark_bridge.test_queues import ALL, channel_of, source, stream
from tests.spark_bridge.test_segments import Counted
from tests.support import BrokerProcess

TOPIC = "looked-for"


@pytest.fixture(scope="module")
def filled(shared_broker: BrokerProcess) -> BrokerProcess:
    """A topic of several segments with a key for each thousand records, compressed in between, and transactions."""
    server = f"127.0.0.1:{shared_broker.native_port}"
    rng = random.Random(5)
    with BlockingClient(server) as client:
        client.create_topic(TOPIC, partitions=1, config={"segment.bytes": str(1 << 20)})
    for number in range(24):
        with BlockingProducer(server, compression="lz4" if number == 7 else None) as producer:
            for _ in range(1000):
                producer.send(TOPIC, rng.randbytes(rng.randrange(300)), b"k%d" % (number % 12), [("n", b"%d" % number)])
    with BlockingTransactionalProducer(server, "looked-for") as producer:
        for number in range(4):
            producer.begin()
            producer.send(TOPIC, b"of transaction %d" % number, b"k3")
            producer.commit() if number % 2 else producer.abort()
    return shared_broker


def rows(broker: BrokerProcess, *filters: Any, **options: str) -> list[dict[str, Any]]:
    found = source(broker, includeHeaders="true", filterPushdown="true", **options)
    reader = found.reader(found.schema())
    reader.pushFilters(list(filters))  # type: ignore[attr-defined]
    return [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]


def test_a_topic_is_read_in_part(filled: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    every = rows(filled, subscribe=TOPIC)
    whole, counted.size_bytes = counted.size_bytes, 0
    wanted = [row for row in every if row["key"] == b"k3"]
    assert [row["value"] for row in wanted[2000:]] == [b"of transaction 1", b"of transaction 3"]
    assert rows(filled, ds.EqualTo(("key",), b"k3"), subscribe=TOPIC) == wanted
    assert counted.size_bytes < 0.2 * whole, "two of 24 thousands, and the compressed one"
    direct = {"read_mode": "direct", "read_dataDir": str(filled.data_dir)}
    assert rows(filled, ds.EqualTo(("key",), b"k3"), subscribe=TOPIC, **direct) == wanted
    with_header = [row for row in every if {"key": "n", "value": b"7"} in (row["headers"] or ())]
    assert len(with_header) == 1000
    for more in ({}, direct, {"maxRecordsPerPartition": "700"}):
        assert rows(filled, subscribe=TOPIC, headers_where='{"n": "7"}', **more) == with_header
    cut = {"startingOffsets": f'{{"{TOPIC}": {{"0": 3500}}}}', "endingOffsets": f'{{"{TOPIC}": {{"0": 3600}}}}'}
    assert rows(filled, ds.EqualTo(("key",), b"k3"), subscribe=TOPIC, **cut) == every[3500:3600]


def test_queues_streams_and_filters(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.queue_declare("looked-q", durable=True)
        channel.queue_declare("looked-s", durable=True, arguments={"x-queue-type": "stream"})
        for queue in ("looked-q", "looked-s"):
            channel.queue_bind(queue, "amq.topic", "hall.#")
        asked = {"mqtt_filter": "hall/#", "includeProperties": "true"}
        assert rows(shared_broker, **asked) == []
        for number in range(20):
            properties = pika.BasicProperties(headers={"site": f"s{number % 4}"}, delivery_mode=2)
            channel.basic_publish("amq.topic", f"hall.{number % 5}.v1/2", b"%d" % number, properties)
    paho.mqtt.publish.single("hall/1/v1.2", b"20", qos=1, hostname="127.0.0.1", port=shared_broker.mqtt_port)
    for where in ({"queue": "looked-q"}, {"queue": "looked-s"}, asked):
        options = {**where, "includeProperties": "true"}

        def values(*filters: Any, options: dict[str, str] = options, **more: str) -> list[int]:
            return [int(row["value"]) for row in rows(shared_broker, *filters, **options, **more)]

        assert values() == list(range(21))
        by_topic = ds.EqualTo(("mqttTopic",), "hall/1/v1.2")
        assert values(by_topic) == [1, 6, 11, 16, 20]
        assert values(ds.EqualTo(("routingKey",), "hall.1.v1/2")) == [1, 6, 11, 16, 20]
        assert values(ds.StringStartsWith(("mqttTopic",), "hall/3/")) == [3, 8, 13, 18]
        assert values(ds.EqualTo(("mqttTopic",), "hall.1.v1/2")) == []
        assert values(headers_where='{"site": "s1"}') == [*range(1, 20, 4)]
        assert values(by_topic, headers_where='{"site": "s1"}') == [1]
        assert values(by_topic, ds.EqualTo(("protocol",), "mqtt")) == [20]
        reader = stream(shared_broker, **options, startingOffsets="earliest", headers_where='{"site": "s1"}')
        parts = reader.partitions(reader.initialOffset(), reader.latestOffset({}, ALL))
        found = [int(row["value"]) for part in parts for each in reader.read(part) for row in each.to_pylist()]
        assert found == [*range(1, 20, 4)]
        reader.stop()
