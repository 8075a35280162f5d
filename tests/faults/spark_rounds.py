"""A stream of Spark and SIGKILL: what is published is counted by a query, whose counts are written to another topic.

    python -m tests.faults.spark_rounds --rounds 50
    python -m tests.faults.spark_rounds --rounds 5 --seed 1234

1. Each id is published once; who does not hear whether it was stored goes on with the next. The query counts by id and
   second, and writes a count when its second is over for good.
2. In each round the driver (with Java and all it started), one of Spark's Python processes or the broker is killed, and
   started again where Spark does not do so itself.
3. In the end the output has each id of the input once, with the count 1, as a native consumer of committed records
   reads it: nothing was lost, read twice or written twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.peers import descendants
from millrace import BlockingClient, BlockingConsumer, BlockingProducer, MillraceError
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT

SOURCE, TARGET = "ids", "counts"
PARTITIONS = 3
PUBLISHED_AT_ONCE = 50
PAUSE_S = 0.05
LATE_S = 10
"""How long a second is kept open."""
END = b"end"
"""Is published behind all ids, so that their seconds are over."""
KINDS = ("driver", "worker", "broker")
START_TIMEOUT_S = 90
END_TIMEOUT_S = 180


def drive(server: str, directory: str) -> None:
    """The driver: runs the query from its checkpoint, and again when it fails."""
    from pyspark.sql import functions as f

    from spark_bridge.jobs.session import session

    settings = {
        "spark.sql.shuffle.partitions": "2", "spark.local.dir": f"{directory}/local", "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": f"{directory}/warehouse", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }  # fmt: skip
    spark = session("rounds", master="local[2,4]", settings=settings)
    while True:
        rows = spark.readStream.format("millrace").option("millrace.servers", server).option("subscribe", SOURCE)
        rows = rows.option("startingOffsets", "earliest").load()
        rows = rows.withWatermark("timestamp", f"{LATE_S} seconds")
        counts = rows.groupBy(f.window("timestamp", "1 second"), f.col("value").cast("string").alias("key")).count()
        written = counts.select("key", f.concat_ws(" ", "key", "count").alias("value")).writeStream.format("millrace")
        written = written.option("millrace.servers", server).option("topic", TARGET)
        query = written.option("checkpointLocation", f"{directory}/checkpoint").start()
        print("started", flush=True)
        try:
            query.awaitTermination()
        except Exception as error:
            print(json.dumps(str(error)[-300:]), flush=True)
        time.sleep(0.5)  # the broker may be on its way back


class Driver:
    """The process that `drive` runs in."""

    def __init__(self, server: str, directory: Path) -> None:
        self.command = [sys.executable, "-m", "tests.faults.spark_rounds", "--drive", server, str(directory)]
        self.log = directory / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the query runs. Raises RuntimeError."""
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=CHECKOUT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=dict(os.environ, PYTHONPATH=str(CHECKOUT)),
            )  # fmt: skip
        end = time.monotonic() + START_TIMEOUT_S
        while b"started" not in self.log.read_bytes():
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"the driver did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Spark's Python processes."""
        assert self.process is not None
        found = []
        for pid in descendants(self.process.pid):
            try:
                if b"pyspark.daemon" in (said := Path(f"/proc/{pid}/cmdline").read_bytes()) or b"worker" in said:
                    found.append(pid)
            except OSError:
                continue
        return found

    def kill9(self) -> None:
        """With all that it started."""
        if self.process is not None:
            for pid in reversed(descendants(self.process.pid)):
                _kill(pid)
            self.process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _publish(server: str, over: threading.Event, done: list[int]) -> None:
    number = 0
    while not over.is_set():
        try:
            with BlockingProducer(server, timeout_s=5) as producer:
                while not over.wait(PAUSE_S):
                    for _ in range(PUBLISHED_AT_ONCE):
                        number += 1
                        producer.send(SOURCE, b"%d" % number, b"%d" % number)
                    producer.flush()
                    done[0] = number
        except (MillraceError, OSError):
            over.wait(0.2)


def _values(server: str, topic: str) -> list[str]:
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        found: list[str] = []
        while more := consumer.fetch(100_000, timeout_ms=500):
            found += [(one.value or b"").decode() for one in more]
        return found


def _round(kind: str, rng: random.Random, driver: Driver, broker: BrokerProcess) -> None:
    if kind == "driver":
        driver.kill9()
        driver.start()
    elif kind == "worker":
        workers = driver.workers()
        if workers:
            _kill(rng.choice(workers))
    else:
        broker.kill9()
        time.sleep(rng.random())
        broker.start_again()
    assert driver.process is not None
    if driver.process.poll() is not None:
        driver.start()


def run(rounds: int, seed: int, kinds: tuple[str, ...] = KINDS) -> dict[str, int]:
    """Raises AssertionError when something was lost or is there twice; how often each kind was killed, and records."""
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="spark-rounds-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with broker_process(directory / "data") as broker:
            server = f"127.0.0.1:{broker.native_port}"
            with BlockingClient(server) as client:
                for topic in (SOURCE, TARGET):
                    client.create_topic(topic, partitions=PARTITIONS)
            driver, over, done = Driver(server, directory), threading.Event(), [0]
            publisher = threading.Thread(target=_publish, args=(server, over, done))
            try:
                driver.start()
                publisher.start()
                for number in range(rounds):
                    time.sleep(rng.uniform(0.5, 4))
                    kind = rng.choice(kinds)
                    killed[kind] += 1
                    _round(kind, rng, driver, broker)
                    print(f"round {number + 1}: killed the {kind}, {done[0]:,} published", flush=True)
                over.set()
                publisher.join()
                _compare(server, driver)
                return {**killed, "records": len(_values(server, TARGET))}
            finally:
                over.set()
                driver.kill9()


def _compare(server: str, driver: Driver) -> None:
    """Wait until the query has done all, and for what would come too much."""
    time.sleep(LATE_S + 2)
    with BlockingProducer(server) as producer:
        producer.send(SOURCE, END)
    wanted = Counter(f"{value} 1" for value in _values(server, SOURCE) if value != END.decode())
    assert set(wanted.values()) == {1}
    end = time.monotonic() + END_TIMEOUT_S
    while sum((found := Counter(_values(server, TARGET))).values()) < len(wanted) and time.monotonic() < end:
        time.sleep(1)
    time.sleep(3)
    found = Counter(_values(server, TARGET))
    lost, more = wanted - found, found - wanted
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:5]}; {driver.log.read_text()[-2000:]}"
    assert not more, f"{len(more)} too much, such as {sorted(more)[:5]}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--drive", nargs=2, metavar=("SERVER", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    print(f"seed {options.seed}")
    done = run(options.rounds, options.seed)
    print(f"{options.rounds} rounds: each id is there once; {done}")


if __name__ == "__main__":
    main()
