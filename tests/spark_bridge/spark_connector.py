"""Spark's own Kafka connector at the Kafka door, unmodified. `test_spark.py` runs this.

Its jars are got with `python -m benchmarks.spark_jars`; without them the test says so and does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.spark_jars import directory, jars
from millrace import BlockingProducer, BlockingTransactionalProducer
from tests.spark_bridge.test_sink import made, numbers
from tests.support import broker_process, metrics

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.mark.skipif(not jars(), reason=f"no jars of the connector in {directory()}: python -m benchmarks.spark_jars")
def test_sparks_own_connector_reads_and_writes_as_the_source_does(spark: Any, tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("native", "kafka", *metrics.DOORS)) as broker:
        native, kafka = f"127.0.0.1:{broker.native_port}", f"127.0.0.1:{broker.ports['kafka']}"
        topic, streamed, written = (made(native, name) for name in ("connected", "streamed", "written"))
        with BlockingProducer(native) as producer:
            for number in range(500):
                headers = [("n", b"%d" % number)] if number % 2 else None
                producer.send(topic, None if number % 7 == 3 else b"%d" % number, b"k%d" % (number % 5), headers)
        with BlockingTransactionalProducer(native, "connected") as producer:
            producer.begin()
            producer.send(topic, b"aborted")
            producer.abort()

        def frame(kind: str, where: str, **options: str) -> Any:
            given = {"kafka.bootstrap.servers": where, "subscribe": topic, "includeHeaders": "true"}
            return spark.read.format(kind).options(**given, **options).load().select(*COLUMNS)

        committed = {"kafka.isolation.level": "read_committed"}
        theirs, ours = frame("kafka", kafka, **committed).collect(), frame("millrace", native).collect()
        assert len(ours) == 500
        assert sorted(theirs, key=lambda row: row[3:5]) == sorted(ours, key=lambda row: row[3:5])
        last = '{"connected": {"0": 10, "1": 0, "2": 5}}'
        cut = {"startingOffsets": '{"connected": {"0": 4, "1": 0, "2": -2}}', "endingOffsets": last}
        assert frame("kafka", kafka, **cut, **committed).count() == frame("millrace", native, **cut).count() == 11

        def stream() -> list[int]:
            rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
            rows = rows.options(startingOffsets="earliest", maxOffsetsPerTrigger="200", **committed).load()
            copies = rows.where("value is not null").select("key", "value").writeStream.format("kafka")
            copies = copies.option("kafka.bootstrap.servers", kafka).option("topic", streamed)
            query = copies.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            return numbers(native, streamed)

        wanted = [number for number in range(500) if number % 7 != 3]
        assert stream() == wanted
        with BlockingProducer(native) as producer:
            producer.send(topic, b"500")
        assert stream() == [*wanted, 500]
        with BlockingProducer(native) as producer:
            producer.send(topic, b"501")
        if metrics.DOORS:
            found = metrics.scraped(broker.ports["http"])  # each start of the query has a group of its own
            lags = {key: lag for key, lag in found.items() if key[0] == "millrace_group_lag_records"}
            assert {key[1].startswith("spark-kafka-source-") for key in lags} == {True}
            assert 1 in lags.values()
        table = spark.range(300).selectExpr("string(id) value", "concat('k', id % 9) key")
        table.write.format("kafka").option("kafka.bootstrap.servers", kafka).option("topic", written).save()
        assert numbers(native, written) == list(range(300))
