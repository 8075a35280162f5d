"""Spark's own Kafka connector at the Kafka door and SIGKILL: a stream from a topic into Parquet files.

    python -m benchmarks.spark_jars
    python -m tests.faults.spark_connector_rounds --rounds 20

1. Each id is published once, over MQTT, to a topic that is bound to the exchange. The query, `format("kafka")` of the
   connector as it is, writes what it reads as Parquet files.
2. In each round the driver (with Java) or the broker is killed, and started again.
3. In the end the files have each record of the topic once, and all that publishers were told is stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.spark_jars import jars
from millrace import BlockingClient
from tests.faults.spark_driver import Driver, World, keep_running, main, settings_of, values
from tests.faults.wire_clients import MqttPublisher, Stream
from tests.support import BrokerProcess

KINDS = ("driver", "broker")
TOPIC, PUBLISH_TO = "readings", "plant/7/temp"
PARTITIONS = 3
END_TIMEOUT_S = 120


def drive(server: str, directory: str) -> None:
    """The driver."""
    from spark_bridge.jobs.session import session

    settings = settings_of(directory) | {"spark.jars": ",".join(jars())}
    spark = session("rounds", master="local[2,4]", settings=settings)

    def start() -> object:
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server).option("subscribe", TOPIC)
        rows = rows.options(**{"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}).load()
        written = rows.selectExpr("partition", "offset", "string(value) value").writeStream.format("parquet")
        return written.option("checkpointLocation", f"{directory}/checkpoint").start(f"{directory}/table")

    keep_running(start)


def rows_of(directory: Path) -> list[str]:
    """What the files that are written for good have."""
    import pyarrow.parquet as pq

    metadata = directory / "table" / "_spark_metadata"
    logs = [one for one in metadata.glob("*") if one.name.removesuffix(".compact").isdigit()]
    files: set[str] = set()
    for log in logs:
        for line in log.read_text().splitlines()[1:]:
            files.add(Path(json.loads(line)["path"].removeprefix("file://")).name)
    found: list[str] = []
    for name in files:
        found += pq.read_table(directory / "table" / name, partitioning=None)["value"].to_pylist()
    return found


class Copied(World):
    """Records of one publisher, copied into files."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        super().__init__(broker, [lambda: MqttPublisher(broker.mqtt_port, self.stream, PUBLISH_TO)])
        self.server = f"127.0.0.1:{broker.ports['kafka']}"
        self.native = f"127.0.0.1:{broker.native_port}"
        self.directory = directory
        self.stream = Stream("rounds-mqtt")
        with BlockingClient(self.native) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
            client.bind_topic(TOPIC, "amq.topic", PUBLISH_TO.replace("/", "."))

    def __str__(self) -> str:
        return f"{len(self.stream.confirmed):,} stored"

    def compare(self, driver: Driver) -> int:
        """See `World`; how many records there are."""
        kept = Counter(value.decode() for value in values(self.native, TOPIC))
        ids = {" ".join(one.split(" ", 2)[:2]) for one in kept}
        assert ids >= {f"rounds-mqtt {one}" for one in self.stream.confirmed}
        end = time.monotonic() + END_TIMEOUT_S
        while Counter(rows_of(self.directory)) != kept and time.monotonic() < end:
            time.sleep(1)
        time.sleep(3)
        found = Counter(rows_of(self.directory))
        assert not kept - found, f"{(kept - found).total()} lost"
        assert not found - kept, f"{(found - kept).total()} too many, such as {sorted(found - kept)[:5]}"
        return found.total()


if __name__ == "__main__":
    if not jars():
        sys.exit("the connector is not here: python -m benchmarks.spark_jars")
    main(__doc__, drive, Copied, "tests.faults.spark_connector_rounds", rounds=20, kinds=KINDS)
