"""Kill the broker with SIGKILL at random moments under load and check what it promised.

A `World` keeps, over any number of rounds on one data directory, what clients were told. Each round publishes and
consumes on all doors, kills the broker, starts it again, reads everything without acknowledging it, and checks:

1. every message whose publisher was told that it is safe, and which nobody settled, is in its queue, once, unchanged;
2. a message that was settled either is gone for ever or comes back marked as redelivered;
3. nothing is there that was not published, nothing returns that was gone, and the order is that of publishing;
4. records of a topic that were confirmed have the offsets and values the producer was told.

What happens is drawn from a seed, so a failing round can be tried again; the moments at which threads and the kernel
run cannot.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from core_log.record_batch import BatchBuilder, decode_runs, validate
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError
from tests.faults.wire_clients import (
    AmqpConsumer,
    AmqpPublisher,
    MqttPublisher,
    Stream,
    amqp,
    declare,
    read_queue,
)
from tests.support import HOST, BrokerProcess

TOPIC = "fault-records"
MQTT_TOPIC = "faults/mqtt"
NO_HEADERS = b"\0"
"""The header block of a record without headers."""


class World:
    """What the clients of one broker know; see the module."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.seed = seed
        self.dice = random.Random(seed)
        over_amqp, over_mqtt = Stream("faults-amqp"), Stream("faults-mqtt")
        self.queues = [over_amqp, over_mqtt, over_mqtt.copy("faults-mqtt-copy")]
        self.records = Stream("faults-native")
        self.offsets: dict[int, bytes] = {}
        """Value by offset, of confirmed records."""
        connection = amqp(broker.amqp_port)
        declare(connection, over_amqp.queue)
        for stream in self.queues[1:]:
            declare(connection, stream.queue, MQTT_TOPIC.replace("/", "."))
        connection.sock.close()
        with self.native() as client:
            client.create_topic(TOPIC)

    def native(self) -> BlockingClient:
        """A client of the native door."""
        return BlockingClient(f"{HOST}:{self.broker.native_port}", timeout_s=30)

    def confirmations(self) -> int:
        """Messages and records confirmed so far."""
        return sum(len(stream.confirmed) for stream in [*self.queues[:2], self.records])

    def sizes(self) -> Iterator[int]:
        """Burst sizes without end, from a seed of their own as they are used in another thread."""
        dice = random.Random(self.dice.random())
        while True:
            yield dice.choice((1, 1, 2, 10, 50, 200))

    def share(self) -> Callable[[], float]:
        """Draws from 0 to 1, from a seed of its own."""
        return random.Random(self.dice.random()).random

    def produce(self, sizes: Iterator[int]) -> None:
        """Produce record batches with acks=all until the broker is gone."""
        try:
            with self.native() as client:
                for size in sizes:
                    values = [self.records.body(number) for number in self.records.take(size)]
                    builder = BatchBuilder(0, 0, int(time.time() * 1000))
                    builder.add_run(0, None, values, NO_HEADERS)
                    base = client.produce(TOPIC, 0, builder.build())
                    assert base is not None
                    self.offsets.update(enumerate(values, base))
                    self.records.note({self.records.number(value) for value in values})
        except MillraceError:
            pass

    def round(self) -> None:
        """Load, kill, start, check. Raises AssertionError with the seed in it."""
        threads = self.load()
        self.wait_for(self.confirmations() + self.dice.randrange(3000))
        time.sleep(self.dice.uniform(0, 0.01))  # the kill falls between confirmations as well as on them
        self.broker.kill9()
        join(threads)
        if self.dice.random() < 0.3:
            self.killed_start()
        self.broker.start()
        self.check()

    def load(self) -> list[threading.Thread]:
        """Begin to publish and consume on all doors; the threads end with the broker."""
        broker = self.broker
        consumers = [AmqpConsumer(broker.amqp_port, stream.queue, prefetch=300) for stream in self.queues]
        amqp_publisher = AmqpPublisher(broker.amqp_port, self.queues[0])
        mqtt_publisher = MqttPublisher(broker.mqtt_port, self.queues[1], MQTT_TOPIC)
        threads = [
            threading.Thread(target=amqp_publisher.run, args=(self.sizes(),)),
            threading.Thread(target=mqtt_publisher.run, args=(self.sizes(),)),
            threading.Thread(target=self.produce, args=(self.sizes(),)),
        ]
        threads += [
            threading.Thread(target=consumer.run, args=(stream, self.share()))
            for consumer, stream in zip(consumers, self.queues)
        ]
        for thread in threads:
            thread.start()
        return threads

    def wait_for(self, confirmations: int, timeout_s: float = 60) -> None:
        """Until so many are confirmed in all; a look now and then is enough."""
        deadline = time.monotonic() + timeout_s
        while self.confirmations() < confirmations:
            assert self.broker.running, f"the broker died by itself\n{self.broker.log()[-4000:]}"
            assert time.monotonic() < deadline, f"only {self.confirmations()} confirmations of {confirmations}"
            time.sleep(0.001)

    def killed_start(self) -> None:
        """A start that is killed as well, before or after it is ready."""
        timer = threading.Timer(self.dice.uniform(0.05, 0.4), self.broker.kill9)
        timer.start()
        try:
            self.broker.start()
        except RuntimeError:
            pass
        timer.join()

    def check(self) -> None:
        """See the module's list."""
        self.queues[2].published = self.queues[1].published
        for stream in self.queues:
            self.check_queue(stream)
        self.check_records()

    def check_queue(self, stream: Stream) -> None:
        """Read the whole queue, acknowledge nothing, compare."""
        where = f"{stream.queue}, seed {self.seed}"
        found = read_queue(self.broker, stream.queue)
        numbers = [stream.number(body) for body, _ in found]
        there = set(numbers)
        assert len(there) == len(numbers), f"{where}: {len(numbers) - len(there)} messages twice"
        assert numbers == sorted(numbers), f"{where}: out of order"
        fresh = set(range(stream.checked, stream.published))
        missing = (stream.present | (stream.confirmed & fresh)) - stream.settled - there
        assert not missing, f"{where}: {len(missing)} lost of those confirmed, such as {sorted(missing)[:5]}"
        returned = there - stream.present - fresh
        assert not returned, f"{where}: {len(returned)} came back after they were gone: {sorted(returned)[:5]}"
        unmarked = {number for number, (_, marked) in zip(numbers, found) if not marked} & stream.settled
        assert not unmarked, f"{where}: {len(unmarked)} settled ones came back unmarked: {sorted(unmarked)[:5]}"
        stream.present, stream.checked = there, stream.published
        stream.settled.clear()

    def check_records(self) -> None:
        """Read the topic from its start."""
        where = f"{TOPIC}, seed {self.seed}"
        found: dict[int, bytes] = {}
        with self.native() as client:
            end = client.list_offsets(TOPIC, 0, "latest")
            assert end is not None
            position = 0
            while position < end:
                for batch in client.fetch(TOPIC, 0, position).batches:
                    validate(batch)
                    for run in decode_runs(batch):
                        for offset, value in enumerate(run.values, run.first_offset):
                            assert value is not None
                            found[offset] = bytes(value)
                position = max(found) + 1
        assert sorted(found) == list(range(end)), f"{where}: offsets are not dense"
        wrong = [offset for offset, value in self.offsets.items() if found.get(offset) != value]
        assert not wrong, f"{where}: {len(wrong)} confirmed records are not as confirmed, offsets {wrong[:5]}"
        numbers = [self.records.number(value) for value in found.values()]
        assert numbers == sorted(set(numbers)), f"{where}: records twice or out of order"


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait for clients of a broker that is gone."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a client did not notice that the broker is gone"


def check_logs(data_dir: Path) -> int:
    """Every log file of a stopped broker is whole batches with correct checksums; how many batches there are."""
    count = 0
    for path in sorted(data_dir.rglob("*.log")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            assert end <= len(data), f"{path.relative_to(data_dir)}: cut at {position} of {len(data)}"
            validate(data[position:end])
            position, count = end, count + 1
    assert count, "no log files"
    return count
