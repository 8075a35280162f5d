"""A large group that the broker divides is restarted member by member under load: how long does anything stand still?

    python -m benchmarks.group_restart [--members 200] [--partitions 2000] [--static] [--heartbeat-ms 5000]

Every partition gets a record each `--every-s`, evenly over time. Members are made by hand: a connection that fetches,
one that says what it wants and commits. One after the other leaves as a process does that is stopped in order, and
comes back as another; the next follows when that one reads. Told is how old records are when they are first fetched (so
how long a partition stood still, where there are enough of them), and the longest time in which the whole group read
nothing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from core_log.record_batch import BatchBuilder, parse_header
from protocols.kafka.codec import Entity
from protocols.kafka.messages_groups import CONSUMER_GROUP_HEARTBEAT, OFFSET_COMMIT, OFFSET_FETCH
from protocols.kafka.messages_records import FETCH, METADATA, PRODUCE
from protocols.native.clients.blocking import BlockingClient
from tests.support.broker_process import broker_process
from tests.support.kafka_wire import KafkaWire

GROUP = "restarted"
TOPIC_PARTITIONS = 1000
SLICES = 80
_REBALANCE_MS = 30_000
Place = tuple[str, int]


class Run:
    """What all members share."""

    def __init__(self, port: int, options: argparse.Namespace, topics: dict[str, int]) -> None:
        self.port = port
        self.options = options
        self.topics = topics
        self.names: dict[bytes, str] = {}
        self.ages_ms: list[float] = []
        self.read_at = time.monotonic()
        self.group_gap_s = 0.0
        self.measuring = False
        self.heartbeats: list[float] = []
        self.begun: dict[Place, int] = {}

    def note(self, ages_ms: list[float]) -> None:
        """Records were fetched."""
        now = time.monotonic()
        if self.measuring:
            self.ages_ms += ages_ms
            self.group_gap_s = max(self.group_gap_s, now - self.read_at)
        self.read_at = now


class Member:
    """One process."""

    def __init__(self, run: Run, instance: str | None) -> None:
        self.run_ = run
        self.instance = instance
        self.id = secrets.token_hex(16)
        self.epoch = 0
        self.offsets: dict[Place, int] = {}
        self.owned: set[tuple[bytes, int]] = set()
        self.reads = trio.Event()
        self._stopping = False
        self._wake = trio.Event()
        self._done = trio.Event()

    async def run(self) -> None:
        """Until it is stopped."""
        run = self.run_
        self._coordinator = await KafkaWire.open(run.port, self.id)
        self._fetcher = await KafkaWire.open(run.port, self.id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fetch)
            await self._beat_on()
            nursery.cancel_scope.cancel()
        await self._commit(self.offsets)
        await self._beat(-1 if self.instance is None else -2)
        for wire in (self._coordinator, self._fetcher):
            await wire.close()
        self._done.set()

    async def stop(self) -> None:
        """In order."""
        self._stopping = True
        self._wake.set()
        await self._done.wait()

    # ---- membership

    async def _beat_on(self) -> None:
        committed = time.monotonic()
        told: set[tuple[bytes, int]] | None = None
        while not self._stopping:
            reply = await self._beat(
                self.epoch, whole=self.epoch == 0, owned=self.owned if told != self.owned else None
            )
            assert reply.error_code == 0, (reply.error_code, reply.error_message)
            told = set(self.owned)
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                await self._take(reply.assignment)
            if time.monotonic() > committed + 1:
                committed = time.monotonic()
                await self._commit(self.offsets)
            if told == self.owned:
                with trio.move_on_after(reply.heartbeat_interval_ms / 1000):
                    await self._wake.wait()

    async def _beat(self, epoch: int, *, whole: bool = False, owned: Any = None) -> Any:
        said: dict[str, Any] = {}
        if whole:
            said = {"rebalance_timeout_ms": _REBALANCE_MS, "subscribed_topic_names": list(self.run_.topics)}
        if whole or owned is not None:
            by_topic: dict[bytes, list[int]] = {}
            for topic, number in self.owned:
                by_topic.setdefault(topic, []).append(number)
            said["topic_partitions"] = [Entity(topic_id=topic, partitions=found) for topic, found in by_topic.items()]
        began = time.perf_counter()
        reply = await self._coordinator.ask(
            CONSUMER_GROUP_HEARTBEAT, 1, group_id=GROUP, member_id=self.id, member_epoch=epoch,
            instance_id=self.instance, **said,
        )  # fmt: skip
        self.run_.heartbeats.append(time.perf_counter() - began)
        return reply

    async def _take(self, assignment: Any) -> None:
        has = {(one.topic_id, number) for one in assignment.topic_partitions for number in one.partitions}
        names = self.run_.names
        gone = {(names[topic], number) for topic, number in self.owned - has}
        if gone:
            await self._commit({place: self.offsets[place] for place in gone if place in self.offsets})
            for place in gone:
                self.offsets.pop(place, None)
        new = {(names[topic], number) for topic, number in has - self.owned}
        self.owned = has
        if new:
            asked = [
                Entity(name=name, partition_indexes=[number for _, number in places])
                for name, places in itertools.groupby(sorted(new), key=lambda place: place[0])
            ]
            groups = [Entity(group_id=GROUP, member_id=self.id, member_epoch=self.epoch, topics=asked)]
            (reply,) = (await self._coordinator.ask(OFFSET_FETCH, 9, groups=groups)).groups
            assert reply.error_code == 0, reply.error_code
            for topic in reply.topics:
                for one in topic.partitions:
                    self.offsets[topic.name, one.partition_index] = max(one.committed_offset, 0)

    async def _commit(self, offsets: dict[Place, int]) -> None:
        if not offsets:
            return
        topics = [
            Entity(
                name=name,
                partitions=[
                    Entity(partition_index=place[1], committed_offset=offsets[place], committed_metadata="")
                    for place in places
                ],
            )
            for name, places in itertools.groupby(sorted(offsets), key=lambda place: place[0])
        ]
        await self._coordinator.ask(
            OFFSET_COMMIT, 9, group_id=GROUP, member_id=self.id, generation_id_or_member_epoch=self.epoch,
            group_instance_id=self.instance, topics=topics,
        )  # fmt: skip

    # ---- reading

    async def _fetch(self) -> None:
        while True:
            if not self.offsets:
                await trio.sleep(0.01)
                continue
            topics = [
                Entity(
                    topic=name,
                    partitions=[
                        Entity(partition=place[1], fetch_offset=self.offsets[place], partition_max_bytes=1 << 16)
                        for place in places
                    ],
                )
                for name, places in itertools.groupby(sorted(self.offsets), key=lambda place: place[0])
            ]
            reply = await self._fetcher.ask(FETCH, 11, max_wait_ms=500, min_bytes=1, topics=topics)
            self._read(reply)

    def _read(self, reply: Any) -> None:
        now_ms, ages = time.time() * 1000, list[float]()
        for topic in reply.responses:
            for one in topic.partitions:
                place, data = (topic.topic, one.partition_index), one.records
                while data and place in self.offsets:
                    header = parse_header(data)
                    if header.base_offset >= self.offsets[place]:
                        ages.append(now_ms - header.max_timestamp_ms)
                    self.offsets[place] = header.base_offset + header.last_offset_delta + 1
                    data = data[header.length + 12 :]
        if ages:
            self.reads.set()
            self.run_.note(ages)


async def produce(run: Run, produced: list[int]) -> None:
    """A record for each partition now and then, evenly over time."""
    wire = await KafkaWire.open(run.port, "producer")
    places = [(name, number) for name, count in run.topics.items() for number in range(count)]
    random.Random(0).shuffle(places)
    next_at = trio.current_time()
    for part in itertools.cycle(range(SLICES)):
        now_ms = int(time.time() * 1000)
        builder = BatchBuilder(0, -1, now_ms)
        builder.add_run(0, None, [b"x" * 100])
        batch = builder.build()
        topics = [
            Entity(
                name=name, partition_data=[Entity(index=number, records=[batch]) for _, number in found]
            )
            for name, found in itertools.groupby(sorted(places[part::SLICES]), key=lambda place: place[0])
        ]  # fmt: skip
        await wire.ask(PRODUCE, 9, acks=1, timeout_ms=30_000, topic_data=topics)
        produced[0] += len(places[part::SLICES])
        next_at += run.options.every_s / SLICES
        await trio.sleep_until(max(next_at, trio.current_time()))


async def measure(port: int, options: argparse.Namespace, topics: dict[str, int]) -> Run:
    """The whole story."""
    run = Run(port, options, topics)
    wire = await KafkaWire.open(port)
    reply = await wire.ask(METADATA, 12, topics=[Entity(topic_id=bytes(16), name=name) for name in topics])
    run.names = {one.topic_id: one.name for one in reply.topics}
    produced = [0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce, run, produced)
        members: list[Member] = []
        began = time.monotonic()
        for index in range(options.members):
            member = Member(run, f"i{index}" if options.static else None)
            members.append(member)
            nursery.start_soon(member.run)
        partitions = sum(topics.values())
        while sum(len(member.offsets) for member in members) < partitions or not all(one.owned for one in members):
            await trio.sleep(0.05)
        print(f"{len(members)} members share {partitions} partitions after {time.monotonic() - began:.1f} s")
        await trio.sleep(options.settle_s)
        run.read_at = time.monotonic()
        run.measuring = True
        run.heartbeats.clear()
        began = time.monotonic()
        restarted = 0
        for index, member in enumerate(members[: options.restarts]):
            if time.monotonic() > began + options.seconds:
                break
            restarted += 1
            await member.stop()
            again = members[index] = Member(run, member.instance)
            nursery.start_soon(again.run)
            with trio.move_on_after(20):
                await again.reads.wait()
            await trio.sleep(options.pause_ms / 1000)
        took = time.monotonic() - began
        await trio.sleep(3)
        run.measuring = False
        print(f"{restarted} members restarted in {took:.1f} s, {produced[0]} records produced")
        nursery.cancel_scope.cancel()
    return run


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--heartbeat-ms", type=int, default=5000)
    parser.add_argument("--pause-ms", type=int, default=20)
    parser.add_argument("--every-s", type=float, default=4, help="a record for each partition")
    parser.add_argument("--seconds", type=float, default=120, help="no member is restarted after that")
    parser.add_argument("--settle-s", type=float, default=12)
    options = parser.parse_args()
    topics = {}
    for index in range(-(-options.partitions // TOPIC_PARTITIONS)):
        topics[f"t{index}"] = min(TOPIC_PARTITIONS, options.partitions - index * TOPIC_PARTITIONS)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "millrace.toml"
        config.write_text(f"[engine]\nconsumer_heartbeat_interval_ms = {options.heartbeat_ms}\n")
        doors = ("amqp", "mqtt", "native", "kafka")
        with broker_process(Path(directory) / "data", doors=doors, arguments=("--config", str(config))) as broker:
            with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
                for name, count in topics.items():
                    client.create_topic(name, partitions=count)
            run = trio.run(measure, broker.ports["kafka"], options, topics)
    ages, beats = sorted(run.ages_ms), sorted(run.heartbeats)
    told = [ages[int(len(ages) * part)] for part in (0.5, 0.99, 0.999)]
    print(
        f"age of {len(ages)} records: p50 {told[0]:.0f} ms, p99 {told[1]:.0f}, p99.9 {told[2]:.0f}, most {ages[-1]:.0f}"
    )
    print(f"the group read nothing for at most {run.group_gap_s * 1000:.0f} ms")
    print(f"{len(beats)} heartbeats: p50 {beats[len(beats) // 2] * 1000:.1f} ms, most {beats[-1] * 1000:.0f}")


if __name__ == "__main__":
    main()
