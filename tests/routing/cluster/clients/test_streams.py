"""A stream is read at a broker that has no replica of it, while its leader is killed and replaced."""

from __future__ import annotations

from collections.abc import Callable
from gc import collect
from weakref import ref

import pytest
import trio

from core_log.absent_log import AbsentLog
from core_log.replica_log import ReplicaLog
from routing import filter_streams
from routing.cluster.clients import remote_log, served_logs
from routing.errors import StorageUnavailable
from routing.session import Outcome
from routing.topics.stream import Stream
from tests.routing.harness import TRANSIENT
from tests.routing.topics.test_streams import STREAM, Reader
from tests.support.home_cluster import Member, Mesh, mesh, until

FILTER = "millrace.mqtt.0"
HOUR_MS = 3_600_000


def stream_of(member: Member) -> Stream:
    return member.broker.topology.vhosts["/"].streams["s"]


async def made(found: Mesh, factor: int = 2) -> Member:
    """A stream with few replicas; a broker that has none."""
    first = found.members[1]
    await first.broker.create_topic("s", config={"replication.factor": str(factor)})
    await first.broker.declare_queue("s", durable=True, arguments=STREAM)
    await until(lambda: all("s" in one.broker.topology.vhosts["/"].streams for one in found.members.values()))
    await until(lambda: leaders(found))
    return next(one for one in found.members.values() if isinstance(stream_of(one)._partition.log, AbsentLog))


async def led(found: Mesh) -> Member:
    """Who leads a stream of which every broker has a replica in sync."""
    await found.members[1].broker.declare_queue("s", durable=True, arguments=STREAM)
    await until(lambda: all("s" in one.broker.topology.vhosts["/"].streams for one in found.members.values()))
    await until(lambda: leaders(found))
    (leader,) = leaders(found)
    await until(lambda: len(stream_of(leader)._partition.leadership.standing.isr) == 3)  # type: ignore[union-attr]
    return leader


def leaders(found: Mesh) -> list[Member]:
    return [one for one in found.members.values() if stream_of(one)._partition.error() is None and has_replica(one)]


def has_replica(member: Member) -> bool:
    partition = stream_of(member)._partition
    return isinstance(partition.log, ReplicaLog) and partition.forward is None


async def publish(member: Member, *bodies: object) -> bool:
    """Whether it was confirmed."""
    client = member.client()
    client.publish("s", *bodies, confirm=True)
    member.turn()
    await until(lambda: client.events)
    client.session.close()
    return client.events == [("confirm", len(bodies))]


async def publish_safely(member: Member, *bodies: object) -> None:
    with trio.fail_after(30):
        while not await publish(member, *bodies):
            await trio.sleep(0.02)


async def read(reader: Reader, enough: Callable[[], object]) -> list[str]:
    def look() -> object:
        reader.session.settle_up_to(0, Outcome.ACK)
        reader.engine.turn()
        return enough()

    await until(look)
    return reader.bodies


async def test_nothing_is_missing_or_out_of_order_when_leaders_are_killed() -> None:
    async with mesh(serve_each_other=True) as found:
        without = await made(found)
        reader, late = Reader(without, prefetch=7), Reader(without, prefetch=40)
        await reader.read("s", "first")
        sent: list[str] = []
        for round_ in range(3):
            for _ in range(20):
                bodies = [str(len(sent) + at) for at in range(5)]
                await publish_safely(without, *bodies)
                sent += bodies
                await read(reader, lambda: True)
            if round_ == 0:
                (leader,) = leaders(found)
                number, files = leader.me, await found.kill(leader.me)
            elif round_ == 1:
                await found.add(number, files)
        await late.read("s", 50, tag="late")
        for one, expected in ((reader, sent), (late, sent[50:])):
            bodies = await read(one, lambda one=one: one.bodies[-1:] == sent[-1:])  # type: ignore[misc]
            assert [body for body in dict.fromkeys(bodies) if int(body) >= 50] == sent[50:]
            assert [at for at, _, _ in one.got] == sorted({at for at, _, _ in one.got}), "each offset once, in order"
            assert set(expected[50:]) <= set(bodies)


