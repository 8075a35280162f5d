"""Shake a cluster of real processes under load, round after round, and check what it promised.

    python -m tests.faults.cluster_rounds [--rounds N] [--seed S] [--only FAULT] [--etcd-members 3] [--directory DIR]

A round has clients publish and consume on all doors, does something to the cluster, puts it right again, waits until
every partition has all replicas in its ISR, and checks:

1. every record and message that was confirmed is there, unchanged, records at the offsets that producers were told;
2. the order of each key is that of publishing, but for messages that are marked as redelivered;
3. what came twice is marked as redelivered, or was published again because its confirmation did not come;
4. what was settled in a transaction that was committed never comes again;
5. what a reader of a topic was given stays what it is, and where its group stands is where it was told;
6. queues are empty, and all brokers say the same of the cluster.

At the end all brokers stop, and their replicas of the topic must be equal byte for byte.

What happens is drawn from a seed; the moments at which processes run cannot be.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from core_log.record_batch import validate
from protocols.native.clients.blocking import BlockingClient
from routing.topics.reserved_names import OFFSETS, QUEUES
from tests.faults.cluster_clients import (
    PIKA_ERRORS,
    AmqpConsumer,
    AmqpPublisher,
    Committed,
    LaterPublisher,
    MqttPublisher,
    MqttSubscriber,
    NativeProducer,
    NativeReader,
    TransactionConsumer,
    Worker,
    pika_connection,
)
from tests.faults.cluster_faults import Faults
from tests.faults.cluster_ledger import Ledger, check_order, check_received
from tests.faults.kept import COMPACTED
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import ClusterProcesses, cluster_processes
from tests.support.power import PoweredDisk, powered_disk

PARTITIONS = 3
RECORDS, OVER_AMQP, OVER_MQTT, TRANSACTED = "rounds-records", "rounds-amqp", "rounds-mqtt", "rounds-tx"
LATER = "rounds-later"
ARGUMENTS = {LATER: {"x-max-priority": 3, "x-delayed": True}}
MODULE = "tests.faults.faulty_broker"
"""Wraps the brokers, so that a signal fills the disk of one."""
WHOLE_S = 60.0
DRAINED_S = 60.0
SETTLED_S = 10.0


class ClusterWorld:
    """What the clients of a cluster know; see the module. `doors` are those that are used."""

    def __init__(
        self, cluster: ClusterProcesses, seed: int, doors: tuple[str, ...], disk: PoweredDisk | None = None
    ) -> None:
        self.cluster = cluster
        self.seed = seed
        self.dice = random.Random(seed)
        self.doors = doors
        self.verbose = False
        """Say as well what the clients took for errors."""
        self.records, self.amqp, self.mqtt = Ledger(RECORDS), Ledger(OVER_AMQP), Ledger(OVER_MQTT)
        self.transacted, self.later = Ledger(TRANSACTED), Ledger(LATER)
        self.offsets: dict[tuple[int, int], bytes] = {}
        """Confirmed records, by partition and offset."""
        self.seen: dict[tuple[int, int], bytes] = {}
        """Records that a reader was given."""
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.committed = {partition: Committed() for partition in range(PARTITIONS)}
        """Where the group of the readers stands."""
        self.faults = Faults(cluster, self.dice, disk)

    @property
    def ledgers(self) -> list[Ledger]:
        """Those that are used."""
        by_door = {"native": self.records, "amqp": self.amqp, "mqtt": self.mqtt, "tx": self.transacted}
        by_door["later"] = self.later
        return [by_door[door] for door in self.doors]

    @property
    def queues(self) -> list[Ledger]:
        """Those of them that are queues."""
        return [ledger for ledger in self.ledgers if ledger is not self.records]

    def prepare(self) -> None:
        """Make the topic and the queues."""
        self.until_whole()
        if "native" in self.doors:
            with BlockingClient(self.cluster.server(1), timeout_s=30) as client:
                client.create_topic(RECORDS, partitions=PARTITIONS)
        if self.queues:
            connection = pika_connection(self.cluster.brokers[2])
            channel = connection.channel()
            for ledger in self.queues:
                channel.queue_declare(ledger.name, durable=True, arguments=ARGUMENTS.get(ledger.name))
            if "mqtt" in self.doors:
                channel.queue_bind(OVER_MQTT, "amq.topic", OVER_MQTT)
            connection.close()
        self.until_whole()

    def until_whole(self) -> None:
        """Everything that is used is replicated again."""
        used = ({RECORDS, OFFSETS} if "native" in self.doors else set()) | ({QUEUES} if self.queues else set())
        self.cluster.until_whole(timeout_s=WHOLE_S, topics=used)

    # --- rounds

    def round(self, only: str | None = None, *, hold_s: float | None = None) -> str:
        """Load, fault, mend, check; what was done and how it went, in a line. Raises AssertionError with the seed."""
        name = only or self.dice.choice(list(self.faults.named))
        hold_s = self.dice.uniform(1, 7) if hold_s is None else hold_s
        before = {ledger.name: len(ledger.confirmed) for ledger in self.ledgers}
        for ledger in self.ledgers:
            ledger.longest_gap_s, ledger.confirmed_at = 0.0, time.monotonic()
        workers = self._workers()
        for worker in workers:
            worker.start()
        try:
            time.sleep(self.dice.uniform(0.5, 1.5))
            fault = self.faults.named[name]()
            next(fault)
            time.sleep(hold_s)
            next(fault, None)
            time.sleep(self.dice.uniform(0, 1))
            self.until_whole()
            self._confirmed_again(workers)
            self.cluster.until_agreed(timeout_s=WHOLE_S)
            self._end(workers)
            self.until_empty()
            self.check(workers)
        except BaseException as error:
            error.add_note(
                f"seed {self.seed}, after {name} for {hold_s:.1f} s; data and logs in {self.cluster.directory}"
            )
            for worker in workers:
                worker.stop.set()
                error.add_note(f"{type(worker).__name__} of {worker.ledger.name}: {worker.errors[-5:]}")
            raise
        done = ", ".join(
            f"{ledger.name} {len(ledger.confirmed) - before[ledger.name]} confirmed, longest gap "
            f"{ledger.longest_gap_s:.1f} s"
            for ledger in self.ledgers
        )
        if self.verbose:
            done += "".join(f"\n   {type(one).__name__} {one.ledger.name} {one.errors}" for one in workers)
        return f"{name} for {hold_s:.1f} s: {done}"

    def _workers(self) -> list[Worker]:
        def seed() -> int:
            return self.dice.randrange(1 << 30)

        found: list[Worker] = []
        if "native" in self.doors:
            found.append(NativeProducer(self.cluster, self.records, seed(), PARTITIONS))
            for partition in range(PARTITIONS):
                reader = NativeReader(self.cluster, self.records, seed(), partition)
                reader.position, reader.committed = self.positions[partition], self.committed[partition]
                found.append(reader)
        if "amqp" in self.doors:
            found += [AmqpPublisher(self.cluster, self.amqp, seed()), AmqpConsumer(self.cluster, self.amqp, seed())]
        if "mqtt" in self.doors:
            found += [MqttPublisher(self.cluster, self.mqtt, seed()), AmqpConsumer(self.cluster, self.mqtt, seed())]
            found.append(MqttSubscriber(self.cluster, self.mqtt, seed()))
        if "tx" in self.doors:
            found.append(AmqpPublisher(self.cluster, self.transacted, seed()))
            found.append(TransactionConsumer(self.cluster, self.transacted, seed()))
        if "later" in self.doors:
            found += [LaterPublisher(self.cluster, self.later, seed()), AmqpConsumer(self.cluster, self.later, seed())]
        return found

    def _confirmed_again(self, workers: list[Worker]) -> None:
        """Publishers are confirmed again, all of them: the cluster is whole."""
        since = time.monotonic()
        while any(ledger.confirmed_at < since for ledger in self.ledgers):
            for worker in workers:
                assert worker.failure is None, repr(worker.failure)
            assert time.monotonic() < since + WHOLE_S, f"seed {self.seed}: nothing is confirmed any more"
            time.sleep(0.02)

    def _end(self, workers: list[Worker]) -> None:
        """Publishers first; consumers when they have what was confirmed, or have had time enough for it."""
        consumers = [worker for worker in workers if isinstance(worker, AmqpConsumer)]
        for worker in workers:
            if worker not in consumers:
                worker.finish()
        deadline = time.monotonic() + DRAINED_S
        for worker in consumers:
            ledger = worker.ledger
            while ledger.confirmed - {message for message, _ in ledger.received} and time.monotonic() < deadline:
                if worker.failure is not None:
                    break
                time.sleep(0.1)
        time.sleep(0.3 if consumers else 0)
        for worker in consumers:
            worker.finish()

    def until_empty(self) -> None:
        """All brokers say that nothing is left in the queues. Raises AssertionError."""
        for broker in self.cluster.brokers.values():
            deadline = time.monotonic() + SETTLED_S
            while left := self._left(broker):
                assert time.monotonic() < deadline, f"seed {self.seed}: {broker.data_dir.name} says {left}"
                time.sleep(0.1)

    def _left(self, broker: BrokerProcess) -> dict[str, int] | str:
        try:
            connection = pika_connection(broker)
            channel = connection.channel()
            counts = {one.name: channel.queue_declare(one.name, passive=True).method for one in self.queues}
            connection.close()
        except PIKA_ERRORS as error:
            return repr(error)
        return {name: found.message_count for name, found in counts.items() if found.message_count}

    def check(self, workers: list[Worker]) -> None:
        """See the module's list."""
        for worker in workers:
            if isinstance(worker, NativeProducer):
                self.offsets.update(worker.offsets)
            elif isinstance(worker, NativeReader):
                number = worker.partition
                self.seen.update(((number, offset), value) for offset, value in worker.seen.items())
                self.positions[number] = worker.position
        if "native" in self.doors:
            self._check_records()
        for ledger in self.queues:
            check_received(ledger, self.seed)

    def _check_records(self) -> None:
        """Read the topic from its start, each partition from its leader."""
        where = f"{RECORDS}, seed {self.seed}"
        found: dict[tuple[int, int], bytes] = {}
        for partition in range(PARTITIONS):
            reader = NativeReader(self.cluster, self.records, 0, partition)
            leader = self.cluster.leader(RECORDS, partition)
            assert leader is not None
            with BlockingClient(self.cluster.server(leader), timeout_s=30) as client:
                end = client.list_offsets(RECORDS, partition, "latest")
                assert end is not None
                while reader.position < end:
                    reader.take(client.fetch(RECORDS, partition, reader.position).batches)
                reader.committed = self.committed[partition]
                reader.check_committed(client)
            found.update(((partition, offset), value) for offset, value in reader.seen.items())
            check_order(f"{where}, partition {partition}", list(map(self.records.parse, reader.seen.values())))
        for what, told in (("confirmed", self.offsets), ("read before", self.seen)):
            wrong = sorted(place for place, value in told.items() if found.get(place) != value)
            assert not wrong, f"{where}: {len(wrong)} records are not as {what}, (partition, offset) {wrong[:5]}"

    def check_replicas(self) -> None:
        """Stop everything; the replicas of topics and of queues are equal, as far as the shorter one goes: not those of
        a compacted topic, which each broker compacts in its own time.
        """
        self.until_whole()
        self.cluster.each(lambda broker: broker.terminate())
        compared = 0
        first, *others = [broker.data_dir for broker in self.cluster.brokers.values()]
        for path in sorted(first.rglob("*.log")):
            name = path.relative_to(first)
            if name.parts[0] not in ("topics", "queues", "offsets") or name.parts[1].startswith(COMPACTED):
                continue
            for other in others:
                if (other / name).exists():
                    compared += _compare(path, other / name)
        assert compared, "no replicas to compare"


