"""Transactions in a cluster and SIGKILL: workers at all brokers take tasks and publish results of each to two queues.

    python -m tests.faults.cluster_transaction_rounds --rounds 20
    python -m tests.faults.cluster_transaction_rounds --rounds 5 --seed 1234

1. Each of the three queues is led by another broker. Every task is acknowledged, and its results are published, in one
   transaction.
2. A broker is killed, any of them: it leads a queue, and workers' commits are under way there. The others go on.
3. When that is over, as a broker that has survived sees it, a task is either waiting and has no results, or is gone and
   has both. What was committed is there. A task may have been done twice: then it has more results.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.faults.rounds_command import main
from tests.faults.transaction_rounds import LEFT, PERSISTENT, RIGHT, TASKS
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import ClusterProcesses, cluster_processes

_UNDONE_S = 1.0
_SETTLED_S = 30.0
_IDLE_S = 0.6


def open_channel(broker: BrokerProcess) -> BlockingChannel:
    """A channel of a connection of its own."""
    parameters = pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0)
    return pika.BlockingConnection(parameters).channel()


class Workers:
    """They do tasks until they are told to stop, at all brokers, and connect again when they have to."""

    def __init__(self, cluster: ClusterProcesses, committed: set[int], results: int, seed: int) -> None:
        self._committed = committed
        self._results = results
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(broker, random.Random(seed + number)))
            for number, broker in cluster.brokers.items()
            for _ in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when nobody does anything any more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, broker: BrokerProcess, chance: random.Random) -> None:
        while not self._over.is_set():
            try:
                channel = open_channel(broker)
                channel.tx_select()
                self._work(channel, chance)
                channel.connection.close()
            except (AMQPError, OSError):
                self._over.wait(0.1)

    def _work(self, channel: BlockingChannel, chance: random.Random) -> None:
        channel.basic_qos(prefetch_count=chance.choice([1, 10]))
        for method, _, body in channel.consume(TASKS, inactivity_timeout=_UNDONE_S):
            if self._over.is_set():
                return
            if method is None:
                continue
            for name in (LEFT, RIGHT):
                for _ in range(self._results):
                    channel.basic_publish("", name, body, PERSISTENT)
            channel.basic_ack(method.delivery_tag)
            undo = chance.random() < 0.1
            if undo:
                channel.tx_rollback()
                channel.basic_nack(method.delivery_tag)
            channel.tx_commit()
            if not undo:
                self._committed.add(int(body))


def contents(channel: BlockingChannel, name: str) -> dict[int, int]:
    """How often each number waits in a queue. Everything stays there."""
    found: dict[int, int] = {}
    for method, _, body in channel.consume(name, inactivity_timeout=_IDLE_S):
        if method is None:
            break
        found[int(body)] = found.get(int(body), 0) + 1
    channel.cancel()
    return found


def faults_of(channel: BlockingChannel, committed: set[int], results: int, count: int) -> tuple[list[str], int]:
    """What is not as it should be, and how many tasks are done."""
    tasks, left, right = (contents(channel, name) for name in (TASKS, LEFT, RIGHT))
    faults = []
    for number in range(count):
        there = [number in tasks, number not in left, number not in right]
        if any(there) and not all(there):
            faults.append(f"task {number}: {there} is a part of a transaction")
        if number in committed and number in tasks:
            faults.append(f"task {number} was committed and is there again")
        for found in (left, right):
            if found.get(number, results) < results:
                faults.append(f"task {number} has only {found[number]} results of {results}")
    return faults, count - len(tasks)


def check(broker: BrokerProcess, committed: set[int], results: int, count: int) -> int:
    """Look at everything, until a broker that is gone is not waited for any more; how many tasks are done. Raises
    AssertionError.
    """
    deadline = time.monotonic() + _SETTLED_S
    while True:
        try:
            channel = open_channel(broker)
            faults, done = faults_of(channel, committed, results, count)
            channel.connection.close()
        except AMQPError as error:
            faults, done = [repr(error)], 0
        if not faults:
            return done
        assert time.monotonic() < deadline, f"{len(faults)} faults: {faults[:10]}"
        time.sleep(0.5)


def run(rounds: int, seed: int, *, tasks: int = 3000) -> None:
    """Kill brokers `rounds` times. Raises AssertionError."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        cluster_processes(Path(directory), relayed=False) as cluster,
    ):
        cluster.until_whole()
        for number, name in zip(cluster.brokers, (TASKS, LEFT, RIGHT), strict=True):
            open_channel(cluster.brokers[number]).queue_declare(name, durable=True)
        channel = open_channel(cluster.brokers[2])
        channel.tx_select()
        for number in range(tasks):
            channel.basic_publish("", TASKS, b"%d" % number, PERSISTENT)
        channel.tx_commit()
        committed: set[int] = set()
        results = chance.choice([1, 3])
        for round_number in range(rounds):
            before = len(committed)
            workers = Workers(cluster, committed, results, chance.randrange(1 << 32))
            try:
                while len(committed) < before + 20:
                    time.sleep(0.05)
                time.sleep(chance.uniform(0, 0.3))
                victim = chance.choice(list(cluster.brokers))
                cluster.kill9(victim)
                time.sleep(chance.uniform(0, 6))
            finally:
                workers.stop()
            survivor = chance.choice([number for number in cluster.brokers if number != victim])
            done = check(cluster.brokers[survivor], committed, results, tasks)
            print(
                f"round {round_number}: broker {victim} was killed, {len(committed)} committed, {done} done", flush=True
            )
            if done > tasks * 4 // 5 or round_number == rounds - 1:
                break
            cluster.restart(victim)
            cluster.until_whole()


if __name__ == "__main__":
    main(run, rounds=10)
