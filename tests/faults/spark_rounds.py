"""A stream of Spark and SIGKILL: what is published over AMQP and MQTT is counted by one query, which writes its counts.

    python -m tests.faults.spark_rounds --rounds 50
    python -m tests.faults.spark_rounds --rounds 5 --seed 1234

1. Each id is published once, to a queue or to a topic of MQTT; who does not hear whether it was stored goes on with
   the next. The query takes the messages out of the queue, reads those of a filter, counts them by id and second, and
   writes a count to a topic when its second is over for good.
2. In each round the driver (with Java and all it started), one of Spark's Python processes or the broker is killed, and
   started again where Spark does not do so itself.
3. In the end the output has each id of the input once, with the count 1, as consumers of committed records read it: a
   native one, kafka-python, and pika (over a view of the topic). Nothing was lost, read twice or written twice. The
   input is what publishers were told is stored, and of the filter exactly what the broker keeps; of the rest nothing
   is there more than once. The queue is empty.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from millrace import BlockingClient
from tests.faults.spark_driver import Driver, World, keep_running, main, settings_of, values
from tests.faults.wire_clients import AmqpPublisher, MqttPublisher, Stream
from tests.support import BrokerProcess

OVER_AMQP, OVER_MQTT = "rounds-amqp", "rounds-mqtt"
"""How ids begin; the first is the queue as well."""
TARGET = "counts"
PUBLISH_TO, FILTER = "plant/7/temp", "plant/+/temp"
PARTITIONS = 3
LATE_S = 10
"""How long a second is kept open."""
KINDS = ("driver", "worker", "broker")
END_TIMEOUT_S = 180


def drive(server: str, directory: str) -> None:
    """The driver."""
    from pyspark.sql import functions as f

    from spark_bridge.jobs.session import session

    settings = settings_of(directory) | {"spark.sql.shuffle.partitions": "2"}
    spark = session("rounds", master="local[2,4]", settings=settings)

    def start() -> object:
        rows = spark.readStream.format("millrace").option("millrace.servers", server)
        taken = rows.option("queue", OVER_AMQP).option("queue.mode", "consume").load()
        rows = spark.readStream.format("millrace").option("millrace.servers", server)
        kept = rows.option("mqtt.filter", FILTER).option("startingOffsets", "earliest").load()
        ids = taken.union(kept).selectExpr("timestamp", "substring_index(string(value), ' ', 2) as key")
        ids = ids.withWatermark("timestamp", f"{LATE_S} seconds")
        counts = ids.groupBy(f.window("timestamp", "1 second"), "key").count()
        written = counts.select("key", f.concat_ws(" ", "key", "count").alias("value")).writeStream.format("millrace")
        written = written.option("millrace.servers", server).option("topic", TARGET)
        return written.option("checkpointLocation", f"{directory}/checkpoint").start()

    keep_running(start)


def values_by_kafka(server: str, topic: str, count: int) -> list[bytes]:
    """The same, at most a few more than `count`, as kafka-python reads them."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=server, isolation_level="read_committed", consumer_timeout_ms=5_000)
    try:
        places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        consumer.seek_to_beginning()
        found: list[bytes] = []
        while len(found) < count or not found:
            more = [one.value for each in consumer.poll(5_000).values() for one in each]
            if not more:
                break
            found += more
        return found
    finally:
        consumer.close()


def values_by_pika(port: int, topic: str) -> list[bytes]:
    """The same, as pika takes them out of a view of the topic."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    with connection:
        channel = connection.channel()
        view = f"{topic}-view"
        arguments = {"x-queue-type": "view", "x-view-topic": topic, "x-stream-offset": "first"}
        channel.queue_declare(view, durable=True, arguments=arguments)
        found = []
        for method, _, body in channel.consume(view, inactivity_timeout=5):
            if method is None:
                break
            found.append(body)
            channel.basic_ack(method.delivery_tag)
        return found


class Counted(World):
    """Ids of both publishers, counted."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        super().__init__(broker, (self._open_amqp, self._open_mqtt))
        self.server = f"127.0.0.1:{broker.native_port}"
        self.taken, self.kept = Stream(OVER_AMQP), Stream(OVER_MQTT)
        with BlockingClient(self.server) as client:
            client.create_topic(TARGET, partitions=PARTITIONS)
            self.topic = client.look("topics.of_filter", pattern=FILTER.replace("/", "."))
        self._open_amqp().connection.sock.close()  # there is a queue

    def __str__(self) -> str:
        return f"{len(self.taken.confirmed):,} over AMQP, {len(self.kept.confirmed):,} over MQTT"

    def _open_amqp(self) -> AmqpPublisher:
        return AmqpPublisher(self.broker.amqp_port, self.taken)

    def _open_mqtt(self) -> MqttPublisher:
        return MqttPublisher(self.broker.mqtt_port, self.kept, PUBLISH_TO)

    def _keys(self) -> Counter[str]:
        """The ids in the output, which all have the count 1."""
        found = Counter(value.decode() for value in values(self.server, TARGET))
        odd = [text for text in found if not text.endswith(" 1")]
        assert not odd, f"{len(odd)} were counted more than once, such as {sorted(odd)[:5]}"
        return Counter({text.removesuffix(" 1"): count for text, count in found.items()})

    def compare(self, driver: Driver) -> int:
        """See `World`; how many ids there are."""
        time.sleep(LATE_S + 2)
        kept = {" ".join(value.decode().split(" ", 2)[:2]) for value in values(self.server, self.topic)}
        wanted = kept | {f"{OVER_AMQP} {number}" for number in self.taken.confirmed}
        assert kept >= {f"{OVER_MQTT} {number}" for number in self.kept.confirmed}
        possible = kept | {f"{OVER_AMQP} {number}" for number in range(self.taken.published)}
        for publisher in (self._open_amqp(), self._open_mqtt()):
            publisher.run(iter([1]))  # so that the seconds of all before are over
        end = time.monotonic() + END_TIMEOUT_S
        while not wanted <= self._keys().keys() and time.monotonic() < end:
            time.sleep(1)
        time.sleep(3)
        found = self._keys()
        lost, more, twice = wanted - found.keys(), found.keys() - possible, [k for k, n in found.items() if n > 1]
        assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:5]}; {driver.log.read_text()[-2000:]}"
        assert not more, f"{len(more)} were never published, such as {sorted(more)[:5]}"
        assert not twice, f"{len(twice)} are there twice, such as {sorted(twice)[:5]}"
        self._compare_readers(found.total())
        with BlockingClient(self.server) as client:
            answer = client.administer("queues.list")
        (row,) = (dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"] if OVER_AMQP in row)
        assert (row["ready"], row["unacknowledged"]) == (0, 0), row
        return len(found)

    def _compare_readers(self, count: int) -> None:
        wanted = sorted(values(self.server, TARGET))
        assert len(wanted) == count
        for what, found in (
            ("kafka-python", values_by_kafka(f"127.0.0.1:{self.broker.ports['kafka']}", TARGET, count)),
            ("pika", values_by_pika(self.broker.amqp_port, TARGET)),
        ):
            assert sorted(found) == wanted, f"{what} has {len(found)} records, {len(set(found))} different, of {count}"


if __name__ == "__main__":
    main(__doc__, drive, Counted, "tests.faults.spark_rounds", rounds=50, kinds=KINDS)
