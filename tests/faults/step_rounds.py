"""Steps of writers that take effect once, in a cluster that is shaken: each row is once in each queue, stream, topic.

    python -m tests.faults.step_rounds --rounds 20
    python -m tests.faults.step_rounds --rounds 5 --seed 1234

1. Three queues, each led by another broker, a stream and a topic of three partitions are bound to one exchange; every
   row goes to the topic, the stream, and one or all of the queues.
2. Writers publish steps through any broker, two attempts of some at the same time, each attempt with the rows in
   another order. What fails is tried again, also what was answered, now and then.
3. A broker is killed, or stands still for a while (SIGSTOP), any of them, also while another one is coming back. All
   steps are brought to an end then.
4. When all are back every row is exactly once wherever it belongs.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pika.exceptions import AMQPError

from core_log.record_batch import BatchBuilder, iterate_records
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError
from tests.faults.cluster_transaction_rounds import contents, open_channel
from tests.faults.rounds_command import main
from tests.support.cluster import ClusterProcesses, cluster_processes

QUEUES = ("left", "middle", "right")
STREAM, TOPIC, EXCHANGE = "brook", "rows", "steps"
PARTITIONS = 3
_SETTLED_S = 30.0
_ATTEMPT_S = 20.0
_LARGE = 20_000


def step_batches(rows: list[int], chance: random.Random, filling: int) -> list[bytes]:
    """Rows as record batches, in any order."""
    order = rows[:]
    chance.shuffle(order)
    batches = []
    for start in range(0, len(order), 50):
        builder = BatchBuilder(0, -1, 1000)
        for offset, row in enumerate(order[start : start + 50]):
            builder.add(offset, b"%b.%d" % (key_of(row).encode(), row % 10), b"%d%b" % (row, b" " * filling), [])
        batches.append(builder.build())
    return batches


def key_of(row: int) -> str:
    """Which queues it goes to."""
    return (*QUEUES, "all")[row % 4]


class Writers:
    """They publish steps, `count` at most each, until they are told to stop; then the last of each is brought home."""

    def __init__(self, cluster: ClusterProcesses, published: set[int], seed: int, round_number: int) -> None:
        self._cluster = cluster
        self._published = published
        self._over = threading.Event()
        self.errors: Counter[str] = Counter()
        self.again = 0
        """Attempts that were told that it was done."""
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number, round_number, random.Random(seed + number)))
            for number in range(4)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when all that was begun has taken effect."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, round_number: int, chance: random.Random) -> None:
        first = (round_number * 100 + number) * 100_000
        for step in range(100_000):
            if self._over.is_set():
                return
            is_large = chance.random() < 0.03
            rows = list(range(first, first + (300 if is_large else chance.randrange(1, 8))))
            first += len(rows)
            attempts = [
                threading.Thread(
                    target=self._attempt,
                    args=(f"w{number}", round_number * 100_000 + step, rows, random.Random(chance.random()), is_large),
                )
                for _ in range(chance.choice([1, 1, 2]))
            ]
            for attempt in attempts:
                attempt.start()
            for attempt in attempts:
                attempt.join()
            with self._lock:
                self._published.update(rows)

    def _attempt(self, writer: str, step: int, rows: list[int], chance: random.Random, is_large: bool) -> None:
        """Until it is done, and sometimes once more."""
        batches = step_batches(rows, chance, _LARGE if is_large else 0)
        left = chance.choice([1, 1, 1, 2])
        while left:
            server = chance.choice(self._cluster.servers)
            try:
                with BlockingClient(server, timeout_s=_ATTEMPT_S) as client:
                    said = {"name": EXCHANGE, "writer": writer, "number": step, "batches": batches}
                    found = client.look("exchanges.publish_once", **said)
                assert found in (-1, len(rows)), found
                self.again += found == -1
                left -= 1
            except MillraceError as error:
                self.errors[type(error).__name__ + str(error)[:60]] += 1
                time.sleep(0.1)


def records(cluster: ClusterProcesses, topic: str, partitions: int) -> Counter[int]:
    """How often each row is in a topic."""
    found: Counter[int] = Counter()
    with BlockingClient(cluster.servers) as client:
        for partition in range(partitions):
            offset = 0
            while True:
                fetched = client.fetch(topic, partition, offset, 8 << 20, max_wait_ms=0, min_bytes=0)
                for batch in fetched.batches:
                    for record in iterate_records(batch):
                        if record.offset >= offset:
                            found[int(record.value or b"")] += 1
                            offset = record.offset + 1
                if not fetched.batches or offset >= fetched.high_watermark:
                    break
    return found


def faults_of(cluster: ClusterProcesses, published: set[int]) -> list[str]:
    """What is not as it should be."""
    found: dict[str, Counter[int]] = {
        TOPIC: records(cluster, TOPIC, PARTITIONS),
        STREAM: records(cluster, STREAM, 1),
    }
    channel = open_channel(cluster.brokers[1])
    for name in QUEUES:
        found[name] = Counter(contents(channel, name))
    channel.connection.close()
    faults = []
    for name, rows in found.items():
        wanted = {row for row in published if name not in QUEUES or key_of(row) in (name, "all")}
        faults += [f"{name}: row {row} is there {count} times" for row, count in rows.items() if count > 1]
        faults += [f"{name}: row {row} is missing" for row in sorted(wanted - rows.keys())]
        faults += [f"{name}: row {row} does not belong there" for row in sorted(rows.keys() - wanted)]
    return faults


def check(cluster: ClusterProcesses, published: set[int]) -> None:
    """Look at everything until it is as it should be. Raises AssertionError."""
    deadline = time.monotonic() + _SETTLED_S
    while True:
        try:
            faults = faults_of(cluster, published)
        except (AMQPError, MillraceError) as error:
            faults = [repr(error)]
        if not faults:
            return
        # A queue whose leader changes while it is looked at gives all of it once more.
        assert time.monotonic() < deadline, f"{len(faults)} faults: {faults[:10]}"
        time.sleep(0.5)


def redone(cluster: ClusterProcesses) -> int:
    """How many steps were decided by a broker that had no time to let them take effect."""
    return sum(broker.log_path.read_text().count("is applied again") for broker in cluster.brokers.values())


def declare(cluster: ClusterProcesses) -> None:
    """What the writers publish to."""
    channel = open_channel(cluster.brokers[1])
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(STREAM, EXCHANGE, "#")
    for number, name in zip(cluster.brokers, QUEUES, strict=True):
        there = open_channel(cluster.brokers[number])
        there.queue_declare(name, durable=True)
        there.queue_bind(name, EXCHANGE, f"{name}.#")
        there.queue_bind(name, EXCHANGE, "all.#")
        there.connection.close()
    channel.connection.close()
    with BlockingClient(cluster.servers) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        client.bind_topic(TOPIC, EXCHANGE, "#")


def shake(cluster: ClusterProcesses, victim: int, chance: random.Random) -> None:
    """Kill a broker and start it again, or have it stand still for longer than its lease, maybe."""
    if chance.random() < 0.25:
        cluster.pause(victim)
        time.sleep(chance.uniform(0, 7))
        cluster.resume(victim)
        return
    cluster.kill9(victim)
    time.sleep(chance.uniform(0, 5))
    cluster.restart(victim)


def run(rounds: int, seed: int, *, steps: int = 30) -> None:
    """Kill or pause brokers `rounds` times. Raises AssertionError."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        cluster_processes(Path(directory), relayed=False) as cluster,
    ):
        cluster.until_whole()
        declare(cluster)
        cluster.until_whole()
        published: set[int] = set()
        for round_number in range(rounds):
            before, began = len(published), time.monotonic()
            writers = Writers(cluster, published, chance.randrange(1 << 32), round_number)
            victims = []
            try:
                while len(published) < before + steps:
                    time.sleep(0.02)
                for _ in range(chance.choice([1, 1, 2])):
                    time.sleep(chance.uniform(0, 0.5))
                    victims.append(chance.choice(list(cluster.brokers)))
                    shake(cluster, victims[-1], chance)
                    if chance.random() < 0.5:
                        cluster.until_whole()
            finally:
                writers.stop()
            cluster.until_whole()
            check(cluster, published)
            print(
                f"round {round_number}: {victims} were shaken, {len(published)} rows, {writers.again} attempts came "
                f"late, {sum(writers.errors.values())} failed, {redone(cluster)} were brought to an end by others so "
                f"far, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for text, count in writers.errors.most_common(4):
                print(f"  {count} x {text}")


if __name__ == "__main__":
    main(run, rounds=10)
