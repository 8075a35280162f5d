"""Brokers are replaced by those of another version and back, under load and on their data directories.

    python -m tests.faults.upgrade_rounds --old 9714f034 --rounds 5
    python -m tests.faults.upgrade_rounds --old 9714f034 --rounds 5 --seed 1234 --only cluster

The old version's code comes out of git; its brokers run from there. A round of each:

1. *cluster*: three brokers of the old version and an etcd, with the load of `cluster_rounds`, MQTT sessions that last
   and Kafka transactions. One broker after the other stops, or is killed, and comes back on its data directory and
   ports with the new code; then, one after the other, with the old; then with the new again. All ledgers of the load
   are looked at after each of the three, and what a generation of `kept` holds.
2. *broker*: a directory that the old version filled, with the load of `kill_everything` and a generation of `kept`, is
   opened by the new version, which adds a generation, and then by the old one again.

No broker refuses to start, and none has a traceback or a line of level `error` in its log.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

from tests.faults import kafka_rounds
from tests.faults.cluster_rounds import DOORS, ClusterWorld
from tests.faults.kafka_rounds import Copies, Several, Source, Workers, make_topics
from tests.faults.kept import Kept
from tests.faults.kill_everything import SETTINGS, Rounds
from tests.faults.mqtt_rounds import PATIENCE_S, VERSIONS, Publisher, Subscriber, check, until_complete
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT
from tests.support.cluster import ClusterProcesses, cluster_processes
from tests.support.versions import checkout_of

PREVIOUS = "9714f0343d0a968862302cd1e7ab618b5f497062"
"""The version before the last, of which the test suite has a round. Moved on to the last release whenever there is one;
before there is any, once a week, and whenever data or frames between brokers get a form that it does not know, which
the change's message says.
"""
_KILLED = 0.25
"""This part of the brokers is killed, the others stop."""
_BAD = re.compile(r"level=(error|critical)|Traceback \(most recent call last\)")


def check_log(broker: BrokerProcess) -> None:
    """Nothing went wrong in there. Raises AssertionError."""
    bad = [line for line in broker.log().splitlines() if _BAD.search(line)]
    assert not bad, f"{broker.data_dir.name} logged {len(bad)} errors, such as {bad[:3]}"


class Devices:
    """MQTT clients with sessions that last, and find another broker when theirs is away."""

    def __init__(self, cluster: ClusterProcesses, _: random.Random) -> None:
        self._cluster = cluster
        port = cluster.brokers[1].mqtt_port
        self._publishers: list[Publisher] = []
        self._subscribers = [Subscriber(port, f"upgraded-{version}", version, self._anywhere) for version in VERSIONS]
        for one in self._subscribers:
            assert one.ready.wait(PATIENCE_S), f"{one.name} is not subscribed"
        self._publishers += [Publisher(port, f"upgrading-{version}", version, self._anywhere) for version in VERSIONS]

    def _anywhere(self) -> tuple[str, int]:
        brokers = list(self._cluster.brokers.values())
        broker = random.choice([one for one in brokers if one.running] or brokers)
        return broker.host, broker.mqtt_port

    def finish(self) -> str:
        """How many messages came as they should. Raises AssertionError."""
        for publisher in self._publishers:
            publisher.finish()
        until_complete(self._subscribers, self._publishers)
        for subscriber in self._subscribers:
            check(subscriber, self._publishers, final=True)
        lost = [one.name for one in (*self._subscribers, *self._publishers) if one.sessions_lost]
        assert not lost, f"sessions were lost: {lost}"
        return f"{sum(2 * one.sent for one in self._publishers)} messages of MQTT sessions"

    def stop(self) -> None:
        """No more."""
        for one in (*self._subscribers, *self._publishers):
            one.stop()


class Kafka:
    """Idempotent producers, groups and transactions of librdkafka."""

    def __init__(self, cluster: ClusterProcesses, dice: random.Random) -> None:
        servers = Several(cluster).servers
        make_topics(servers)
        self._source = Source(servers)
        self._workers = Workers(servers, 1, dice, cluster.directory / "workers.log")
        self._copies = Copies(servers)

    def finish(self) -> str:
        """How many numbers are there once each. Raises AssertionError."""
        self._source.stop()
        self._copies.read_until(self._source.sent, self._workers.tend)
        return f"{self._source.sent} numbers of Kafka's"

    def stop(self) -> None:
        """No more."""
        self._workers.stop()
        self._source.stop()


def _roll(world: ClusterWorld, checkout: Path, mixed_s: float) -> Iterator[None]:
    """A fault of `ClusterWorld`: all brokers are those of another version in the end. Between two of them at most
    `mixed_s` pass.
    """
    brokers, dice = world.cluster.brokers, world.dice
    for number in dice.sample(list(brokers), len(brokers)):
        broker = brokers[number]
        if dice.random() < _KILLED:
            broker.kill9()
        else:
            code = broker.terminate()
            assert code == 0, f"broker {number} stopped with code {code}"
        broker.checkout = checkout
        broker.start_again()
        world.until_whole()
        time.sleep(dice.uniform(0, mixed_s))
    yield


def roll_cluster(
    directory: Path,
    old: Path,
    seed: int,
    *,
    mixed_s: float = 3.0,
    ways: str = "up down up",
    doors: Sequence[str] = (*DOORS, "later"),
    more: Sequence[type[Devices | Kafka]] = (Devices, Kafka),
) -> str:
    """See the module; how it went. Raises AssertionError, and RuntimeError when a broker does not start."""
    told = []
    with (
        mock.patch.dict(os.environ, kafka_rounds.SETTINGS),
        cluster_processes(directory, relayed=False, doors=kafka_rounds.DOORS, checkout=old) as cluster,
    ):
        world = ClusterWorld(cluster, seed, tuple(doors))
        world.faults.named = {
            "up": partial(_roll, world, CHECKOUT, mixed_s),
            "down": partial(_roll, world, old, mixed_s),
        }
        world.prepare()
        kept = Kept(seed)
        others: list[Devices | Kafka] = []
        try:
            for kind in more:
                others.append(kind(cluster, world.dice))
            for way in ways.split():
                kept.fill(cluster.brokers[world.dice.choice(list(cluster.brokers))])
                told.append(world.round(way, hold_s=0))
                kept.check(cluster.brokers[world.dice.choice(list(cluster.brokers))])
            told += [one.finish() for one in others]
        finally:
            for one in others:
                one.stop()
        for broker in cluster.brokers.values():
            check_log(broker)
        world.check_replicas()
    return "\n   ".join(told)


def change_broker(directory: Path, old: Path, seed: int, *, ways: str = "up down up") -> str:
    """See the module; how it went. Raises AssertionError, and RuntimeError when a broker does not start."""
    directory.mkdir(exist_ok=True)
    settings = directory / "millrace.toml"
    settings.write_text(SETTINGS)
    with broker_process(directory / "data", arguments=["--config", str(settings)], checkout=old) as broker:
        rounds, kept = Rounds(broker, seed), Kept(seed)
        for way in ways.split():
            kept.fill(broker)
            broker.checkout = CHECKOUT if way == "up" else old
            rounds.round()
            kept.check(broker)
        assert broker.terminate() == 0
        check_log(broker)
    return f"{len(rounds.ledger.confirmed)} messages of all sorts confirmed, {rounds.world.confirmations()} others"


def main() -> None:
    """Run until done, or until a promise was broken: then the data are kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--old", default=PREVIOUS, help="a revision of git")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", choices=("cluster", "broker"))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    parts = {"cluster": roll_cluster, "broker": change_broker}
    with checkout_of(options.old) as old:
        for number in range(options.rounds):
            for name, part in parts.items():
                if options.only in (None, name):
                    began = time.monotonic()
                    directory = Path(tempfile.mkdtemp(prefix=f"upgrade-{name}-"))
                    print(f"{number + 1}, {name}: in {directory}", flush=True)
                    told = part(directory, old, options.seed + number)
                    print(f"   {told}\n   {time.monotonic() - began:.0f} s", flush=True)
                    shutil.rmtree(directory)
    print("all that was promised is so")


if __name__ == "__main__":
    main()