async def test_what_is_not_persistent_is_read_from_another_replica_without_waiting_for_what_comes_behind_it() -> None:
    """Nobody waited for it at its leader, who did not sync it: it came seconds later, or with the next message."""
    async with mesh(serve_each_other=True) as found:
        leader, members = await led(found), found.members.values()
        publisher = leader.client()
        publisher.publish("s", "0", properties=TRANSIENT)
        leader.turn()
        readers = [Reader(one) for one in members if one is not leader]
        for at in range(1, 4):
            for reader in readers[at - 1 : at]:
                await reader.read("s", "first")
            for reader in readers[:at]:
                await until(lambda reader=reader, at=at: reader.take() or len(reader.got) == at, 8)  # type: ignore[misc]
            publisher.publish("s", f"{at}", properties=TRANSIENT)
            leader.turn()
        for one in members:
            reader_of_partition = stream_of(one)._reader
            assert reader_of_partition._is_asking == (one is not leader)


async def test_where_it_ends_is_told_as_soon_as_who_asks_leads_it_himself() -> None:
    """He waited ten seconds for another leader, and then a consumer of what comes next was refused."""
    async with mesh(serve_each_other=True) as found, trio.open_nursery() as nursery:
        leader, members = await led(found), found.members.values()
        await publish_safely(leader, *range(3))
        ends: list[int] = []

        async def ask(one: Member) -> None:
            ends.append((await stream_of(one)._partition.ends())[1])

        leader.cut()
        for one in members:
            if one is not leader:
                nursery.start_soon(ask, one)
        await found.kill(leader.me)
        await until(lambda: len(ends) == 2, 8)
        assert ends == [3, 3]


