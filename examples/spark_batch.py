"""A topic as a table in Spark: what a thermometer sends over MQTT, averaged by room from the log.

python examples/spark_batch.py [mqtt port] [native port]
"""

import sys
from typing import Any

import paho.mqtt.publish
from pyspark.sql import SparkSession

from millrace import BlockingClient
from pyspark_millrace import ensure_java


def fill(mqtt_port: int, server: str) -> None:
    """Make a topic that takes everything published under `climate/`, and publish."""
    with BlockingClient(server) as client:
        if "climate" not in client.metadata():
            client.create_topic("climate", partitions=2)
        client.bind_topic("climate", "amq.topic", "climate.#")
    readings = [("kitchen", "20.0"), ("kitchen", "22.0"), ("attic", "11.0"), ("attic", "12.0")]
    messages = [{"topic": f"climate/{room}", "payload": degrees, "qos": 1} for room, degrees in readings]
    paho.mqtt.publish.multiple(messages, "127.0.0.1", mqtt_port)


def mean_by_room(spark: SparkSession, server: str) -> list[Any]:
    """Rows of room and mean temperature. A record's key is what it was published under, with `.` for `/`."""
    records = spark.read.format("millrace").option("millrace.servers", server).option("subscribe", "climate").load()
    readings = records.selectExpr("substr(cast(key as string), 9) as room", "double(cast(value as string)) as degrees")
    return readings.groupBy("room").avg("degrees").orderBy("room").collect()


if __name__ == "__main__":
    mqtt_port, native_port = (*map(int, sys.argv[1:]), *(1883, 9094)[len(sys.argv) - 1 :])
    fill(mqtt_port, f"127.0.0.1:{native_port}")
    ensure_java()
    session = SparkSession.builder.master("local[2]").getOrCreate()
    for room, degrees in mean_by_room(session, f"127.0.0.1:{native_port}"):
        print(f"{room}: {degrees}")
    session.stop()
