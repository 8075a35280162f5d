"""A stream in windows of time: mean temperatures by room and minute, of readings that come late and out of order.

python examples/spark_windows.py [native port]
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace import BlockingClient, BlockingConsumer, BlockingProducer
from pyspark_millrace import ensure_java

READINGS = [
    ("kitchen", "09:00:10", 20.0),
    ("attic", "09:00:40", 11.0),
    ("kitchen", "09:01:20", 22.0),
    ("kitchen", "09:00:50", 21.0),  # late, but within the two minutes that windows are kept open
    ("attic", "09:05:00", 12.0),  # now the windows before 09:03 are closed
]
TOO_LATE = ("kitchen", "09:00:30", 99.0)


def publish(server: str, readings: list[tuple[str, str, float]]) -> None:
    """Readings with the time at which they were measured."""
    with BlockingProducer(server) as producer:
        for room, time, degrees in readings:
            value = json.dumps({"at": f"2026-01-31T{time}Z", "degrees": degrees})
            producer.send("readings", value.encode(), room.encode())


def means(spark: SparkSession, server: str) -> DataFrame:
    """A row for each room and minute, when the minute is over for good: two minutes later by the readings' own time."""
    records = (
        spark.readStream.format("millrace")
        .option("millrace.servers", server)
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .load()
    )
    reading = f.from_json(f.col("value").cast("string"), "at timestamp, degrees double")
    readings = records.select(f.col("key").cast("string").alias("room"), reading.alias("reading")).select(
        "room", "reading.*"
    )
    return (
        readings.withWatermark("at", "2 minutes")
        .groupBy(f.window("at", "1 minute"), "room")
        .agg(f.avg("degrees").alias("degrees"))
        .select(
            f.col("room").alias("key"),
            f.to_json(f.struct(f.unix_seconds("window.start").alias("minute"), "degrees")).alias("value"),
        )
    )


def run(spark: SparkSession, server: str, checkpoint: str) -> None:
    """Bring the topic `minutes` up to date. Without `trigger` the query would run on and on."""
    query = (
        means(spark, server)
        .writeStream.format("millrace")
        .option("millrace.servers", server)
        .option("topic", "minutes")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def written(server: str) -> list[str]:
    """What stands in the topic `minutes`, as lines."""
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign("minutes")
        records: list[Any] = []
        while more := consumer.fetch(1000, timeout_ms=500):
            records += more
    lines = []
    for one in records:
        fields = json.loads(one.value)
        minute = datetime.fromtimestamp(fields["minute"], UTC).strftime("%H:%M")
        lines.append(f"{minute} {one.key.decode()}: {fields['degrees']}")
    return sorted(lines)


if __name__ == "__main__":
    import tempfile

    address = f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 9094}"
    with BlockingClient(address) as client:
        if "readings" not in client.metadata():
            client.create_topic("readings", partitions=2)
        if "minutes" not in client.metadata():
            client.create_topic("minutes", partitions=1)
    ensure_java()
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        publish(address, READINGS)
        run(session, address, directory)
        publish(address, [TOO_LATE])  # its window is closed: it is left out
        run(session, address, directory)
    print("\n".join(written(address)))
    session.stop()
