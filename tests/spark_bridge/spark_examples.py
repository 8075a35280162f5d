"""The examples with Spark. `test_spark.py` runs these: all that needs a Spark session belongs to one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples import spark_dead_letters, spark_join, spark_windows
from millrace import BlockingClient
from tests.support import BrokerProcess


def test_windows_close_and_what_comes_too_late_is_left_out(
    spark: Any, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client:
        client.create_topic("readings", partitions=2)
        client.create_topic("minutes", partitions=1)
    spark_windows.publish(server, spark_windows.READINGS)
    spark_windows.run(spark, server, str(tmp_path))
    closed = ["09:00 attic: 11.0", "09:00 kitchen: 20.5", "09:01 kitchen: 22.0"]
    assert spark_windows.written(server) == closed
    spark_windows.publish(server, [spark_windows.TOO_LATE, ("attic", "09:09:00", 13.0)])
    spark_windows.run(spark, server, str(tmp_path))
    assert spark_windows.written(server) == [*closed, "09:05 attic: 12.0"]


def test_a_stream_is_joined_with_a_table(spark: Any, shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    spark_join.fill(shared_broker.mqtt_port, server)
    assert spark_join.run(spark, server) == [("attic", 31.0), ("kitchen", 22.5)]


def test_dead_letters_are_a_table_and_go_back(spark: Any, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    spark_dead_letters.fill(shared_broker.amqp_port, server)
    assert spark_dead_letters.by_queue(spark, server) == [("orders", "rejected", 3)]
    spark_dead_letters.send_back(spark, server, str(tmp_path), "rejected")
    back = spark.read.format("millrace").option("millrace.servers", server).option("queue", "orders").load()
    found = [row.text for row in back.selectExpr("string(value) text").collect()]
    assert found == ["order 2, mended", "order 5, mended", "order 8, mended"]
