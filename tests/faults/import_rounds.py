"""Kill a broker again and again while its directory becomes a cluster's first member, and find all that was in it.

    python -m tests.faults.import_rounds [--rounds N] [--queues N] [--seed S]

One directory is filled, by real clients, and its broker killed. Each round imports a copy of it, into a cluster of its
own; the import is killed up to three times, at moments drawn from the seed, before it may come to its end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pika
import trio

from core_log.files import OsFiles
from gateway.etcd_process import EtcdProcess, start_etcd
from gateway.free_ports import free_ports
from protocols.native.clients.blocking import BlockingClient
from routing.cluster.metadata.identity import load_identity
from tests.support.broker_process import CHECKOUT, HOST, BrokerProcess, broker_process
from tests.support.replica_node import batch_of

_TOPICS = 20
_MESSAGES = 3
_KILLS = 3
_SOON = 0.8
"""How often a kill waits until the first step has been taken."""
_OFFSETS = {("topic-0", 0): 7, ("topic-1", 0): 3}


def fill(broker: BrokerProcess, queues: int) -> None:
    """Queues with messages, topics with records."""
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        for number in range(_TOPICS):
            client.create_topic(f"topic-{number}", config={"retention.ms": "-1"})
            client.produce(f"topic-{number}", 0, batch_of(0, 10, 10))
        client.commit_offsets("group", _OFFSETS)
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port))
    channel = connection.channel()
    for number in range(queues):
        channel.queue_declare(f"queue-{number}", durable=True)
    channel.confirm_delivery()
    for number in range(queues):
        for message in range(_MESSAGES):
            body = b"%d of queue-%d" % (message, number)
            channel.basic_publish("", f"queue-{number}", body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def check(broker: BrokerProcess, queues: int) -> None:
    """All of it is there."""
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        for number in range(_TOPICS):
            fetched = client.fetch(f"topic-{number}", 0, 0)
            assert b"".join(fetched.batches)[61:] == bytes(batch_of(0, 10, 10))[61:], number
        assert client.committed_offsets("group") == _OFFSETS
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port))
    channel = connection.channel()
    for number in range(queues):
        found = [channel.basic_get(f"queue-{number}", auto_ack=True)[2] for _ in range(_MESSAGES + 1)]
        assert found == [*(b"%d of queue-%d" % (message, number) for message in range(_MESSAGES)), None], found
    connection.close()


class Rounds:
    """What they have in common."""

    def __init__(self, directory: Path, etcd: EtcdProcess, *, queues: int, seed: int) -> None:
        self.kills = self.midway = 0
        """How often an import was killed, and how often of these between its first step and its last."""
        self.import_s = 0.0
        """How long it took when nobody killed it."""
        self._directory = directory
        self._etcd = etcd
        self._queues = queues
        self._dice = random.Random(seed)
        with broker_process(directory / "filled") as broker:
            fill(broker, queues)
            broker.kill9()

    def run(self, number: int) -> None:
        """One of them; the first is not killed, and says how long it takes."""
        place = self._directory / f"round-{number}"
        shutil.copytree(self._directory / "filled", place)
        (peer,) = free_ports(1)
        arguments = ["--cluster", f"import-{number}", "--broker-id", "1", "--etcd", self._etcd.address, "--import"]
        arguments += ["--peer", f"{HOST}:{peer}"]
        if number:
            for _ in range(self._dice.randint(1, _KILLS)):
                self._kill(place, arguments)
        broker = BrokerProcess(place, ("amqp", "mqtt", "native"), arguments)
        broker.start()
        try:
            self.import_s = self.import_s or broker.start_s
            check(broker, self._queues)
        finally:
            broker.kill9()
        shutil.rmtree(place)

    def _kill(self, place: Path, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "gateway", "serve", "--data-dir", str(place), *arguments]
        command += ["--amqp", "off", "--mqtt", "off", "--native", f"{HOST}:0"]
        with (place.with_name(place.name + ".log")).open("ab") as log:
            process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=log)
            begins = self._dice.random() < _SOON
            until = time.monotonic() + (1 if begins else self._dice.uniform(0.2, 0.8)) * self.import_s
            while time.monotonic() < until and not (place / "cluster.json").exists():
                time.sleep(0.002)
            if begins:
                time.sleep(self._dice.uniform(0, 0.1) * self.import_s)
            process.kill()
            process.wait()
        self.kills += 1
        identity = load_identity(OsFiles(place))
        self.midway += identity is not None and identity.importing


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        etcd = trio.run(partial(start_etcd, Path(name) / "etcd"))
        try:
            rounds = Rounds(Path(name), etcd, queues=chosen.queues, seed=chosen.seed)
            for number in range(chosen.rounds + 1):
                rounds.run(number)
                print(
                    f"round {number}, seed {chosen.seed}: all there; {rounds.kills} kills, "
                    f"{rounds.midway} of them between the first step and the last",
                    flush=True,
                )
            print(f"an import that nobody killed was ready after {rounds.import_s:.2f} s")
        finally:
            etcd.stop()


if __name__ == "__main__":
    main()
