"""Spark's own Kafka connector at the Kafka door and SIGKILL: a stream from a topic into Parquet files.

    python -m benchmarks.spark_jars
    python -m tests.faults.spark_connector_rounds --rounds 20

1. Each id is published once, over MQTT, to a topic that is bound to the exchange. The query, `format("kafka")` of the
   connector as it is, writes what it reads as Parquet files.
2. In each round the driver (with Java) or the broker is killed, and started again.
3. In the end the files have each record of the topic once, and all that publishers were told is stored.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.spark_jars import jars
from millrace import BlockingClient
from tests.faults.spark_rounds import Driver, one_round, publish, values
from tests.faults.wire_clients import MqttPublisher, Stream
from tests.support import BrokerProcess, broker_process

KINDS = ("driver", "broker")
TOPIC, PUBLISH_TO = "readings", "plant/7/temp"
PARTITIONS = 3
END_TIMEOUT_S = 120


def drive(server: str, directory: str) -> None:
    """The driver: runs the query from its checkpoint, and again when it fails."""
    from spark_bridge.jobs.session import session

    settings = {
        "spark.jars": ",".join(jars()), "spark.local.dir": f"{directory}/local", "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": f"{directory}/warehouse", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }  # fmt: skip
    spark = session("rounds", master="local[2,4]", settings=settings)
    while True:
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server).option("subscribe", TOPIC)
        rows = rows.options(**{"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}).load()
        written = rows.selectExpr("partition", "offset", "string(value) value").writeStream.format("parquet")
        query = written.option("checkpointLocation", f"{directory}/checkpoint").start(f"{directory}/table")
        print("started", flush=True)
        try:
            query.awaitTermination()
        except Exception as error:
            print(json.dumps(str(error)[-300:]), flush=True)
        time.sleep(0.5)  # the broker may be on its way back


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


def run(rounds: int, seed: int) -> dict[str, int]:
    """Raises AssertionError when something was lost or is there twice; how often each kind was killed, and records."""
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="connector-rounds-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with broker_process(directory / "data", doors=("amqp", "mqtt", "native", "kafka")) as broker:
            native, stream, over = f"127.0.0.1:{broker.native_port}", Stream("rounds-mqtt"), threading.Event()
            with BlockingClient(native) as client:
                client.create_topic(TOPIC, partitions=PARTITIONS)
                client.bind_topic(TOPIC, "amq.topic", PUBLISH_TO.replace("/", "."))
            opener = lambda: MqttPublisher(broker.mqtt_port, stream, PUBLISH_TO)  # noqa: E731
            thread = threading.Thread(target=publish, args=(opener, over))
            driver = Driver(f"127.0.0.1:{broker.ports['kafka']}", directory, "tests.faults.spark_connector_rounds")
            try:
                driver.start()
                thread.start()
                for number in range(rounds):
                    time.sleep(rng.uniform(0.5, 4))
                    kind = rng.choice(KINDS)
                    killed[kind] += 1
                    one_round(kind, rng, driver, broker)
                    print(f"round {number + 1}: killed the {kind}; {len(stream.confirmed):,} stored", flush=True)
                over.set()
                thread.join()
                return {**killed, "records": compare(directory, broker, stream)}
            finally:
                over.set()
                driver.kill9()


def compare(directory: Path, broker: BrokerProcess, stream: Stream) -> int:
    """Wait until the query has written all, and for what would come too much; how many records there are."""
    kept = Counter(value.decode() for value in values(f"127.0.0.1:{broker.native_port}", TOPIC))
    assert {" ".join(one.split(" ", 2)[:2]) for one in kept} >= {f"rounds-mqtt {one}" for one in stream.confirmed}
    end = time.monotonic() + END_TIMEOUT_S
    while Counter(rows_of(directory)) != kept and time.monotonic() < end:
        time.sleep(1)
    time.sleep(3)
    found = Counter(rows_of(directory))
    assert not kept - found, f"{(kept - found).total()} lost"
    assert not found - kept, f"{(found - kept).total()} too many, such as {sorted(found - kept)[:5]}"
    return found.total()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--drive", nargs=2, metavar=("SERVER", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    if not jars():
        sys.exit("the connector is not here: python -m benchmarks.spark_jars")
    print(f"seed {options.seed}")
    done = run(options.rounds, options.seed)
    print(f"{options.rounds} rounds: each record is there once; {done}")


if __name__ == "__main__":
    main()
