"""What the rounds of Spark's streams have in common: a driver, a broker, who publishes, and SIGKILL.

1. The module of the rounds is run again as the driver, in a process of its own: it keeps a query running.
2. In each round the driver (with Java and all it started), one of Spark's Python processes or the broker is killed, and
   started again where Spark does not do so itself.
3. Who publishes goes on meanwhile. In the end the world says whether all is there, once.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import descendants
from benchmarks.wire_proto import BrokerError
from millrace import BlockingConsumer
from tests.faults.wire_clients import AmqpPublisher, MqttPublisher
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT

PUBLISHED_AT_ONCE = 50
PAUSE_S = 0.05
START_TIMEOUT_S = 90


def keep_running(start: Callable[[], Any]) -> None:
    """The driver: has the query run from its checkpoint, and again when it fails."""
    while True:
        query = start()
        print("started", flush=True)
        try:
            query.awaitTermination()
        except Exception as error:
            print(json.dumps(str(error)[-300:]), flush=True)
        time.sleep(0.5)  # the broker may be on its way back


def settings_of(directory: str) -> dict[str, str]:
    """Of the driver's session."""
    return {
        # Who is killed while the first micro-batch is noted leaves half a file, which Spark would refuse.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        "spark.local.dir": f"{directory}/local", "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": f"{directory}/warehouse", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }  # fmt: skip


class Driver:
    """The process that the query runs in."""

    def __init__(self, server: str, directory: Path, module: str, python: str = sys.executable) -> None:
        self.command = [python, "-m", module, "--drive", server, str(directory)]
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
        """Spark's Python processes: those of tasks, and those of the sources."""
        assert self.process is not None
        found = []
        for pid in descendants(self.process.pid):
            try:
                if b"-mpyspark" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b""):
                    found.append(pid)
            except OSError:
                continue
        return found

    def kill9(self) -> None:
        """With all that it started."""
        if self.process is not None:
            for pid in reversed(descendants(self.process.pid)):
                kill(pid)
            self.process.wait()


def kill(pid: int) -> None:
    """If it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def values(server: str, topic: str) -> list[bytes]:
    """Of all committed records."""
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        found: list[bytes] = []
        while more := consumer.fetch(100_000, timeout_ms=500):
            found += [one.value or b"" for one in more]
        return found


class World:
    """Who publishes, and what is known of it. `server` is where the driver finds the broker."""

    server: str

    def __init__(self, broker: BrokerProcess, openers: Sequence[Callable[[], AmqpPublisher | MqttPublisher]]) -> None:
        self.broker = broker
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(opener,)) for opener in openers]

    def start(self) -> None:
        """Publish from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Publish no more."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def compare(self, driver: Driver) -> int:
        """Wait until the query has done all, and for what would come too much; how much there is.

        Raises AssertionError when something was lost or is there twice.
        """
        raise NotImplementedError

    def _publish(self, open_publisher: Callable[[], AmqpPublisher | MqttPublisher]) -> None:
        def sizes() -> Iterator[int]:
            while not self._over.wait(PAUSE_S):
                yield PUBLISHED_AT_ONCE

        while not self._over.is_set():
            try:
                open_publisher().run(sizes())
            except (OSError, BrokerError):
                pass
            self._over.wait(0.2)


def one_round(kind: str, rng: random.Random, driver: Driver, broker: BrokerProcess) -> None:
    """Kill what `kind` says, and start again what Spark does not start."""
    if kind == "driver":
        driver.kill9()
        driver.start()
    elif kind == "worker":
        workers = driver.workers()
        if workers:
            kill(rng.choice(workers))
    else:
        broker.kill9()
        time.sleep(rng.random())
        broker.start_again()
    assert driver.process is not None
    if driver.process.poll() is not None:
        driver.start()


def run(
    world_of: Callable[[BrokerProcess, Path], World],
    module: str,
    rounds: int,
    seed: int,
    kinds: Sequence[str],
    python: str = sys.executable,
) -> dict[str, int]:
    """How often each kind was killed, and how much there is. `python` is the driver's interpreter. Raises
    AssertionError as `World.compare` does.
    """
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="spark-rounds-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with broker_process(directory / "data", doors=("amqp", "mqtt", "native", "kafka")) as broker:
            world = world_of(broker, directory)
            driver = Driver(world.server, directory, module, python)
            try:
                driver.start()
                world.start()
                for number in range(rounds):
                    time.sleep(rng.uniform(0.5, 4))
                    kind = rng.choice(kinds)
                    killed[kind] += 1
                    one_round(kind, rng, driver, broker)
                    print(f"round {number + 1}: killed the {kind}; {world}", flush=True)
                world.stop()
                return {**killed, "there": world.compare(driver)}
            finally:
                world.stop()
                driver.kill9()


def main(
    description: str | None,
    drive: Callable[[str, str], None],
    world_of: Callable[[BrokerProcess, Path], World],
    module: str,
    *,
    rounds: int,
    kinds: Sequence[str],
) -> None:
    """The command of some rounds. `module` is theirs, in which `drive` runs with a server and a directory."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kill", action="append", choices=kinds, help="only this; default: any")
    parser.add_argument("--python", default=sys.executable, help="the driver's interpreter: one with another PySpark")
    parser.add_argument("--drive", nargs=2, metavar=("SERVER", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    print(f"seed {options.seed}", flush=True)
    done = run(world_of, module, options.rounds, options.seed, options.kill or kinds, options.python)
    print(f"{options.rounds} rounds: all is there once; {done}")
