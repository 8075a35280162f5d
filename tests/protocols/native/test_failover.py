"""Clients of three real brokers whose leaders are killed, paused and stopped: nothing confirmed is lost, keys keep
their order, and nobody has to do anything about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from millrace import Client, Consumer, MillraceError, Producer, TransactionalProducer, UnknownPartition
from protocols.native import wire_groups
from protocols.native.clients.client import LinkConfig
from tests.support.cluster import ClusterProcesses, cluster_processes

KEYS = 6
Said = tuple[int, int]
"""Key and the how-manieth of it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path_factory.mktemp("failover"), relayed=False) as found:
        yield found


class Story:
    """What was confirmed and what was read."""

    def __init__(self, servers: list[str], topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.confirmed: list[Said] = []
        self.read: list[Said] = []
        self.stop = False
        self.longest_gap_s = 0.0
        self._last_s: dict[int, float] = {}

    async def produce(self) -> None:
        async with Producer(self.servers, link=LinkConfig(request_timeout_ms=5_000)) as producer:
            number = 0
            async with trio.open_nursery() as nursery:
                while not self.stop:
                    for key in range(KEYS):
                        delivery = await producer.send(self.topic, b"%d" % number, key=b"%d" % key)
                        nursery.start_soon(self._note, delivery, (key, number))
                    number += 1
                    await trio.sleep(0.002)
                await producer.flush()

    async def _note(self, delivery: object, said: Said) -> None:
        await delivery  # type: ignore[misc]
        now = trio.current_time()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last_s.get(said[0], now))
        self._last_s[said[0]] = now
        self.confirmed.append(said)

    async def consume(self) -> None:
        async with Consumer(self.servers, "readers", auto_offset_reset="earliest") as consumer:
            await consumer.assign(self.topic)
            async for record in consumer:
                assert record.key is not None
                assert record.value is not None
                self.read.append((int(record.key), int(record.value)))

    def check(self) -> None:
        assert len(set(self.confirmed)) == len(self.confirmed)
        assert set(self.confirmed) <= set(self.read), "what was confirmed is there"
        for key in range(KEYS):
            numbers = [number for of, number in self.read if of == key]
            assert numbers == sorted(set(numbers)), f"each once, in the order of key {key}"


@pytest.mark.parametrize("fault", ["kill", "pause", "stop"])
async def test_clients_go_on_when_a_leader_does_not(cluster: ClusterProcesses, fault: str) -> None:
    topic = f"t-{fault}"
    in_thread = trio.to_thread.run_sync
    async with Client(cluster.servers) as client:
        await client.create_topic(topic, partitions=3)
    story = Story(cluster.servers, topic)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.consume)
            async with trio.open_nursery() as producing:
                producing.start_soon(story.produce)
                while len(story.confirmed) < 500:
                    await trio.sleep(0.01)
                leader = await in_thread(lambda: cluster.leader(topic))
                assert leader is not None
                broker = cluster.brokers[leader]
                if fault == "kill":
                    broker.kill9()
                elif fault == "pause":
                    cluster.pause(leader)
                else:
                    await in_thread(broker.terminate)
                before = len(story.confirmed)
                others = [number for number in cluster.brokers if number != leader]
                while await in_thread(lambda: cluster.leader(topic, of=others[0])) in (leader, None):
                    await trio.sleep(0.05)
                while len(story.confirmed) < before + 600:
                    await trio.sleep(0.01)
                if fault == "pause":
                    cluster.resume(leader)
                else:
                    await in_thread(lambda: cluster.restart(leader))
                await trio.sleep(0.3)
                story.stop = True
            while not set(story.confirmed) <= set(story.read):
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    story.check()
    if os.environ.get("SHOW"):
        print(f"{fault}: {len(story.confirmed)} confirmed, {len(story.read)} read, gap {story.longest_gap_s:.2f} s")
    await in_thread(lambda: cluster.until_whole(topics={topic}))


