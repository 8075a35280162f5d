"""Dead letters as a table: what queues refused, or had for too long, and what consumers of a topic did not get past, by
reason, and how often; and back where they came from, mended, once each.

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
            channel.basic_publish(
                "", "orders", b'{"order":"%d","country":"?"}' % number, pika.BasicProperties(delivery_mode=2)
            )
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


SOURCE = {"subscribePattern": r"dead-letters|.+\.dlq", "includeHeaders": "true"}
"""Dead letters of queues are in one topic, those of each topic (`millrace.dead.letter.fetches`) in one that ends with
`.dlq`.
"""


def with_history(letters: DataFrame) -> DataFrame:
    """With the queue or topic that gave a letter up, why, and how often it was sent back before."""
    return letters.withColumns(
        {
            "origin": header("x-first-death-queue", "x-dead-letter-topic"),
            "reason": header("x-first-death-reason", "x-dead-letter-reason"),
            "times_back": f.coalesce(header("x-times-back").cast("int"), f.lit(0)),
        }
    )


def dead_letters(spark: SparkSession, server: str) -> DataFrame:
    """A row for each."""
    letters = spark.read.format("millrace").options(**SOURCE).option("millrace.servers", server).load()
    return with_history(letters).selectExpr("origin", "reason", "times_back", "timestamp", "string(value) body")


def by_origin(spark: SparkSession, server: str) -> list[tuple[Any, ...]]:
    """How many, by queue or topic, and reason."""
    counted = dead_letters(spark, server).groupBy("origin", "reason").count().orderBy("origin", "reason")
    return [tuple(row) for row in counted.collect()]


def with_country(body: Column, country: str) -> Column:
    """A body with that country, if it is a JSON object."""
    fields = f.map_filter(f.from_json(body, "map<string,string>"), lambda name, _: name != "country")
    return f.coalesce(f.to_json(f.map_concat(fields, f.create_map(f.lit("country"), f.lit(country)))), body)


def send_back(
    spark: SparkSession, server: str, checkpoint: str, which: str, *, per_second: int = 1000, times_max: int = 3
) -> None:
    """Letters of which that SQL is true go back, mended, to the queues and topics that gave them up: those that came
    since the last run with that checkpoint, each at most `times_max` times, to queues and to topics no more than so
    many a second.
    """
    letters = spark.readStream.format("millrace").options(**SOURCE).option("millrace.servers", server)
    letters = letters.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_second)
    dead = with_history(letters.load()).where(which).where(f.col("times_back") < times_max)
    history = ("x-death", "x-first-death-", "x-dead-letter-", "x-times-back", "millrace.")
    own = f.filter("headers", lambda one: ~f.greatest(*(one.key.startswith(name) for name in history)))
    count = f.struct(f.lit("x-times-back").alias("key"), f.expr("binary(string(times_back + 1)) value"))
    mended = dead.withColumns(
        {"value": with_country(f.col("value").cast("string"), "DE"), "headers": f.array_append(own, count)}
    )
    to_queues = mended.where("topic = 'dead-letters'").selectExpr("value", "headers", "origin routingKey")
    to_topics = mended.where("topic != 'dead-letters'").selectExpr("key", "value", "headers", "origin topic")
    ways = {"queues": to_queues.writeStream.option("exchange", ""), "topics": to_topics.writeStream}
    queries = [
        way.format("millrace")
        .option("millrace.servers", server)
        .option("checkpointLocation", f"{checkpoint}/{name}")
        .trigger(processingTime="1 second")
        .start()
        for name, way in ways.items()
    ]
    for query in queries:
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    amqp_port, native_port = (*map(int, sys.argv[1:]), *(5672, 9094)[len(sys.argv) - 1 :])
    fill(amqp_port, f"127.0.0.1:{native_port}")
    ensure_java()
    session = SparkSession.builder.master("local[2]").getOrCreate()
    for origin, reason, count in by_origin(session, f"127.0.0.1:{native_port}"):
        print(f"{origin}: {count} {reason}")
    with TemporaryDirectory() as checkpoint:  # one that stays, so that a second run sends nothing twice
        send_back(session, f"127.0.0.1:{native_port}", checkpoint, "reason = 'rejected'")
    session.stop()
