"""Kafka's transactions and SIGKILL: workers copy from topic to topic, and brokers and workers are killed at random.

    python -m tests.faults.kafka_rounds --rounds 200
    python -m tests.faults.kafka_rounds --rounds 20 --brokers 3 --seed 1234

1. An idempotent producer writes numbers to one topic. Workers (`kafka_worker.py`) consume them as members of a group,
   write each to another topic, and commit both with how far they have come in one transaction.
2. In a round a broker, a worker or both are killed, and come back; a worker sometimes under another name, so that what
   it had under way is ended by nobody but the broker, in time.
3. Whoever reads what is committed finds each number at most once at any time, and exactly once in the end.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.faults.kafka_findings import findings
from tests.faults.kafka_worker import COPIES, GROUP, SOURCE
from tests.support import BrokerProcess, broker_process, cluster
from tests.support.broker_process import CHECKOUT

DOORS = ("amqp", "mqtt", "native", "kafka")
SETTINGS = {"MILLRACE_ENGINE_GROUP_SESSION_TIMEOUT_MS_MIN": "500", "MILLRACE_ENGINE_GROUP_INITIAL_DELAY_MS": "200"}
PARTITIONS = 4
PATIENCE_S = 120.0
NUMBERS_PER_S = 200
CHECKED_EACH = 10


class Source:
    """Writes numbers, in a thread of its own, until it is stopped."""

    def __init__(self, servers: str) -> None:
        self.sent = 0
        self.errors: list[Any] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "log_level": 0,
                "enable.idempotence": True,
                "delivery.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._ended.wait(0.05):
            for _ in range(NUMBERS_PER_S // 20):
                number = b"%d" % self.sent
                self._producer.produce(SOURCE, number, key=number, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def stop(self) -> None:
        """No more. Raises AssertionError if any was not written."""
        self._ended.set()
        self._thread.join()
        left = self._producer.flush(PATIENCE_S)
        assert not left, f"{left} numbers are not written"
        assert not self.errors, self.errors[:3]


class Workers:
    """The processes that copy."""

    def __init__(self, servers: str, count: int, dice: random.Random, log: Path) -> None:
        self._servers = servers
        self._dice = dice
        self._log = log.open("ab")
        self._serial = count
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self.start(f"copy-{number}")

    def start(self, name: str) -> None:
        """Begin one."""
        command = [sys.executable, "-m", "tests.faults.kafka_worker", self._servers, name]
        command.append(str(self._dice.randrange(1 << 32)))
        self.processes[name] = subprocess.Popen(command, cwd=CHECKOUT, stdout=self._log, stderr=self._log)

    def kill(self) -> str:
        """One of them; it comes back, maybe as another."""
        name = self._dice.choice(sorted(self.processes))
        self._end(name)
        again = name
        if self._dice.random() < 0.25:
            again = f"copy-{self._serial}"
            self._serial += 1
        self.start(again)
        return name if again == name else f"{name}, now {again}"

    def tend(self) -> None:
        """Who was fenced begins anew."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self.start(name)

    def _end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """All."""
        for name in list(self.processes):
            self._end(name)
        self._log.close()


