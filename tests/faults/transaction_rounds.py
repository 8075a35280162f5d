"""Transactions and SIGKILL: a worker takes tasks and publishes two results for each, and the broker is killed.

    python -m tests.faults.transaction_rounds --rounds 100
    python -m tests.faults.transaction_rounds --rounds 10 --seed 1234

1. Every task is acknowledged, and its results are published to two queues, in one transaction.
2. After each kill a task is either waiting and has no results, or is gone and has both. What was committed is there.
3. What comes twice is marked redelivered.
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
from tests.support import HOST, BrokerProcess, broker_process

TASKS, LEFT, RIGHT = "tasks", "left", "right"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def open_channel(broker: BrokerProcess) -> BlockingChannel:
    """A channel of a connection of its own."""
    parameters = pika.ConnectionParameters(HOST, broker.amqp_port, heartbeat=0)
    return pika.BlockingConnection(parameters).channel()


def work(broker: BrokerProcess, committed: set[int], results: int) -> None:
    """Do tasks until the broker is gone; `results` for each of the two queues."""
    try:
        channel = open_channel(broker)
        channel.tx_select()
        while True:
            method, _, body = channel.basic_get(TASKS)
            if method is None:
                return
            number = int(body)
            for name in (LEFT, RIGHT):
                for _ in range(results):
                    channel.basic_publish("", name, body, PERSISTENT)
            channel.basic_ack(method.delivery_tag)
            undo = random.random() < 0.1
            if undo:
                channel.tx_rollback()
                channel.basic_nack(method.delivery_tag)
            channel.tx_commit()
            if not undo:
                committed.add(number)
    except (AMQPError, OSError):
        return


def contents(channel: BlockingChannel, name: str) -> dict[int, list[bool]]:
    """What waits in a queue: the redelivered flags of each number. Everything stays there."""
    found: dict[int, list[bool]] = {}
    while True:
        method, _, body = channel.basic_get(name)
        if method is None:
            return found
        found.setdefault(int(body), []).append(method.redelivered)


def check(broker: BrokerProcess, committed: set[int], results: int, count: int) -> int:
    """Look at everything; how many tasks are done. Raises AssertionError."""
    channel = open_channel(broker)
    tasks, left, right = (contents(channel, name) for name in (TASKS, LEFT, RIGHT))
    channel.connection.close()
    for number in range(count):
        there = [number in tasks, number not in left, number not in right]
        assert all(there) or not any(there), f"task {number}: {there} is a part of a transaction"
        assert number not in committed or number not in tasks, f"task {number} was committed and is there again"
    for found in (left, right):
        for number, flags in found.items():
            assert len(flags) >= results, f"task {number} has only {len(flags)} results of {results}"
            assert len(flags) == results or all(flags), f"results of {number} came twice unmarked"
    return count - len(tasks)


def run(rounds: int, seed: int, *, tasks: int = 3000, workers: int = 3) -> None:
    """Kill a broker `rounds` times; a new one begins when few of its tasks are left. Raises AssertionError."""
    chance, first = random.Random(seed), 0
    while first < rounds:
        first = _with_one_broker(chance, range(first, rounds), tasks, workers)


def _with_one_broker(chance: random.Random, rounds: range, tasks: int, workers: int) -> int:
    """The number of the round that comes next."""
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data")) as broker:
        channel = open_channel(broker)
        for name in (TASKS, LEFT, RIGHT):
            channel.queue_declare(name, durable=True)
        channel.tx_select()
        for number in range(tasks):
            channel.basic_publish("", TASKS, b"%d" % number, PERSISTENT)
        channel.tx_commit()
        committed: set[int] = set()
        results = chance.choice([1, 3])
        for round_number in rounds:
            threads = [threading.Thread(target=work, args=(broker, committed, results)) for _ in range(workers)]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.05, 0.6))
            broker.kill9()
            for thread in threads:
                thread.join()
            broker.start()
            done = check(broker, committed, results, tasks)
            print(f"round {round_number}: {len(committed)} committed, {done} done", flush=True)
            if done > tasks * 4 // 5:
                return round_number + 1
    return rounds.stop


if __name__ == "__main__":
    main(run, rounds=20)
