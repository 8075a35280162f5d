"""Kill the broker with SIGKILL while workers share a view of a topic, and check what it promised.

Each round publishes to the topic and works on the view, kills the broker, starts it again, takes everything from the
view without acknowledging it, and checks:

1. every record whose publisher was told that it is safe, and which no worker has acknowledged, is there, once;
2. one that was acknowledged is gone for ever, or comes again marked as redelivered, as does one that was given out;
3. the topic has every record, once, whatever became of it in the view.

More rounds: `python -m tests.faults.view_rounds --rounds 100`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from core_log.record_batch import iterate_records
from protocols.native.clients.blocking import BlockingClient
from tests.support import HOST, BrokerProcess, broker_process

TOPIC, VIEW = "view-faults", "view-faults.q"
PARTITIONS = 3
WORKERS = 4


class ViewWorld:
    """What the clients of one broker know; see the module."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.dice = random.Random(seed)
        self.published: set[bytes] = set()
        """Perhaps."""
        self.confirmed: set[bytes] = set()
        self.given_out: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.round_number = 0
        with BlockingClient(f"{HOST}:{broker.native_port}", timeout_s=30) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
        with self.connect() as connection:
            arguments = {"x-queue-type": "view", "x-view-topic": TOPIC, "x-delivery-limit": -1}
            connection.channel().queue_declare(VIEW, durable=True, arguments=arguments)

    def connect(self) -> pika.BlockingConnection:
        """A connection of pika's."""
        return pika.BlockingConnection(pika.ConnectionParameters(HOST, self.broker.amqp_port, heartbeat=0))

    def round(self) -> None:
        """Publish and work, kill, start, check."""
        self.round_number += 1
        seeds = [self.dice.random() for _ in range(WORKERS + 1)]
        threads = [threading.Thread(target=self._work, args=(seed,)) for seed in seeds[1:]]
        threads.append(threading.Thread(target=self._publish, args=(seeds[0],)))
        for one in threads:
            one.start()
        time.sleep(self.dice.uniform(0.2, 1.2))
        self.broker.kill9()
        for one in threads:
            one.join(30)
        self.broker.start()
        self.check()

    def _publish(self, seed: float) -> None:
        dice = random.Random(seed)
        with suppress(AMQPError, OSError):
            channel = self.connect().channel()
            channel.confirm_delivery()
            for number in range(100_000):
                body = b"%d-%d" % (self.round_number, number)
                properties = pika.BasicProperties(headers={"x-partition-key": str(dice.random())}, delivery_mode=2)
                self.published.add(body)
                channel.basic_publish("", VIEW, body, properties)
                self.confirmed.add(body)

    def _work(self, seed: float) -> None:
        dice = random.Random(seed)
        with suppress(AMQPError, OSError):
            channel = self.connect().channel()
            channel.basic_qos(prefetch_count=dice.choice((1, 5, 50)))
            for method, _, body in channel.consume(VIEW):
                self.given_out.add(body)
                fate = dice.random()
                if fate < 0.6:
                    self.acknowledged.add(body)
                    channel.basic_ack(method.delivery_tag)
                elif fate < 0.8:
                    channel.basic_nack(method.delivery_tag)

    def check(self) -> None:
        """Look at everything that is there."""
        with self.connect() as connection:
            channel = connection.channel()
            found: Counter[bytes] = Counter()
            while True:
                method, _, body = channel.basic_get(VIEW)
                if method is None:
                    break
                found[body] += 1
                assert body in self.published
                assert method.redelivered or body not in self.given_out, f"{body!r} was given out before"
        assert not [body for body, count in found.items() if count > 1], "twice"
        missing = self.confirmed - self.acknowledged - set(found)
        assert not missing, f"lost: {sorted(missing)[:10]}"
        assert not self.gone & set(found), "it was gone"
        self.gone |= self.acknowledged - set(found)
        self.given_out |= set(found)
        records = Counter(self._records())
        assert not self.confirmed - set(records), "the topic has lost records"
        assert max(records.values(), default=1) == 1

    def _records(self) -> list[bytes]:
        bodies: list[bytes] = []
        with BlockingClient(f"{HOST}:{self.broker.native_port}", timeout_s=30) as client:
            for partition in range(PARTITIONS):
                offset = 0
                while batches := client.fetch(TOPIC, partition, offset, max_wait_ms=0).batches:
                    for batch in batches:
                        for record in iterate_records(batch):
                            bodies.append(bytes(record.value or b""))
                            offset = record.offset + 1
        return bodies


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory) / "data") as broker:
        world = ViewWorld(broker, options.seed)
        for number in range(options.rounds):
            world.round()
            counts = len(world.confirmed), len(world.acknowledged), len(world.gone)
            print(f"round {number + 1}: %d confirmed, %d acknowledged, %d gone for ever" % counts)


if __name__ == "__main__":
    main()
