"""Brokers of a real cluster are drained in turn under load: a producer that waits for all replicas sees no error.

python -m tests.faults.drain_rounds [--rounds 6] [--partitions 6] [--pause-max 0.5]

A pause is the longest time from handing a record to the producer to its answer, its retries (100 ms apart) included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click
import trio

from protocols.native.client import Client
from protocols.native.errors import MillraceError
from protocols.native.producer import Producer
from tests.support.cluster import ClusterProcesses, cluster_processes

TOPIC = "t"
_TIMEOUT_S = 20
_BACK_S = 7.0
"""Preferred leaders lead again within this time."""


class Load:
    """Several senders a partition, each waiting for its record before the next."""

    def __init__(self, partitions: int) -> None:
        self.longest_s = [0.0] * partitions
        self.sent = [0] * partitions
        self.errors: list[MillraceError] = []
        self.stopping = False

    async def send(self, producer: Producer, index: int) -> None:
        while not self.stopping:
            began = time.monotonic()
            try:
                await (await producer.send(TOPIC, b"x" * 200, partition=index))
            except MillraceError as error:
                self.errors.append(error)
                await trio.sleep(0.1)
                continue
            self.sent[index] += 1
            self.longest_s[index] = max(self.longest_s[index], time.monotonic() - began)

    def pause_s(self) -> float:
        """The longest since the last question."""
        found = max(self.longest_s)
        self.longest_s = [0.0] * len(self.longest_s)
        return found


async def drain(server: str, broker: int) -> float:
    """How long it took until the broker led nothing."""
    async with Client(server) as client:
        began = time.monotonic()
        await client.administer("cluster.drain", broker_id=broker)
        with trio.fail_after(_TIMEOUT_S):
            while True:
                found = await client.administer("cluster.partitions")
                leader = found["columns"].index("leader")
                if all(row[leader] != broker for row in found["rows"]):
                    return time.monotonic() - began
                await trio.sleep(0.01)


async def run(cluster: ClusterProcesses, rounds: int, partitions: int) -> tuple[Load, float]:
    """The load, and its longest pause."""
    load, longest_s = Load(partitions), 0.0
    async with Client(cluster.server(1)) as client:
        await client.create_topic(TOPIC, partitions=partitions)
    async with Producer(cluster.server(2), acks="all") as producer, trio.open_nursery() as nursery:
        for index in range(partitions):
            for _ in range(4):
                nursery.start_soon(load.send, producer, index)
        await trio.sleep(4)
        load.pause_s()
        for number in range(rounds):
            broker = number % len(cluster.brokers) + 1
            other = cluster.server(broker % len(cluster.brokers) + 1)
            took_s = await drain(other, broker)
            await trio.sleep(1)
            away_s = load.pause_s()
            async with Client(other) as client:
                await client.administer("cluster.undrain", broker_id=broker)
            await trio.sleep(_BACK_S)
            back_s = load.pause_s()
            longest_s = max(longest_s, away_s, back_s)
            click.echo(f"broker {broker} drained in {took_s:.2f} s, pause {away_s:.3f} s; back: pause {back_s:.3f} s")
        load.stopping = True
    return load, longest_s


@click.command()
@click.option("--rounds", default=6, show_default=True)
@click.option("--partitions", default=6, show_default=True)
@click.option("--pause-max", default=0.5, show_default=True, help="Seconds.")
def main(rounds: int, partitions: int, pause_max: float) -> None:
    """Drain brokers in turn."""
    with tempfile.TemporaryDirectory() as directory, cluster_processes(Path(directory), relayed=False) as cluster:
        load, longest_s = trio.run(run, cluster, rounds, partitions)
    click.echo(f"{sum(load.sent)} records, {len(load.errors)} errors, longest pause {longest_s:.3f} s")
    if load.errors or longest_s > pause_max:
        sys.exit(1)


if __name__ == "__main__":
    main()
