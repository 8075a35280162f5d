"""A stream of devices joined with a table: readings over MQTT, with the room and the limit that a table has for each.

python examples/spark_join.py [mqtt port] [native port]
"""

import sys
from typing import Any

import paho.mqtt.publish
from pyspark.sql import DataFrame, SparkSession

from millrace import BlockingClient
from pyspark_millrace import ensure_java

DEVICES = [("t1", "kitchen", 21.0), ("t2", "attic", 30.0)]
READINGS = [("t1", "20.0"), ("t1", "22.5"), ("t2", "29.0"), ("t2", "31.0"), ("t9", "99.0")]


def fill(mqtt_port: int, server: str) -> None:
    """Make a topic that takes everything published under `sensors/`, and publish."""
    with BlockingClient(server) as client:
        if "sensors" not in client.metadata():
            client.create_topic("sensors", partitions=2)
        client.bind_topic("sensors", "amq.topic", "sensors.#")
    messages = [{"topic": f"sensors/{device}", "payload": degrees, "qos": 1} for device, degrees in READINGS]
    paho.mqtt.publish.multiple(messages, "127.0.0.1", mqtt_port)


def too_hot(spark: SparkSession, server: str, devices: DataFrame) -> DataFrame:
    """A stream of the readings above their device's limit. Devices that the table does not have are left out."""
    records = (
        spark.readStream.format("millrace")
        .option("millrace.servers", server)
        .option("subscribe", "sensors")
        .option("startingOffsets", "earliest")
        .load()
    )
    readings = records.selectExpr(
        "substr(cast(key as string), 9) as device", "double(cast(value as string)) as degrees"
    )
    return readings.join(devices, "device").where("degrees > limit").select("room", "degrees")


def run(spark: SparkSession, server: str) -> list[tuple[Any, ...]]:
    """The rows there are now."""
    devices = spark.createDataFrame(DEVICES, "device string, room string, limit double")
    query = too_hot(spark, server, devices).writeStream.format("memory").queryName("too_hot")
    query.trigger(availableNow=True).start().awaitTermination()
    return [tuple(row) for row in spark.table("too_hot").orderBy("room").collect()]


if __name__ == "__main__":
    mqtt_port, native_port = (*map(int, sys.argv[1:]), *(1883, 9094)[len(sys.argv) - 1 :])
    fill(mqtt_port, f"127.0.0.1:{native_port}")
    ensure_java()
    session = SparkSession.builder.master("local[2]").getOrCreate()
    for room, degrees in run(session, f"127.0.0.1:{native_port}"):
        print(f"{room}: {degrees}")
    session.stop()
