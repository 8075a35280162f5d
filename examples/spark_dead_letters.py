"""Dead letters as a table: what queues refused, or had for too long, and what consumers of a topic did not get past, by
reason, and how often; and those of queues back where they came from, once each.

python examples/spark_dead_letters.py [amqp port] [native port]
"""

import sys
from tempfile import TemporaryDirectory
from typing import Any

import pika
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace import BlockingClient
from pyspark_millrace import ensure_java


def fill(amqp_port: int, server: str) -> None:
    """Orders of which every third is refused, dead-lettered to an exchange that a topic is bound to."""
    with (
        BlockingClient(server) as client,
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port)) as connection,
    ):
        channel = connection.channel()
        channel.exchange_declare("refused", "fanout", durable=True)
        client.create_topic("dead-letters", partitions=1)
        client.bind_topic("dead-letters", "refused", "#")
        channel.queue_declare("orders", durable=True, arguments={"x-dead-letter-exchange": "refused"})
        channel.confirm_delivery()
        for number in range(9):
            channel.basic_publish("", "orders", b"order %d" % number, pika.BasicProperties(delivery_mode=2))
        for method, _, _ in channel.consume("orders"):
            if method.delivery_tag % 3:
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=False)
            if method.delivery_tag == 9:
                break


def header(*names: str) -> Column:
    """The first header of that name, or else of the next."""

    def first(name: str) -> Column:
        return f.get(f.filter("headers", lambda one: one.key == name), f.lit(0)).value.cast("string")

    return f.coalesce(*map(first, names))


def dead_letters(spark: SparkSession, server: str) -> DataFrame:
    """A row for each: the queue or topic that gave it up, why, when, and the body. Those of queues are in one topic,
    those of each topic (`millrace.dead.letter.fetches`) in one that ends with `.dlq`.
    """
    records = (
        spark.read.format("millrace")
        .option("millrace.servers", server)
        .option("subscribePattern", r"dead-letters|.+\.dlq")
        .option("includeHeaders", "true")
        .load()
    )
    return records.select(
        header("x-first-death-queue", "x-dead-letter-topic").alias("origin"),
        header("x-first-death-reason", "x-dead-letter-reason").alias("reason"),
        "timestamp",
        f.col("value").cast("string").alias("body"),
    )


def by_origin(spark: SparkSession, server: str) -> list[tuple[Any, ...]]:
    """How many, by queue or topic, and reason."""
    counted = dead_letters(spark, server).groupBy("origin", "reason").count().orderBy("origin", "reason")
    return [tuple(row) for row in counted.collect()]


def send_back(spark: SparkSession, server: str, checkpoint: str, reason: str) -> None:
    """Publish what died for a reason, mended, to the queue that gave it up: what did so since the last run."""
    records = (
        spark.readStream.format("millrace")
        .option("millrace.servers", server)
        .option("subscribe", "dead-letters")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
    )
    mended = records.where(header("x-first-death-reason") == reason).select(
        f.concat(f.col("value").cast("string"), f.lit(", mended")).alias("value"),
        header("x-first-death-queue").alias("routingKey"),
    )
    written = mended.writeStream.format("millrace").option("millrace.servers", server).option("exchange", "")
    written.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    amqp_port, native_port = (*map(int, sys.argv[1:]), *(5672, 9094)[len(sys.argv) - 1 :])
    fill(amqp_port, f"127.0.0.1:{native_port}")
    ensure_java()
    session = SparkSession.builder.master("local[2]").getOrCreate()
    for origin, reason, count in by_origin(session, f"127.0.0.1:{native_port}"):
        print(f"{origin}: {count} {reason}")
    with TemporaryDirectory() as checkpoint:  # one that stays, so that a second run sends nothing twice
        send_back(session, f"127.0.0.1:{native_port}", checkpoint, "rejected")
    session.stop()
