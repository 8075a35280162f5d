"""The leader of a queue is killed under publishers of other brokers: none of them is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pika

from tests.support.broker_process import BrokerProcess
from tests.support.cluster import cluster_processes

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LEADER = 2


def connection(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.ports["amqp"], heartbeat=0))


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, each when the last one was confirmed."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        super().__init__()
        self.prefix = name
        self.confirmed = 0
        self.error: Exception | None = None
        self.over = threading.Event()
        self._broker = broker

    def run(self) -> None:
        """A nack raises."""
        try:
            with connection(self._broker) as there:
                channel = there.channel()
                channel.confirm_delivery()
                while not self.over.is_set():
                    channel.basic_publish("", "q", f"{self.prefix}-{self.confirmed}".encode(), PERSISTENT)
                    self.confirmed += 1
        except Exception as error:
            self.error = error


def wait(condition: Callable[[], object], publishers: list[Publisher]) -> None:
    over = threading.Event()
    for _ in range(600):
        assert all(publisher.error is None for publisher in publishers), publishers[0].error or publishers[1].error
        if condition():
            return
        over.wait(0.05)
    raise AssertionError("nothing is confirmed any more")


def drained(broker: BrokerProcess) -> list[str]:
    """All that is in the queue; whoever leads it may need a moment to begin."""
    bodies: list[str] = []
    for _ in range(50):
        try:
            with connection(broker) as there:
                channel = there.channel()
                while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
                    bodies.append(got[2].decode())
                return bodies
        except pika.exceptions.ConnectionClosedByBroker:
            threading.Event().wait(0.1)
    raise AssertionError("the queue does not become ready")


def test_no_publisher_is_refused_when_a_leader_is_killed(tmp_path: Path) -> None:
    with cluster_processes(tmp_path, relayed=False) as cluster:
        cluster.until_whole()
        with connection(cluster.brokers[LEADER]) as there:
            there.channel().queue_declare("q", durable=True)
        publishers = [Publisher(cluster.brokers[number], f"p{number}") for number in (1, 3)]
        for publisher in publishers:
            publisher.start()
        try:
            wait(lambda: all(publisher.confirmed > 100 for publisher in publishers), publishers)
            cluster.kill9(LEADER)
            before = [publisher.confirmed for publisher in publishers]
            wait(lambda: all(one.confirmed > there + 100 for one, there in zip(publishers, before)), publishers)
        finally:
            for publisher in publishers:
                publisher.over.set()
            for publisher in publishers:
                publisher.join()
        bodies = drained(cluster.brokers[1])
        for publisher in publishers:
            own = [body for body in bodies if body.startswith(publisher.prefix)]
            once = list(dict.fromkeys(own))
            assert once == [f"{publisher.prefix}-{number}" for number in range(len(once))], "in their order"
            assert len(once) >= publisher.confirmed, "nothing is lost"
            assert len(own) - len(once) <= 1, "only what was under way may be there twice"
