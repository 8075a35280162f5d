"""`format("millrace")` in a real Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from examples import spark_batch
from millrace import BlockingClient, BlockingConsumer, BlockingProducer
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import batch
from tests.support import BrokerProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

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
        (
            {"subscribe": "t", "maxOffsetsPerTrigger": "1"},
            "unknown option '(?i:maxOffsetsPerTrigger)'; the options of read are",
        ),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
    ],
)
def test_the_user_sees_the_sentence(spark: Any, options: dict[str, str], sentence: str) -> None:
    with log_server({}) as server, pytest.raises(Exception, match=sentence):
        frame(spark, server, **options).collect()


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


def test_rows_are_what_the_native_consumer_reads(spark: Any, shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic("mirror", partitions=3)
    for compression in (None, "gzip", "zstd"):
        with BlockingProducer(server, compression=compression) as producer:
            for number in range(3000):
                key = None if number % 7 == 0 else b"key%d" % (number % 50)
                headers = [("n", b"%d" % number)] if number % 3 else None
                value = None if number % 11 == 0 else b"%d" % number * (number % 13)
                producer.send("mirror", value, key, headers, timestamp_ms=1_700_000_000_000 + number)
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign("mirror")
        records = []
        while len(records) < 9000:
            records += consumer.fetch(9000)
    expected = {(one.partition, one.offset): (one.timestamp_ms, one.key, one.value, one.headers) for one in records}

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    table = frame(spark, server, subscribe="mirror", includeHeaders="true", minPartitions="4")
    rows = table.selectExpr("partition", "offset", "unix_millis(timestamp) as ms", "key", "value", "headers").collect()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(rows) == 9000
    found = {
        (row.partition, row.offset): (row.ms, row.key, row.value, [tuple(one) for one in row.headers or ()])
        for row in rows
    }
    assert found == expected
    since = {"startingTimestamp": "1700000002999", "startingOffsetsByTimestampStrategy": "latest"}
    later = frame(spark, server, subscribe="mirror", **since)
    assert later.where("unix_millis(timestamp) >= 1700000002999").count() == 3
