"""Brokers of a real cluster are drained in turn under load: a producer that waits for all replicas sees no error.

python -m tests.faults.drain_rounds [--rounds 6] [--partitions 6] [--pause-max 0.5]

A pause is the longest time from handing a record to the producer to its answer, its retries included, of a partition
that another broker leads afterwards: each drain and each return of the preferred leaders has one a partition.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click
import trio

from protocols.native.clients.client import Client
from protocols.native.clients.producer import Producer
from protocols.native.errors import MillraceError
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

    def pauses_s(self) -> list[float]:
        """The longest of each partition since the last question."""
        found, self.longest_s = self.longest_s, [0.0] * len(self.longest_s)
        return found


async def leaders(server: str) -> list[int | None]:
    """Who leads the partitions of the topic."""
    async with Client(server) as client:
        found = await client.administer("cluster.partitions")
    columns = [found["columns"].index(name) for name in ("topic", "partition", "leader")]
    named = [[row[column] for column in columns] for row in found["rows"]]
    return [leader for _, leader in sorted((partition, leader) for topic, partition, leader in named if topic == TOPIC)]


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


async def run(cluster: ClusterProcesses, rounds: int, partitions: int) -> tuple[Load, list[float]]:
    """The load, and the pauses of all partitions that were handed over."""
    load, pauses_s = Load(partitions), list[float]()
    async with Client(cluster.server(1)) as client:
        await client.create_topic(TOPIC, partitions=partitions)
    async with Producer(cluster.server(2), acks="all") as producer, trio.open_nursery() as nursery:
        for index in range(partitions):
            for _ in range(4):
                nursery.start_soon(load.send, producer, index)
        await trio.sleep(4)
        load.pauses_s()
        for number in range(rounds):
            broker = number % len(cluster.brokers) + 1
            other = cluster.server(broker % len(cluster.brokers) + 1)
            led = await leaders(other)
            took_s = await drain(other, broker)
            await trio.sleep(1)
            away = await _moved(load, other, led)
            led = await leaders(other)
            async with Client(other) as client:
                await client.administer("cluster.undrain", broker_id=broker)
            await trio.sleep(_BACK_S)
            back = await _moved(load, other, led)
            pauses_s += away + back
            click.echo(f"broker {broker} drained in {took_s:.2f} s, pauses {_told(away)}; back: pauses {_told(back)}")
        load.stopping = True
    return load, pauses_s


async def _moved(load: Load, server: str, led: list[int | None]) -> list[float]:
    """The pauses of the partitions that others lead than did."""
    pauses_s = load.pauses_s()
    return [pause_s for pause_s, *pair in zip(pauses_s, led, await leaders(server), strict=True) if pair[0] != pair[1]]


def _told(pauses_s: list[float]) -> str:
    return " ".join(f"{pause_s * 1000:.0f}" for pause_s in pauses_s) + " ms"


@click.command()
@click.option("--rounds", default=6, show_default=True)
@click.option("--partitions", default=6, show_default=True)
@click.option("--pause-max", default=0.5, show_default=True, help="Seconds.")
def main(rounds: int, partitions: int, pause_max: float) -> None:
    """Drain brokers in turn."""
    with tempfile.TemporaryDirectory() as directory, cluster_processes(Path(directory), relayed=False) as cluster:
        load, pauses_s = trio.run(run, cluster, rounds, partitions)
    pauses_s.sort()
    middle_s, late_s, longest_s = (pauses_s[int(share * (len(pauses_s) - 1))] for share in (0.5, 0.99, 1))
    click.echo(
        f"{sum(load.sent)} records, {len(load.errors)} errors; {len(pauses_s)} hand-overs, pause p50 {middle_s:.3f}, "
        f"p99 {late_s:.3f}, longest {longest_s:.3f} s"
    )
    if load.errors or longest_s > pause_max:
        sys.exit(1)


if __name__ == "__main__":
    main()