def _compare(one: Path, other: Path) -> int:
    """How many batches of two files are equal; all must be, to the end of the shorter. Raises AssertionError."""
    mine, theirs = one.read_bytes(), other.read_bytes()
    common, position, count = min(len(mine), len(theirs)), 0, 0
    while position + 12 <= common:
        end = position + 12 + int.from_bytes(mine[position + 8 : position + 12], "big")
        if end > common:
            break
        assert mine[position:end] == theirs[position:end], f"{one} and {other} differ from byte {position} on"
        validate(mine[position:end])
        position, count = end, count + 1
    return count


@contextmanager
def shaken_cluster(
    directory: Path, seed: int, doors: tuple[str, ...], *, etcd_members: int = 1, power: bool = False
) -> Iterator[ClusterWorld]:
    """A cluster whose disks can be filled, with topic and queues; with `power`, that can be cut, for all of it. Raises
    NoSuchDisk.
    """
    os.environ["FAULTY_BROKER_FAULT"] = "full"
    with ExitStack() as stack:
        disk = None
        if power:
            disk = stack.enter_context(powered_disk(directory / "disk", directory / "disk.ext4", size_bytes=4 << 30))
            directory = disk.root
        cluster = stack.enter_context(cluster_processes(directory, module=MODULE, etcd_members=etcd_members))
        world = ClusterWorld(cluster, seed, doors, disk)
        world.prepare()
        yield world


DOORS = ("native", "amqp", "mqtt", "tx")
"""Those that are used by default; there is "later" besides."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", help="always this fault")
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--etcd-members", type=int, default=3)
    parser.add_argument("--power", action="store_true", help="one more fault: all machines lose power. Needs root")
    parser.add_argument("--verbose", action="store_true", help="what the clients took for errors")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="cluster-rounds-"))
    print(f"seed {options.seed}, in {directory}", flush=True)
    doors = tuple(filter(None, options.doors.split(",")))
    members = options.etcd_members
    with shaken_cluster(directory, options.seed, doors, etcd_members=members, power=options.power) as world:
        world.verbose = options.verbose
        for number in range(options.rounds):
            print(f"{number + 1}: {world.round(options.only)}", flush=True)
        world.check_replicas()
    print("all that was promised is so")


if __name__ == "__main__":
    main()
