"""Spark's own Kafka connector, of whatever version of Spark, at the Kafka door: tables, a stream, and the sink.

    python -m tests.conformance.spark [--python OTHER/bin/python]

The interpreter runs Spark, and needs pyspark and what millrace depends on; the connector's jars of the same version of
Scala are in $SPARK_KAFKA_JARS (`benchmarks/spark_jars.py`). The test of the suite does the same with the newest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.spark_jars import jars
from millrace import BlockingClient, BlockingConsumer, BlockingProducer, BlockingTransactionalProducer
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT

RECORDS, TIMEOUT_S = 500, 300
COMMITTED = {"kafka.isolation.level": "read_committed"}
PART = {
    "startingOffsets": '{"read": {"0": 4, "1": 0, "2": -2}}',
    "endingOffsets": '{"read": {"0": 10, "1": 0, "2": 5}}',
}
Row = list[Any]


def job(server: str, directory: str) -> None:
    """What Spark does; prints what it saw as JSON."""
    from spark_bridge.jobs.session import session

    settings = {"spark.jars": ",".join(jars()), "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    spark = session("conformance", master="local[2]", settings=settings)

    def table(**options: str) -> Any:
        given = {"kafka.bootstrap.servers": server, "subscribe": "read", "includeHeaders": "true"} | COMMITTED
        return spark.read.format("kafka").options(**given, **options).load()

    def stream() -> None:
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server).option("subscribe", "read")
        rows = rows.options(startingOffsets="earliest", maxOffsetsPerTrigger="200", **COMMITTED).load()
        copies = rows.where("value is not null").select("key", "value").writeStream.format("kafka")
        copies = copies.option("kafka.bootstrap.servers", server).option("topic", "streamed")
        query = copies.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)

    columns = ("string(key)", "string(value)", "partition", "offset", "transform(headers, x -> string(x.value)) h")
    rows = [list(row) for row in table().selectExpr(*columns).collect()]
    part = table(**PART).count()
    stream()
    spark.range(300).selectExpr("string(id + 1000) value", "concat('k', id % 9) key").write.format("kafka").options(
        **{"kafka.bootstrap.servers": server, "topic": "read"}
    ).save()
    stream()
    print(json.dumps({"version": spark.version, "rows": rows, "part": part}), flush=True)


def fill(server: str) -> None:
    """The topics, and records with and without keys, values and headers; of an aborted transaction, too."""
    with BlockingClient(server) as client:
        client.create_topic("read", partitions=3)
        client.create_topic("streamed", partitions=3)
    with BlockingProducer(server) as producer:
        for number in range(RECORDS):
            headers = [("n", b"%d" % number)] if number % 2 else None
            producer.send("read", None if number % 7 == 3 else b"%d" % number, b"k%d" % (number % 5), headers)
    with BlockingTransactionalProducer(server, "conformance") as producer:
        producer.begin()
        producer.send("read", b"aborted")
        producer.abort()


def records(server: str, topic: str) -> list[Row]:
    """All that are committed, as `job` shows rows."""
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        found: list[Row] = []
        while more := consumer.fetch(10_000, timeout_ms=500):
            for one in more:
                headers = [value.decode() for _, value in one.headers if value is not None] or None
                key, value = (None if part is None else part.decode() for part in (one.key, one.value))
                found.append([key, value, one.partition, one.offset, headers])
        return found


def check(broker: BrokerProcess, python: str, directory: str) -> str:
    """Raises AssertionError; the version of Spark."""
    native = f"127.0.0.1:{broker.native_port}"
    fill(native)
    there = records(native, "read")
    command = [python, "-m", "tests.conformance.spark", "--job", f"127.0.0.1:{broker.ports['kafka']}", directory]
    environment = dict(os.environ, PYTHONPATH=str(CHECKOUT))
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(there) == RECORDS
    assert sorted(told["rows"], key=lambda row: row[2:4]) == sorted(there, key=lambda row: row[2:4])
    asked = [row for row in there if row[3] in {0: range(4, 10), 1: (), 2: range(5)}[row[2]]]
    assert told["part"] == len(asked) == 11
    wanted = [row[1] for row in there if row[1] is not None] + [str(1000 + number) for number in range(300)]
    assert sorted(row[1] for row in records(native, "streamed")) == sorted(wanted)
    return str(told["version"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs Spark")
    parser.add_argument("--job", nargs=2, metavar=("SERVER", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(*options.job)
        return
    if not jars():
        sys.exit("the connector is not here: python -m benchmarks.spark_jars")
    with (
        tempfile.TemporaryDirectory(prefix="spark-conformance-", ignore_cleanup_errors=True) as directory,
        broker_process(Path(directory) / "data", doors=("amqp", "mqtt", "native", "kafka")) as broker,
    ):
        version = check(broker, options.python, directory)
    connector = next(Path(one).name for one in jars() if "spark-sql-kafka" in one)
    print(f"Spark {version} with {connector}: all as it should be")


if __name__ == "__main__":
    main()
