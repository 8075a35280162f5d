"""Options that no other test here gives to a real Spark session, all together on one broker; part of `test_spark`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from millrace import BlockingClient, BlockingProducer
from tests.gateway.test_tls import HOST, Files
from tests.spark_bridge.test_queues import channel_of, publish
from tests.support import broker_process

START_MS = (int(time.time()) - 3600) * 1000
COUNT = 300


def fill(server: str) -> None:
    """One partition of records a second apart, each third with a header."""
    with BlockingClient(server) as client:
        client.create_topic("given", partitions=1, config={"segment.bytes": "16384"})
    with BlockingProducer(server) as producer:
        for number in range(COUNT):
            headers = [("kind", b"third")] if number % 3 == 0 else []
            producer.send("given", b"%d" % number, b"k", headers, timestamp_ms=START_MS + 1000 * number)


@pytest.mark.soak
def test_every_option_is_taken_by_spark(spark: Any, tmp_path: Path) -> None:
    files = Files(tmp_path)
    arguments = ("--tls-cert", files.cert, "--tls-ca", files.ca)
    with broker_process(tmp_path / "data", doors=("amqp", "mqtt", "native", "natives"), arguments=arguments) as broker:
        fill(f"{HOST}:{broker.native_port}")
        access = {
            "millrace.servers": f"{HOST}:{broker.ports['natives']}", "millrace.tls": "true",
            "millrace.tls.ca": files.ca, "millrace.user": "guest", "millrace.password": "guest",
        }  # fmt: skip

        def read(**options: str) -> Any:
            return spark.read.format("millrace").options(**access, **options)

        def numbers(**options: str) -> list[int]:
            rows = read(subscribe="given", **options).load().selectExpr("int(string(value)) as n").collect()
            return sorted(row.n for row in rows)

        ends = json.dumps({"given": {"0": START_MS + 10_000}})
        assert numbers(endingOffsetsByTimestamp=ends) == list(range(10))
        assert numbers(**{"headers.where": '{"kind": "third"}'}) == list(range(0, COUNT, 3))
        direct = {
            "read.mode": "direct",
            "read.dataDir": str(tmp_path / "data"),
            "kafka.isolation.level": "read_committed",
        }
        assert numbers(**direct) == list(range(COUNT))
        assert read(subscribe="given", maxRecordsPerPartition="100").load().rdd.getNumPartitions() == 3
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            table = read(subscribe="given", filterPushdown="true", timestampDisorderMs="0").load()
            assert table.where(f"timestamp < timestamp_millis({START_MS + 5000})").count() == 5
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        with channel_of(broker) as channel:
            channel.queue_declare("waiting")
            publish(channel, "waiting", [1])
        found = read(queue="waiting", includeProperties="true", **{"millrace.vhost": "/"}).load()
        assert found.selectExpr("string(value)", "protocol").collect() == [("1", "amqp")]
        with BlockingClient(f"{HOST}:{broker.native_port}") as client:
            client.delete_records("given", 0, 100)
        wanted = {"startingOffsets": '{"given": {"0": 0}}'}
        with pytest.raises(Exception, match="failOnDataLoss"):
            numbers(**wanted)
        assert numbers(**wanted, failOnDataLoss="false") == list(range(100, COUNT))
        certificate = {"millrace.tls.cert": files.client, "millrace.tls.key": files.client}
        stream = (
            spark.readStream.format("millrace")
            .options(**access, **certificate, subscribe="given", startingOffsets="earliest", groupIdPrefix="nightly")
            .options(minOffsetsPerTrigger="10", maxTriggerDelay="1s", leaseMs="60000", maxOffsetsPerTrigger="150")
            .load()
            .selectExpr("key", "value")
        )
        copy = stream.writeStream.format("millrace").options(**access, topic="copied", transactionTimeoutMs="20000")
        with BlockingClient(f"{HOST}:{broker.native_port}") as client:
            client.create_topic("copied", partitions=1)
            copy.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(
                60
            )
            assert any(listed.group.startswith("nightly") for listed in client.list_groups())
        rows = read(subscribe="copied").load().selectExpr("int(string(value)) as n").collect()
        assert sorted(row.n for row in rows) == list(range(100, COUNT))
