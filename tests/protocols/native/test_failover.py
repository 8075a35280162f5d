"""Clients of three real brokers whose leaders are killed, paused and stopped: nothing confirmed is lost, keys keep
their order, and nobody has to do anything about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio

from millrace import Client, Consumer, Producer
from protocols.native.client import LinkConfig
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
            first = list(dict.fromkeys(number for of, number in self.read if of == key))
            assert first == sorted(first), f"the order of key {key}"


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
