"""`format("millrace")` in a real Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from examples import spark_batch
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import batch
from tests.support import BrokerProcess

pytestmark = pytest.mark.spark

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def frame(spark: Any, server: LogServer | str, **options: str) -> Any:
    address = server if isinstance(server, str) else server.address
    return spark.read.format("millrace").options(**{"bootstrap.servers": address, **options}).load()


def test_a_topic_is_a_table(spark: Any) -> None:
    numbers = [
        Partition([batch(0, [b"%d" % n for n in range(500)])]),
        Partition(),
        Partition([batch(9, [b"7"] * 3)], 9),
    ]
    with log_server({"numbers": numbers}) as server:
        table = frame(spark, server, subscribe="numbers")
        assert ", ".join(f"{name} {kind}" for name, kind in table.dtypes) == COLUMNS
        assert table.rdd.getNumPartitions() == 2
        table.createOrReplaceTempView("numbers")
        rows = spark.sql(
            "select partition, count(*), sum(cast(cast(value as string) as int)), min(offset), "
            "date_format(max(timestamp), 'HH:mm:ss.SSS') from numbers group by partition order by partition"
        ).collect()
        assert [tuple(row) for row in rows] == [(0, 500, 124750, 0, "00:00:01.499"), (2, 3, 21, 9, "00:00:01.011")]
        numbers[1].batches.append(batch(0, [b"late"]))
        assert spark.table("numbers").count() == 503, "offsets are resolved once for a table"
        assert frame(spark, server, subscribe="numbers").count() == 504
        assert table.where("offset >= 9 and partition = 2").limit(2).count() == 2


def test_a_failed_task_reads_the_same_rows_again(spark: Any) -> None:
    with log_server({"t": [Partition([batch(0, [b"x"] * 300), batch(300, [b"y"] * 300)])]}) as server:
        server.broken_fetches = {1, 2}  # the client repeats a request once, so two make the task fail
        assert frame(spark, server, subscribe="t").selectExpr("sum(offset)", "count(*)").first() == (179_700, 600)
        assert server.fetches > 2


def test_nothing_to_read_is_an_empty_table(spark: Any) -> None:
    with log_server({"empty": [Partition()]}) as server:
        assert frame(spark, server, subscribePattern="emp.*", includeHeaders="true").collect() == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "t", "maxOffsetsPerTrigger": "1"}, "unknown option '(?i:maxOffsetsPerTrigger)'"),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
    ],
)
def test_the_user_sees_the_sentence(spark: Any, options: dict[str, str], sentence: str) -> None:
    with log_server({}) as server, pytest.raises(Exception, match=sentence):
        frame(spark, server, **options).collect()


def test_read_stream_says_that_it_cannot(spark: Any) -> None:
    with log_server({"t": [Partition()]}) as server:
        options = {"bootstrap.servers": server.address, "subscribe": "t"}
        query = spark.readStream.format("millrace").options(**options).load().writeStream.format("noop").start()
        with pytest.raises(Exception, match="not supported in this version"):
            query.awaitTermination(30)


def test_the_example_reads_from_a_real_broker_what_was_published_over_mqtt(
    spark: Any, shared_broker: BrokerProcess
) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    spark_batch.fill(shared_broker.mqtt_port, server)
    assert spark_batch.mean_by_room(spark, server) == [("attic", 11.5), ("kitchen", 21.0)]
    table = frame(spark, server, subscribe="climate", includeHeaders="true")
    rows = table.selectExpr("string(key)", "string(value)", "headers", "offset").collect()
    assert sorted(tuple(row)[:2] for row in rows) == [
        ("climate.attic", "11.0"),
        ("climate.attic", "12.0"),
        ("climate.kitchen", "20.0"),
        ("climate.kitchen", "22.0"),
    ]
