"""`format("millrace")` in a real Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pyspark
import pytest

from examples import spark_batch
from millrace import BlockingClient, BlockingConsumer, BlockingProducer
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.spark_connector import (  # noqa: F401
    test_sparks_own_connector_reads_and_writes_as_the_source_does,
)
from tests.spark_bridge.spark_examples import (  # noqa: F401
    test_a_stream_is_joined_with_a_table,
    test_dead_letters_of_all_doors_are_a_table_and_go_back,
    test_windows_close_and_what_comes_too_late_is_left_out,
)
from tests.spark_bridge.spark_jobs import (  # noqa: F401
    test_a_filter_of_a_virtual_host_is_replayed,
    test_a_replay_of_any_files_goes_on_with_other_cores,
    test_a_replay_that_is_done_again_writes_nothing_twice,
    test_a_spark_that_does_not_start_is_a_line,
    test_an_export_takes_what_came_since_the_last_one,
    test_an_export_that_is_killed_is_gone_on_with,
    test_queues_and_filters_are_exported,
    test_the_commands_say_what_is_wrong,
    test_what_lies_behind_younger_records_is_replayed,
)
from tests.spark_bridge.spark_options import test_every_option_is_taken_by_spark  # noqa: F401
from tests.spark_bridge.test_message_columns import message_batch
from tests.spark_bridge.test_queues import channel_of, publish
from tests.spark_bridge.test_reader import batch
from tests.spark_bridge.test_sink import made, numbers
from tests.support import BrokerProcess, metrics

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
        assert table.rdd.getNumPartitions() == 1
        assert frame(spark, server, subscribe="numbers", minPartitions="2").rdd.getNumPartitions() == 2
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


# Streams, filters and sinks.


@pytest.fixture
def server(shared_broker: BrokerProcess) -> str:
    return f"127.0.0.1:{shared_broker.native_port}"


def produce(server: str, topic: str, numbers: range) -> None:
    with BlockingProducer(server) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, b"k%d" % (number % 7))


QUERY = "streaming-query"


def values(spark: Any, directory: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(directory)).collect())


def run(spark: Any, server: str, topic: str, directory: Path, **options: str) -> Any:
    """Read what is there into Parquet files, from the checkpoint on; returns the query when it has ended."""
    table = spark.readStream.format("millrace").options(
        **{"bootstrap.servers": server, "subscribe": topic, "startingOffsets": "earliest", **options},
        **{"kafka.group.id": QUERY},
    )
    query = (
        table.load()
        .selectExpr("int(string(value)) n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "rows"))
    )
    assert query.awaitTermination(120)
    return query


def test_a_query_goes_on_from_its_checkpoint(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic("streamed", partitions=3)
        produce(server, "streamed", range(3000))
        query = run(spark, server, "streamed", tmp_path, maxOffsetsPerTrigger="1300")
        assert [progress["numInputRows"] for progress in query.recentProgress] == [1300, 1300, 400]
        produce(server, "streamed", range(3000, 3500))
        run(spark, server, "streamed", tmp_path, maxOffsetsPerTrigger="1300")
        assert values(spark, tmp_path / "rows") == list(range(3500))

        # The checkpoint is the truth: without what was done last, the same records are read again, and kept once.
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        produce(server, "streamed", range(3500, 3510))
        run(spark, server, "streamed", tmp_path)
        assert values(spark, tmp_path / "rows") == list(range(3510))
        offsets = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        assert sum(json.loads(offsets.read_text().splitlines()[-1])["streamed"].values()) == 3510

        # The broker shows how far the query came, and how far it is behind.
        produce(server, "streamed", range(3510, 3520))
        found = client.lag(QUERY)
        assert (sum(one.offset or 0 for one in found), sum(one.lag for one in found)) == (3510, 10)
        assert 0 < max(one.lag_ms for one in found) < 120_000
        if metrics.DOORS:
            shown = {key: value for key, value in metrics.scraped(shared_broker.ports["http"]).items() if QUERY in key}
            lag, age = (
                sum(value for key, value in shown.items() if key[0] == f"millrace_group_lag_{unit}")
                for unit in ("records", "seconds")
            )
            assert (lag, 0 < age < 360) == (10, True)


def test_few_rows_of_a_stream_come_with_its_plan(spark: Any, tmp_path: Path) -> None:
    """All columns, and no task of Python's: the one connection is the plan's."""
    options = {"subscribe": "t", "includeHeaders": "true", "includeProperties": "true", "startingOffsets": "earliest"}
    with log_server({"t": [Partition([message_batch()])]}) as server:
        rows = spark.readStream.format("millrace").options(**{"bootstrap.servers": server.address, **options}).load()
        written = rows.writeStream.format("memory").queryName("planned")
        query = written.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        found = spark.table("planned").orderBy("offset").collect()
        assert (len(found), server.connections) == (6, 1)
        (progress,) = [one for one in query.recentProgress if one["numInputRows"]]
        assert json.loads(progress["sources"][0]["latestOffset"]) == {"t": {"0": 6}}
        assert found == frame(spark, server, **options).orderBy("offset").collect()


def test_filters_of_a_query_narrow_what_is_read(spark: Any) -> None:
    logs = [Partition([batch(first, [b"v" * 1000] * 50) for first in range(0, 10_000, 50)]) for _ in range(2)]
    whole = sum(len(one) for log in logs for one in log.batches)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        with log_server({"t": logs}) as server:
            table = spark.read.format("millrace").options(
                **{"bootstrap.servers": server.address, "subscribe": "t", "filterPushdown": "true"}
            )
            rows = table.load().where("partition = 1 and offset >= 9900").selectExpr("min(offset)", "count(*)")
            assert tuple(rows.first()) == (9900, 100)
            assert server.fetched_bytes < 0.03 * whole, "a hundredth of the rows takes at most three of the bytes"
            for condition, offsets in (
                ("key = binary('k77')", [77]),
                ("key in (binary('k77'), X'6B39393939', null)", [77, 9999]),
            ):
                server.fetched_bytes = 0
                found = table.load().where(condition).select("offset").distinct().collect()
                assert sorted(one.offset for one in found) == offsets
                assert server.fetched_bytes < 0.03 * whole, condition
            used = table.load()
            assert used.where("key = binary('k77')").count() == 2
            assert table.load().count() == 20_000
            if pyspark.__version__.startswith("4.3."):
                assert used.count() == 2, "Spark reads the whole of it now: docs/spark.md may say so"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_spark_writes_a_table(spark: Any, server: str) -> None:
    topic = made(server, "sink-table")
    table = spark.range(1000).selectExpr("string(id) value", "concat('k', id % 9) key", "null headers")
    table = table.drop("headers").repartition(3)
    table.write.format("millrace").option("bootstrap.servers", server).option("topic", topic).mode("append").save()
    assert numbers(server, topic) == list(range(1000))


def test_a_query_writes_each_row_once_though_a_micro_batch_comes_again(spark: Any, server: str, tmp_path: Path) -> None:
    source, target = made(server, "sink-from"), made(server, "sink-to")

    def run(tasks: str) -> None:
        query = (
            spark.readStream.format("millrace")
            .options(**{"bootstrap.servers": server, "subscribe": source, "startingOffsets": "earliest"})
            .options(maxOffsetsPerTrigger="400", minPartitions=tasks)
            .load()
            .select("key", "value")
            .writeStream.format("millrace")
            .options(**{"bootstrap.servers": server, "topic": target})
            .queryName("copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    produce(server, source, range(1000))
    run("6")
    assert numbers(server, target) == list(range(1000))
    commits = tmp_path / "checkpoint" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()  # as if the driver had been killed between the last row and its note
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    produce(server, source, range(1000, 1200))
    run("1")  # the micro-batch that comes again has its tasks again
    assert numbers(server, target) == list(range(1200))


# Queues and filters.


def test_a_query_takes_what_is_in_a_queue_and_goes_on(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"

    def run() -> list[int]:
        table = spark.readStream.format("millrace").schema("value binary, offset bigint, messageId string")
        query = (
            table.options(**{"millrace.servers": server, "queue": "taken-by-spark", "queue.mode": "consume"})
            .option("maxOffsetsPerTrigger", "40")
            .option("kafka.group.id", "taker")
            .load()
            .selectExpr("int(string(value)) n", "offset", "messageId")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(len(rows)))
        assert [row.messageId for row in rows] == [f"m{row.n}" for row in rows]
        return [row.n for row in rows]

    with channel_of(shared_broker) as channel:
        channel.queue_declare("taken-by-spark", durable=True)
        publish(channel, "taken-by-spark", range(100))
        assert frame(spark, server, queue="taken-by-spark").count() == 100
        assert run() == list(range(100))
        assert channel.queue_declare("taken-by-spark", passive=True).method.message_count == 0
        publish(channel, "taken-by-spark", range(100, 110))
        with BlockingClient(server) as client:
            (lag,) = client.queue_lag("taker")
            assert (lag.queue, lag.mode, lag.offset, lag.lag) == ("taken-by-spark", "consume", 100, 10)
        assert run() == list(range(110))


def test_a_filter_is_a_table(spark: Any, shared_broker: BrokerProcess) -> None:
    paho.mqtt.publish.single(
        "house/attic/temp", b"11", qos=1, retain=True, hostname="127.0.0.1", port=shared_broker.mqtt_port
    )
    given = {"mqtt.filter": "house/+/temp", "includeProperties": "true"}
    rows = (
        frame(spark, f"127.0.0.1:{shared_broker.native_port}", **given).selectExpr("mqttTopic", "properties").collect()
    )
    assert [(row.mqttTopic, row.properties) for row in rows] == [("house/attic/temp", {})]


def test_a_query_publishes_to_an_exchange(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    """Each row once, though a micro-batch comes again."""
    server = f"127.0.0.1:{shared_broker.native_port}"
    source = made(server, "to-exchange")

    def run() -> None:
        query = (
            spark.readStream.format("millrace")
            .options(**{"millrace.servers": server, "subscribe": source, "startingOffsets": "earliest"})
            .load()
            .selectExpr("value", "concat('spark.', string(key)) as routingKey", "string(offset) as messageId")
            .writeStream.format("millrace")
            .options(**{"millrace.servers": server, "exchange": "amq.topic"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    with channel_of(shared_broker) as channel:
        channel.queue_declare("from-spark", durable=True)
        channel.queue_bind("from-spark", "amq.topic", "spark.#")
        produce(server, source, range(100))
        run()
        commits = tmp_path / "checkpoint" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        produce(server, source, range(100, 120))
        run()
        rows = frame(spark, server, queue="from-spark", includeProperties="true").collect()
        assert sorted(int(row.value) for row in rows) == list(range(120))
        assert {row.routingKey for row in rows} == {f"spark.k{number}" for number in range(7)}