async def test_all_that_waits_for_a_partition_that_is_gone_is_refused_at_once(cluster: ClusterProcesses) -> None:
    async with Client(cluster.servers) as client, Producer(cluster.servers, batch_bytes=200) as producer:
        await client.create_topic("fewer", partitions=8)
        await (await producer.send("fewer", b"before", partition=5))
        await client.delete_topic("fewer")
        await client.create_topic("fewer", partitions=2)
        deliveries = []
        with suppress(UnknownPartition):  # it looks every two seconds by itself
            for _ in range(100):
                deliveries.append(await producer.send("fewer", bytes(150), partition=5))
        with trio.fail_after(60):  # and not when `delivery_timeout_ms` is over
            for delivery in deliveries:
                with pytest.raises(UnknownPartition):
                    await delivery
            await (await producer.send("fewer", b"after", partition=1))


class Copying:
    """A member of a group that copies what it reads, in transactions; and what it has."""

    def __init__(self, servers: list[str], source: str, target: str, name: str, protocol: str) -> None:
        self.servers, self.source, self.target, self.name, self.protocol = servers, source, target, name, protocol
        self.assigned: set[tuple[str, int]] = set()
        self.stop = False

    async def run(self) -> None:
        link = LinkConfig(request_timeout_ms=10_000)
        consumer = Consumer(
            self.servers, self.source, topics=self.source, auto_offset_reset="earliest", link=link,
            group_protocol=self.protocol, heartbeat_interval_ms=500, session_timeout_ms=10_000,
        )  # type: ignore[arg-type]  # fmt: skip
        async with consumer:
            while not self.stop:
                async with TransactionalProducer(self.servers, self.name, link=link) as producer:
                    await self._copy(consumer, producer)

    async def _copy(self, consumer: Consumer, producer: TransactionalProducer) -> None:
        while not self.stop:
            records = await consumer.poll(100, 20)
            self.assigned = set(consumer.assignment)
            if not records:
                continue
            offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
            try:
                async with producer.transaction():
                    for record in records:
                        await producer.send(self.target, record.value, partition=record.partition)
                    await producer.send_offsets(offsets, consumer.group_metadata())
            except MillraceError:
                with trio.move_on_after(10):
                    await self._back(consumer, list(offsets))
                if producer.in_transaction:
                    return  # another producer, with the same id

    async def _back(self, consumer: Consumer, partitions: list[tuple[str, int]]) -> None:
        done = await consumer.committed(partitions)
        for key in partitions:
            if key in consumer.assignment:
                await consumer.seek(*key, done.get(key, 0))


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.soak)])
async def test_groups_and_transactions_outlive_their_coordinators(cluster: ClusterProcesses, protocol: str) -> None:
    source, target = f"in-{protocol}", f"out-{protocol}"
    in_thread = trio.to_thread.run_sync
    async with Client(cluster.servers) as client:
        await client.create_topic(source, partitions=4)
        await client.create_topic(target, partitions=4)
        found = await client._link.call(
            wire_groups.FindCoordinator(0, wire_groups.OF_GROUP, source), wire_groups.FindCoordinatorReply
        )
    members = [Copying(cluster.servers, source, target, f"{protocol}-{number}", protocol) for number in range(2)]
    count = 0

    async def fill(more: int) -> None:
        nonlocal count
        async with Producer(cluster.servers) as producer:
            for number in range(count, count + more):
                await producer.send(source, b"%d" % number, partition=number % 4)
        count += more

    async def committed() -> int:
        async with Client(cluster.servers) as client:
            return sum(lag.offset or 0 for lag in await client.lag(source))

    def divided() -> bool:
        first, second = (member.assigned for member in members)
        return len(first) == len(second) == 2 and not first & second

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.run)
            await fill(200)
            while not divided():
                await trio.sleep(0.05)
            await in_thread(cluster.brokers[found.node_id].kill9)
            await fill(200)
            while await committed() < count:
                await trio.sleep(0.1)
            await in_thread(lambda: cluster.restart(found.node_id))
            await fill(100)
            while await committed() < count or not divided():
                await trio.sleep(0.1)
            for member in members:
                member.stop = True
    async with Client(cluster.servers) as client, Consumer(cluster.servers, auto_offset_reset="earliest") as consumer:
        ends = await client.list_offsets([(target, index) for index in range(4)], "latest")
        await consumer.assign(target)
        values: list[int] = []
        with trio.fail_after(20):
            while any(consumer.position(target, index) < (end or 0) for index, end in enumerate(ends)):
                values += [int(record.value or b"") for record in await consumer.poll(100)]
    assert sorted(values) == list(range(count))
    await in_thread(lambda: cluster.until_whole(topics={source, target}))