async def test_what_nobody_has_waited_for_counts_as_there_for_who_asks_another_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who wanted what comes next, at a broker that follows, got what was there before."""
    monkeypatch.setattr(served_logs, "_ENDS_WITHIN_S", 30.0)
    async with mesh(serve_each_other=True) as found:
        leader, members = await led(found), found.members.values()
        publisher = leader.client()
        count = 0
        for asked in (one for one in members if one is not leader):
            publisher.publish("s", "before", properties=TRANSIENT)
            leader.turn()
            count += 1
            assert (await asked.broker.check_queue("s")).message_count == count
            publisher.publish("s", "before", properties=TRANSIENT)
            leader.turn()
            reader = Reader(asked)
            await reader.read("s", "next")
            publisher.publish("s", "next", properties=TRANSIENT)
            leader.turn()
            count += 2
            await until(lambda reader=reader: reader.take() or reader.got, 8)  # type: ignore[misc]
            assert reader.bodies == ["next"]
            reader.session.close()


async def test_nothing_is_left_of_a_deleted_one_where_another_broker_has_published_to_it() -> None:
    async with mesh(serve_each_other=True) as found:
        without = await made(found)
        await publish_safely(without, "a")
        (leader,) = [one for one in leaders(found) if stream_of(one)._partition.forward is None and one is not without]
        serving = leader.broker.engine.serving  # type: ignore[union-attr]
        served, log = serving.links[without.me], ref(stream_of(leader)._partition.log)
        (name,) = [name for name in served._asked if name.startswith("topic-")]
        assert served.publisher is not None
        assert name in served.publisher.logs
        await without.broker.delete_queue("s")
        await until(lambda: not any(one.broker.topology.vhosts["/"].streams for one in found.members.values()))
        await until(lambda: name not in served.publisher.logs)  # type: ignore[union-attr]
        assert name not in served._asked
        assert name not in served._follows
        await until(lambda: collect() >= 0 and log() is None)


async def test_without_a_leader_readers_wait_and_what_needs_one_is_refused() -> None:
    async with mesh(serve_each_other=True) as found:
        without = await made(found, factor=1)
        forwarding = without.broker.engine.forwarding  # type: ignore[union-attr]
        forwarding.timeout_s = 0.2
        await publish_safely(without, *range(10))
        reader = Reader(without, prefetch=4)
        await reader.read("s", "first")
        await until(lambda: len(reader.got) == 4)
        (leader,) = leaders(found)
        number, files = leader.me, await found.kill(leader.me)
        await until(lambda: not leaders(found))
        with pytest.raises(StorageUnavailable):
            await without.broker.check_queue("s")
        with pytest.raises(StorageUnavailable):
            await Reader(without).read("s", "last", tag="other")
        forwarding.timeout_s = 30
        await found.add(number, files)
        await until(lambda: leaders(found))
        early = Reader(without)
        await early.read("s", 5, tag="early")
        assert await read(reader, lambda: len(reader.got) == 10) == [str(at) for at in range(10)]
        assert await read(early, lambda: len(early.got) == 5) == [str(at) for at in range(5, 10)]
        assert (await without.broker.check_queue("s")).message_count == 10


async def test_readers_at_many_places_ask_for_few_pieces_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh(serve_each_other=True, stream_cache_bytes=1 << 16, stream_read_bytes=1 << 14) as found:
        without = await made(found, factor=1)
        for start in range(0, 3000, 100):
            await publish_safely(without, *(f"{number} {'x' * 200}" for number in range(start, start + 100)))
        log = stream_of(without)._reader.log
        assert isinstance(log, remote_log.RemoteLog)
        reads = log._leaders._reads
        lowest = reads.value
        readers = [Reader(without, prefetch=50) for _ in range(50)]
        for at, reader in enumerate(readers):
            await reader.read("s", at * 50, tag=f"c{at}")

        def look() -> bool:
            nonlocal lowest
            lowest = min(lowest, reads.value)
            for reader in readers:
                reader.session.settle_up_to(0, Outcome.ACK)
            without.turn()
            return all(reader.got and reader.got[-1][0] == 2999 for reader in readers)

        await until(look)
        for at, reader in enumerate(readers):
            assert [offset for offset, _, _ in reader.got] == list(range(at * 50, 3000))
        assert lowest >= 0
        for reader in readers:
            reader.session.close()
        assert log._watch is None, "nobody waits any more"
        (leader,) = leaders(found)
        engine = leader.broker.engine
        assert engine is not None
        await publish_safely(without, "one more")  # what stood at the leader is answered
        await until(lambda: not any(served.logs._waiting for served in engine.serving.links.values()))


@pytest.mark.parametrize("factor", [1, 3], ids=["without a replica", "with one"])
async def test_the_stream_of_a_filter_stays_while_another_broker_has_consumers(factor: int) -> None:
    async with mesh(serve_each_other=True, filter_stream_expires_ms=HOUR_MS) as found:
        await found.members[1].broker.create_topic(FILTER, config={"replication.factor": str(factor)})
        await found.members[1].broker.declare_queue(FILTER, durable=True, arguments=STREAM)
        await until(lambda: all(FILTER in streams(one) for one in found.members.values()))
        await until(lambda: [one for one in found.members.values() if leads(one)])
        (leader,) = (one for one in found.members.values() if leads(one))
        other = next(one for one in found.members.values() if one is not leader)
        leases = streams(leader)[FILTER].topic.partitions[0].leases
        reader = Reader(other)
        await reader.read(FILTER, "next")
        for _ in range(2):
            leases.used, leases.idle_since_ms = False, 1
            await filter_streams.expire(other.broker)
            await until(lambda: leases.used)
        await filter_streams.expire(leader.broker)
        assert FILTER in streams(leader)
        reader.session.close()
        leases.used, leases.idle_since_ms = False, 1
        await filter_streams.expire(other.broker)
        await filter_streams.expire(leader.broker)
        assert FILTER not in streams(leader)


def streams(member: Member) -> dict[str, Stream]:
    return member.broker.topology.vhosts["/"].streams


def leads(member: Member) -> bool:
    leadership = streams(member)[FILTER].topic.partitions[0].leadership
    return leadership is not None and leadership.refusal() is None
