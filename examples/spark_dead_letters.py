"""Dead letters as a table: what queues refused, or had for too long, and what consumers of a topic did not get past, by
reason, and how often; and back where they came from, mended, once each.

python examples/spark_dead_letters.py [amqp port] [native port]
"""

import sys
from tempfile import TemporaryDirectory
from typing import Any

import pika
from pyspark.sql import DataFrame, SparkSession

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
        if "dead-letters" not in client.metadata():
            client.create_topic("dead-letters", partitions=1)
        client.bind_topic("dead-letters", "refused", "#")
        channel.queue_declare("example-orders", durable=True, arguments={"x-dead-letter-exchange": "refused"})
        channel.confirm_delivery()
        for number in range(9):
            body = b'{"order":"%d","country":"?"}' % number
            channel.basic_publish("", "example-orders", body, pika.BasicProperties(delivery_mode=2))
        for method, _, _ in channel.consume("example-orders"):
            if method.delivery_tag % 3:
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=False)
            if method.delivery_tag == 9:
                break


SOURCE = {"subscribePattern": r"dead-letters|.+\.dlq", "includeHeaders": "true", "startingOffsets": "earliest"}
"""Dead letters of queues are in one topic, those of each topic (`millrace.dead.letter.fetches`) in one of `.dlq`."""
MENDED = """coalesce(to_json(map_concat(
    map_filter(from_json(string(value), 'map<string,string>'), (name, _) -> name != 'country'), map('country', 'DE')
)), string(value)) value"""
HEADERS = """array_append(
    filter(headers, one -> not one.key rlike '^(x-death|x-first-death-|x-dead-letter-|x-times-back|millrace[.])'),
    struct('x-times-back' key, binary(string(times_back + 1)) value)
) headers"""


def header(name: str) -> str:
    """SQL: the first header of that name."""
    return f"string(get(filter(headers, one -> one.key = '{name}'), 0).value)"


def with_history(letters: DataFrame) -> DataFrame:
    """With the queue or topic that gave a letter up, why, and how often it was sent back before."""
    return letters.selectExpr(
        "*",
        f"coalesce({header('x-first-death-queue')}, {header('x-dead-letter-topic')}) origin",
        f"coalesce({header('x-first-death-reason')}, {header('x-dead-letter-reason')}) reason",
        f"coalesce(int({header('x-times-back')}), 0) times_back",
    )


def by_origin(spark: SparkSession, server: str) -> list[tuple[Any, ...]]:
    """How many, by queue or topic, and reason."""
    letters = spark.read.format("millrace").options(**SOURCE).option("millrace.servers", server).load()
    counted = with_history(letters).groupBy("origin", "reason").count().orderBy("origin", "reason")
    return [tuple(row) for row in counted.collect()]


def send_back(
    spark: SparkSession, server: str, checkpoint: str, which: str, *, per_second: int = 1000, times_max: int = 3
) -> None:
    """Letters of which that SQL is true go back, mended, to the queues and topics that gave them up: those that came
    since the last run with that checkpoint, each at most `times_max` times, to queues and to topics no more than so
    many a second.
    """
    letters = spark.readStream.format("millrace").options(**SOURCE).option("millrace.servers", server)
    dead = with_history(letters.option("maxOffsetsPerTrigger", per_second).load()).where(which)
    mended = dead.where(f"times_back < {times_max}").selectExpr("topic", "key", MENDED, HEADERS, "origin")
    to_queues = mended.where("topic = 'dead-letters'").selectExpr("value", "headers", "origin routingKey")
    to_topics = mended.where("topic != 'dead-letters'").selectExpr("key", "value", "headers", "origin topic")
    queries = [
        way.format("millrace")
        .option("millrace.servers", server)
        .option("checkpointLocation", f"{checkpoint}/{name}")
        .trigger(processingTime="1 second")
        .start()
        for name, way in (("queues", to_queues.writeStream.option("exchange", "")), ("topics", to_topics.writeStream))
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
