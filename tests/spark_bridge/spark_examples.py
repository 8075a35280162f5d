"""The examples with Spark. `test_spark.py` runs these: all that needs a Spark session belongs to one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import paho.mqtt.client
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from core_log.batch_header import parse_header
from core_log.record_batch import iterate_records
from examples import spark_dead_letters, spark_join, spark_windows
from millrace import BlockingClient
from tests.support import BrokerProcess, broker_process


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_stream_is_joined_with_a_table(spark: Any, shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    spark_join.fill(shared_broker.mqtt_port, server)
    assert spark_join.run(spark, server) == [("attic", 31.0), ("kitchen", 22.5)]


@pytest.mark.soak
def test_dead_letters_of_all_doors_are_a_table_and_go_back(spark: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[engine]\ngroup_initial_delay_ms = 0\n")
    doors = ("amqp", "mqtt", "native", "kafka")
    with broker_process(tmp_path / "data", doors=doors, arguments=["--config", str(config)]) as broker:
        server = f"127.0.0.1:{broker.native_port}"
        spark_dead_letters.fill(broker.amqp_port, server)
        let_expire(broker)
        poison(f"127.0.0.1:{broker.ports['kafka']}")
        with BlockingClient(server) as client:
            (expired,) = client.fetch("dead-letters", 0, 3, max_wait_ms=10_000).batches  # the device's lives a second
            assert len(list(iterate_records(expired))) == 1
        assert spark_dead_letters.by_origin(spark, server) == [
            ("events", "fetches", 1), ("example-orders", "rejected", 3), ("readings", "expired", 1),
        ]  # fmt: skip
        back = partial(spark_dead_letters.send_back, spark, server, str(tmp_path / "checkpoint"))
        back("reason != 'maxlen'")
        mended = [b'{"order":"%d","country":"DE"}' % number for number in (2, 5, 8)]
        assert refused(broker, "example-orders") == [(body, "1") for body in mended]
        assert refused(broker, "readings") == [(b"21.5", "1")]
        with BlockingClient(server) as client:
            batches = [one for one in client.fetch("events", 0, 3).batches if not parse_header(one).is_control]
        (record,) = iterate_records(batches[0])
        assert (len(batches), record.value, record.headers) == (1, b"poison", [("x-times-back", b"1")])
        back("reason = 'rejected'", times_max=2)
        assert refused(broker, "example-orders") == [(body, "2") for body in mended]
        back("reason = 'rejected'", times_max=2)
        assert refused(broker, "example-orders") == []


def refused(broker: BrokerProcess, queue: str) -> list[tuple[bytes, str]]:
    """What waits in a queue, and how often it was sent back; the consumer rejects it again."""
    found = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue))[0] is not None:
            found.append((got[2], got[1].headers["x-times-back"]))
            channel.basic_reject(got[0].delivery_tag, requeue=False)
    return found


def let_expire(broker: BrokerProcess) -> None:
    """A device's message that nobody takes within a second."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("readings", durable=True, arguments={"x-dead-letter-exchange": "refused"})
        channel.queue_bind("readings", "amq.topic", "readings.#")
    properties = Properties(PacketTypes.PUBLISH)
    properties.MessageExpiryInterval = 1
    device = paho.mqtt.client.Client(CallbackAPIVersion.VERSION2, protocol=paho.mqtt.client.MQTTv5)
    device.connect("127.0.0.1", broker.mqtt_port)
    device.loop_start()
    device.publish("readings/hall", b"21.5", qos=1, properties=properties).wait_for_publish(10)
    device.disconnect()
    device.loop_stop()


def poison(server: str) -> None:
    """A record that two consumers of Kafka's client get no further than, and the third is not given."""
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": server})
    config = {"millrace.dead.letter.fetches": "1"}
    client.create_topics([confluent_kafka.admin.NewTopic("events", 1, 1, config=config)])["events"].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    for body in ("good", "poison", "fine"):
        producer.produce("events", body)
    assert not producer.flush(20)
    given = []
    for _ in range(3):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server,
                "group.id": "workers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["events"])
        while (got := consumer.poll(20).value()) == b"good":
            consumer.commit(asynchronous=False)
        given.append(got)
        consumer.close()
    assert given == [b"poison", b"poison", b"fine"]
