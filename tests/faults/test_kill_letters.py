"""Kill the broker while messages fail, wait for their next try and die: none that was confirmed is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.support import BrokerProcess

QUEUE, DEAD = "faults-retried", "faults-dead"
ARGUMENTS = {
    "x-retry": [20, 40], "x-retry-then": DEAD, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD,
}  # fmt: skip
ENDED = (pika.exceptions.AMQPError, OSError)


def connect(broker: BrokerProcess) -> Any:
    """A connection to the broker as it is now."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


def publish(broker: BrokerProcess, confirmed: set[int], start: int) -> None:
    """Publish numbers until the broker is gone; the last few may or may not be there."""
    with suppress(*ENDED):
        channel = connect(broker).channel()
        channel.confirm_delivery()
        for number in range(start, start + 100_000):
            channel.basic_publish("", QUEUE, b"%d" % number, pika.BasicProperties(delivery_mode=2))
            confirmed.add(number)


def fail(broker: BrokerProcess, settled: set[int]) -> None:
    """Take messages: some work, most fail, some of them for good."""
    dice = random.Random(7)

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        draw = dice.random()
        if draw < 0.2:
            settled.add(int(body))
            channel.basic_ack(method.delivery_tag)
        elif draw < 0.6:
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_reject(method.delivery_tag, requeue=False)

    with suppress(*ENDED):
        channel = connect(broker).channel()
        channel.basic_qos(prefetch_count=50)
        channel.basic_consume(QUEUE, take)
        channel.start_consuming()


def drain(broker: BrokerProcess, queue: str) -> list[int]:
    """What is in a queue, left there: the connection ends without an acknowledgement."""
    connection = connect(broker)
    channel = connection.channel()
    found = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            break
        found.append(int(body))
    connection.close()
    return found


@pytest.mark.parametrize("rounds", [2])
def test_nothing_that_fails_is_lost(broker: BrokerProcess, rounds: int) -> None:
    dice = random.Random(11)
    channel = connect(broker).channel()
    channel.queue_declare(DEAD, durable=True)
    channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)
    confirmed: set[int] = set()
    settled: set[int] = set()
    for number in range(rounds):
        threads = [
            threading.Thread(target=publish, args=(broker, confirmed, number * 100_000)),
            threading.Thread(target=fail, args=(broker, settled)),
        ]
        for thread in threads:
            thread.start()
        enough = len(confirmed) + dice.randrange(50, 300)
        until(partial(has, confirmed, enough))
        broker.kill9()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        broker.start()
        until(lambda: not missing(broker, confirmed - settled))  # some wait for their next try
    assert drain(broker, DEAD)


def has(numbers: set[int], count: int) -> bool:
    return len(numbers) >= count


def missing(broker: BrokerProcess, expected: set[int]) -> set[int]:
    waiting, dead = drain(broker, QUEUE), drain(broker, DEAD)
    assert len(set(waiting)) == len(waiting)
    return expected - set(waiting) - set(dead)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
