"""Streams are consumed at any broker of a cluster, whether it has a replica of them or not: real etcd, real links."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
import trio
from pika.exceptions import NackError

from core_log.absent_log import AbsentLog
from gateway.etcd_process import EtcdProcess
from protocols.native.clients.blocking import BlockingClient
from routing.cluster.metadata import operating
from routing.errors import NotImplementedYet
from routing.session import Outcome
from routing.topics.offset_store import Committed
from routing.topics.stream import Stream
from tests.gateway.test_member import Running, three, until
from tests.routing.harness import Engine
from tests.routing.topics.test_streams import STREAM, Reader
from tests.support.cluster import cluster_processes

TRACKED = {"x-stream-automatic-offset-tracking": True}


class Town:
    """Three brokers; stream `s` has fewer replicas, so there is one without."""

    def __init__(self, brokers: dict[int, Running]) -> None:
        self.brokers = brokers
        self.engines: dict[int, Engine] = {}
        for number, one in brokers.items():
            after_turn = one.server.broker.after_turn
            self.engines[number] = Engine(one.server.broker)
            one.server.broker.after_turn = after_turn  # the server's, which sends

    def stream(self, number: int) -> Stream:
        return self.engines[number].broker.topology.vhosts["/"].streams["s"]

    def has_replica(self, number: int) -> bool:
        return not isinstance(self.stream(number)._partition.log, AbsentLog)

    @property
    def leader(self) -> int:
        return next(number for number in self.brokers if self.stream(number)._partition.forward is None)

    @property
    def without(self) -> int:
        return next((number for number in self.brokers if not self.has_replica(number)), 0)

    async def publish(self, number: int, *bodies: object) -> None:
        """Until it is confirmed; what a leader that goes refuses is sent again."""
        confirmed = False
        while not confirmed:
            client = self.engines[number].client()
            client.publish("s", *bodies, confirm=True)
            client.engine.turn()
            await until(lambda client=client: client.events)  # type: ignore[misc]
            confirmed = client.events == [("confirm", len(bodies))]
            client.session.close()
            await trio.sleep(0 if confirmed else 0.05)


async def read(reader: Reader, count: int) -> list[str]:
    """Acknowledge until so many have come."""

    def enough() -> bool:
        reader.session.settle_up_to(0, Outcome.ACK)
        reader.engine.turn()
        return len(reader.got) >= count

    await until(enough)
    return reader.bodies


@asynccontextmanager
async def town(etcd: EtcdProcess, directory: Path, name: str, replicas: int = 2, **topic: str) -> AsyncIterator[Town]:
    async with three(etcd, directory, name) as (_, brokers):
        found = Town(brokers)
        await until(lambda: all(len(one.server.broker.engine.forwarding.links) == 2 for one in brokers.values()))  # type: ignore[union-attr]
        first = brokers[1].server.broker
        await first.create_topic("s", config={"replication.factor": str(replicas), **topic})
        await first.declare_queue("s", durable=True, arguments=STREAM)
        await until(lambda: all("s" in one.broker.topology.vhosts["/"].streams for one in found.engines.values()))
        await until(lambda: any(found.stream(number)._partition.forward is None for number in brokers))
        yield found


async def test_every_position_at_every_broker(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with town(etcd, tmp_path, "positions") as there:
        await there.publish(1, *range(10))
        cases: list[tuple[Any, Any]] = [
            ("first", range(10)), (0, range(10)), (7, range(7, 10)), ("last", [9]), (-3, [7, 8, 9]), ("1h", range(10)),
            ("next", []), (None, []), (10, []),
        ]  # fmt: skip
        readers: list[tuple[Reader, list[str]]] = []
        for number in there.brokers:
            info = await there.engines[number].broker.check_queue("s")
            assert info.message_count == 10, "whatever it has of it"
            for offset, expected in cases:
                reader = Reader(there.engines[number])
                await reader.read("s", offset, tag=f"{number}-{offset}")
                readers.append((reader, [str(at) for at in expected]))
            with pytest.raises(NotImplementedYet, match=r"basic\.get not supported by stream queues"):
                await reader.session.get("s", no_ack=False)
        for reader, expected in readers:
            assert await read(reader, len(expected)) == expected
        await there.publish(2, "more")
        for reader, expected in readers:
            assert await read(reader, len(expected) + 1) == [*expected, "more"]


async def test_a_named_consumer_goes_on_at_another_broker(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with town(etcd, tmp_path, "named") as there:
        await there.publish(1, *range(10))
        first = Reader(there.engines[there.without], prefetch=4)
        await first.read("s", "first", tag="worker", **TRACKED)
        await until(lambda: len(first.got) == 4)
        first.session.settle_up_to(3, Outcome.ACK)
        first.session.close()
        offsets = there.engines[1].broker.offsets
        with trio.fail_after(10):
            while await offsets.fetch("millrace.stream.worker") != {("s", 0): Committed(3)}:
                await trio.sleep(0.01)
        for number in there.brokers:
            reader = Reader(there.engines[number])
            await reader.read("s", "first", tag="worker", **TRACKED)
            assert await read(reader, 7) == [str(at) for at in range(3, 10)]


async def test_readers_do_not_notice_that_leaders_and_replicas_move(etcd: EtcdProcess, tmp_path: Path) -> None:
    """What is written small is read from far more than is kept in memory, while it is written."""
    async with town(etcd, tmp_path, "moving", **{"segment.bytes": "65536"}) as there:
        readers = {}
        for number in there.brokers:
            readers[number] = Reader(there.engines[number], prefetch=300)
            await readers[number].read("s", "first")
        sent: list[str] = []
        over = False

        async def write() -> None:
            while not over:
                bodies = [f"{len(sent) + at} {'x' * 500}" for at in range(50)]
                with trio.fail_after(30):
                    await there.publish(1 + len(sent) // 50 % 3, *bodies)
                sent.extend(bodies)
                await trio.sleep(0.02)

        async def take() -> None:
            while not over:
                for number, reader in readers.items():
                    reader.session.settle_up_to(0, Outcome.ACK)
                    there.engines[number].turn()
                await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(take)
            first, without = there.leader, there.without
            other = next(n for n in there.brokers if n not in (first, without))
            log = f"topic-{there.stream(1).topic.uid}-0"
            for replicas, gone in (([first, without], other), ([other, without], first)):
                before = len(sent)
                await until(lambda before=before: len(sent) > before + 300)  # type: ignore[misc]
                await operating.move(there.brokers[1].cluster, log, replicas)
                await until(lambda gone=gone: there.without == gone)  # type: ignore[misc]
            assert there.leader != first
            before = len(sent)
            await until(lambda: len(sent) > before + 300)
            over = True
        late = Reader(there.engines[there.without], prefetch=1000)
        await late.read("s", "first")
        end = there.stream(there.leader)._partition.log.high_watermark
        for reader in (late, *readers.values()):
            assert await read(reader, end) == late.bodies
        assert list(dict.fromkeys(late.bodies)) == sent, "what was refused may be there twice"


async def test_who_is_behind_reads_from_the_leaders_disk(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with town(etcd, tmp_path, "behind", replicas=1, **{"segment.bytes": "16384"}) as there:
        sent = [f"{number} {'x' * 1000}" for number in range(3000)]
        for start in range(0, 3000, 500):
            await there.publish(there.leader, *sent[start : start + 500])
        partition = there.stream(there.leader)._partition
        partition.log._tail = type(partition.log._tail)(0, partition.log.log_end_offset, partition.log._tail._budget)
        number = there.without
        readers = [Reader(there.engines[number], prefetch=400) for _ in range(3)]
        for at, reader in enumerate(readers):
            await reader.read("s", 100 * at)
        for at, reader in enumerate(readers):
            assert await read(reader, 3000 - 100 * at) == sent[100 * at :]
        partition.log.delete_prefix(2000)
        late = Reader(there.engines[number], prefetch=400)
        await late.read("s", "first")
        assert (await read(late, 1))[0] == sent[2000]
        await there.brokers[1].server.broker.delete_queue("s")
        await until(lambda: all(reader.events == [("cancelled", "c")] for reader in (*readers, late)))


def test_a_leader_that_is_killed_costs_a_pause(tmp_path: Path) -> None:
    """Clients of a broker without a replica read and write while the leader is killed: nothing is missing."""
    with cluster_processes(tmp_path, relayed=False) as cluster:
        with BlockingClient(cluster.server(1)) as native:
            native.create_topic("s", config={"replication.factor": "2"})
        cluster.until_whole(topics=["s"])
        (partition,) = [one for one in cluster.status(1)["partitions"] if one["topic"] == "s"]
        (without,) = set(cluster.brokers) - set(partition["replicas"])
        address = pika.ConnectionParameters("127.0.0.1", cluster.brokers[without].amqp_port, heartbeat=0)
        with pika.BlockingConnection(address) as writing, pika.BlockingConnection(address) as reading:
            writer, reader = writing.channel(), reading.channel()
            writer.queue_declare("s", durable=True, arguments=STREAM)
            writer.confirm_delivery()
            reader.basic_qos(prefetch_count=50)
            messages = reader.consume("s", arguments={"x-stream-offset": "first"}, inactivity_timeout=20)
            sent: list[bytes] = []
            got: list[bytes] = []
            for number in range(120):
                if number == 60:
                    cluster.kill9(partition["leader"])
                body = b"%d" % number
                while True:
                    try:
                        writer.basic_publish("", "s", body, pika.BasicProperties(delivery_mode=2))
                        break
                    except NackError:
                        time.sleep(0.05)
                sent.append(body)
                if number % 2:
                    got.append(_taken(reader, messages))
            while got[-1] != sent[-1]:
                got.append(_taken(reader, messages))
            assert list(dict.fromkeys(got)) == sent, "what was refused may be there twice"


def _taken(channel: Any, messages: Iterator[Any]) -> bytes:
    method, _, body = next(messages)
    assert method is not None, "nothing came for so long"
    channel.basic_ack(method.delivery_tag)
    found: bytes = body
    return found