class Copies:
    """What a reader of committed records has found so far."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.found: Counter[int] = Counter()
        self._offsets = dict.fromkeys(range(PARTITIONS), 0)

    def read(self) -> None:
        """Up to the end, whatever that is now. Raises AssertionError if something is there twice.

        A partition to which somebody writes all the time has no end that a reader would be told of.
        """
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "log_level": 0,
                "group.id": "check",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            places = [confluent_kafka.TopicPartition(COPIES, *one) for one in self._offsets.items()]
            now = {one.partition: consumer.get_watermark_offsets(one, PATIENCE_S)[1] for one in places}
            consumer.assign(places)
            ended: set[int] = set()
            deadline = time.monotonic() + PATIENCE_S
            while len(ended) < PARTITIONS and time.monotonic() < deadline:
                messages: list[Any] = consumer.consume(1000, 0.2)
                for one in messages:
                    error = one.error()
                    if error is None:
                        self.found[int(one.value())] += 1
                        self._offsets[one.partition()] = one.offset() + 1
                        if one.offset() + 1 >= now[one.partition()]:
                            ended.add(one.partition())
                    elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        ended.add(one.partition())
            endless = {
                one.partition: (one.offset, consumer.get_watermark_offsets(one, cached=True))
                for one in consumer.position([place for place in places if place.partition not in ended])
            }
            assert not endless, f"no end in these partitions, in which it is there, and knows these ends: {endless}"
        finally:
            consumer.close()
        twice = [number for number, count in self.found.items() if count > 1]
        assert not twice, f"{len(twice)} numbers are there twice, such as {twice[:5]}"

    def read_until(self, count: int, tend: Callable[[], None]) -> None:
        """Until all numbers below `count` are there. Raises AssertionError if no more come."""
        before, deadline = -1, 0.0
        while True:
            self.read()
            if len(self.found) >= count:
                break
            if len(self.found) > before:
                before, deadline = len(self.found), time.monotonic() + PATIENCE_S
            missing = [number for number in range(count) if number not in self.found]
            assert time.monotonic() < deadline, f"{len(missing)} of {count} are missing, such as {missing[:5]}"
            tend()
            time.sleep(0.3)
        assert sorted(self.found) == list(range(count))


class Single:
    """One broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.servers = f"127.0.0.1:{broker.ports['kafka']}"
        self.brokers = [broker]

    def kill(self, dice: random.Random) -> str:
        """Kill and start it."""
        self._broker.kill9()
        time.sleep(dice.uniform(0, 0.5))
        self._broker.start_again()
        return "the broker"


class Several:
    """Three of them."""

    def __init__(self, processes: cluster.ClusterProcesses) -> None:
        self._processes = processes
        self.servers = ",".join(f"{one.host}:{one.ports['kafka']}" for one in processes.brokers.values())
        self.brokers = list(processes.brokers.values())

    def kill(self, dice: random.Random) -> str:
        """Kill one and start it."""
        number = dice.choice(sorted(self._processes.brokers))
        self._processes.kill9(number)
        time.sleep(dice.uniform(0, 3))
        self._processes.brokers[number].start_again()
        return f"broker {number}"


@contextmanager
def brokers_of(directory: Path, count: int) -> Iterator[Single | Several]:
    """So many, started."""
    with mock.patch.dict(os.environ, SETTINGS):
        if count == 1:
            with broker_process(directory / "data", doors=DOORS) as broker:
                yield Single(broker)
            return
        with cluster.cluster_processes(directory, count, relayed=False, doors=DOORS) as processes:
            processes.until_whole()
            yield Several(processes)


def make_topics(servers: str) -> None:
    """Both of them."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, num_partitions=PARTITIONS) for name in (SOURCE, COPIES)]).values():
        made.result(PATIENCE_S)


def run(rounds: int, seed: int, *, brokers: int = 1, workers: int = 2) -> None:
    """Kill `rounds` times. Raises AssertionError."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, brokers_of(Path(name), brokers) as running:
        directory = Path(name)
        make_topics(running.servers)
        source = Source(running.servers)
        copying = Workers(running.servers, workers, dice, directory / "workers.log")
        copies = Copies(running.servers)
        try:
            for number in range(rounds):
                time.sleep(dice.uniform(0.2, 4.0))
                what = dice.random()
                killed = []
                if what < 0.6:
                    killed.append(copying.kill())
                if what > 0.4:
                    killed.append(running.kill(dice))
                copying.tend()
                if (number + 1) % CHECKED_EACH == 0:
                    copies.read()
                print(f"round {number}: {' and '.join(killed)}, {len(copies.found)} of {source.sent}", flush=True)
            source.stop()
            copies.read_until(source.sent, copying.tend)
            print(f"{source.sent} numbers of group '{GROUP}' are there once each", flush=True)
        except BaseException:
            _tell(running, directory / "workers.log")
            raise
        finally:
            copying.stop()
            source.stop()


def _tell(running: Single | Several, log: Path) -> None:
    """Print what may say why it failed."""
    print(log.read_text(errors="replace")[-3000:])
    native = [f"{one.host}:{one.native_port}" for one in running.brokers]
    for line in findings(running.servers, native, GROUP, (SOURCE, COPIES), PARTITIONS):
        print(line)
    for broker in running.brokers:
        print(f"--- {broker.data_dir.name}\n{broker.log()[-3000:]}", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    run(options.rounds, options.seed, brokers=options.brokers)


if __name__ == "__main__":
    main()
