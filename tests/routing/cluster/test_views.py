"""Views in a cluster: led where their homes are, over partitions that others lead, and taken over by the next one."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from core_log.absent_log import AbsentLog
from routing.cluster.metadata.log_names import topic_log
from routing.errors import PreconditionFailed
from routing.queues.view_queue import ViewQueue
from routing.session import Outcome
from routing.topics.topic_partition import TopicPartition
from tests.routing.harness import TRANSIENT, Client
from tests.routing.queues.test_damaged_views import flip
from tests.routing.queues.test_views import batch
from tests.support.home_cluster import Member, Mesh, mesh, until

VIEW = {"x-queue-type": "view", "x-view-topic": "t"}


def home_of(found: Mesh) -> int:
    return next(iter(found.members.values())).broker.topology.queues["v"].partition.index


async def publish(member: Member, *bodies: str) -> None:
    """Each message for itself, until all are confirmed."""
    with trio.fail_after(30):
        for body in bodies:
            while True:
                client = member.client()
                client.publish(f"k{body}", body, exchange="x", confirm=True)
                member.turn()
                await until(lambda client=client: client.events)  # type: ignore[misc]
                client.session.close()
                if client.events == [("confirm", 1)]:
                    break
                await trio.sleep(0.02)


async def worker(member: Member) -> Client:
    client = member.client()
    client.session.set_prefetch(5, per_session=False)
    await client.consume("v")
    return client


async def test_a_view_goes_on_where_its_leader_ended_whoever_has_the_partitions() -> None:
    async with mesh(serve_each_other=True) as found:
        first = found.members[1]
        await first.broker.create_topic("t", partitions=3, config={"replication.factor": "2"})
        await first.broker.declare_queue("v", durable=True, arguments=VIEW)
        await first.broker.declare_exchange("x", "topic", durable=True)
        await first.broker.bind("queue", "v", "x", "#")
        for one in found.members.values():
            await until(lambda one=one: "v" in one.broker.topology.queues and "t" in one.broker.topics)  # type: ignore[misc]
        logs = [p.log for one in found.members.values() for p in one.broker.topics["t"].partitions]
        assert sum(isinstance(log, AbsentLog) for log in logs) == 3, "each partition is missing at one of them"
        sent = [str(number) for number in range(60)]
        await publish(found.members[2], *sent[:30])
        leader = await found.settled(home_of(found))
        assert isinstance(leader.broker.topology.queues["v"], ViewQueue)
        taker = next(one for one in found.members.values() if one is not leader)
        client = await worker(taker)
        acknowledged: list[str] = []

        def work() -> int:
            for one in client.take():
                acknowledged.append(one.body)
                client.session.settle(one.id, one.id, Outcome.ACK)
            taker.turn()
            return len(acknowledged)

        await until(lambda: work() >= 20)
        index = home_of(found)
        log = leader.log(index)
        await until(lambda: log.high_watermark == log.log_end_offset)
        settled = set(acknowledged)
        await found.kill(leader.me)
        await until(lambda: any(one.leads(index) for one in found.members.values()))
        await publish(taker, *sent[30:])
        await until(lambda: work() and set(acknowledged) == set(sent))
        again = {body for body, count in Counter(acknowledged).items() if count > 1}
        assert len(again) <= 15, "only what was with the worker, or acknowledged just before"
        assert len(settled - again) >= 10
        info = await taker.broker.check_queue("v")
        assert info.message_count == 0


async def test_what_is_damaged_of_a_replica_is_read_at_its_leader() -> None:
    async with mesh(serve_each_other=True) as found:
        first = found.members[1]
        await first.broker.create_topic("t", partitions=3, config={"index.interval.bytes": "0"})
        await first.broker.declare_queue("v", durable=True, arguments=VIEW | {"x-stream-offset": "first"})
        for one in found.members.values():
            await until(lambda one=one: "v" in one.broker.topology.queues and "t" in one.broker.topics)  # type: ignore[misc]
        reader = await found.settled(home_of(found))

        def led_elsewhere() -> list[int]:
            led = [one.forward is None for one in reader.broker.topics["t"].partitions]
            return [index for index, here in enumerate(led) if not here] if any(led) else []

        await until(led_elsewhere)
        index = led_elsewhere()[0]
        partitions = [one.broker.topics["t"].partitions[index] for one in found.members.values()]
        for number in range(20):
            await until(lambda: any(one.forward is None for one in partitions))
            leader = next(one for one in partitions if one.forward is None)
            leader.append(batch(number))
            leader.log.request_sync()
            for one in found.members.values():
                one.turn()
        replica = reader.broker.topics["t"].partitions[index].log
        await until(lambda: replica.high_watermark == 20)
        flip(reader.files, replica, 10)
        client = await worker(reader)
        got: list[str] = []

        def work() -> int:
            for one in client.take():
                got.append(one.body)
                client.session.settle(one.id, one.id, Outcome.ACK)
            reader.turn()
            return len(got)

        await until(lambda: work() >= 20)
        assert sorted(map(int, got)) == list(range(20))
        assert replica.unreadable
        assert reader.broker.topology.queues["v"].view.gone == 0  # type: ignore[attr-defined]


async def spread_view(found: Mesh) -> Member:
    """A view of a topic of which each broker lacks a partition; who leads it."""
    first = found.members[1]
    await first.broker.create_topic("t", partitions=3, config={"replication.factor": "2"})
    await first.broker.declare_queue("v", durable=True, arguments=VIEW)
    await first.broker.declare_exchange("x", "topic", durable=True)
    await first.broker.bind("queue", "v", "x", "#")
    for one in found.members.values():
        await until(lambda one=one: "v" in one.broker.topology.queues and "t" in one.broker.topics)  # type: ignore[misc]
    return await found.settled(home_of(found))


async def test_what_was_given_out_is_marked_where_the_taker_knew_less_of_partitions_it_does_not_have() -> None:
    async with mesh(serve_each_other=True) as found:
        leader = await spread_view(found)
        index = home_of(found)
        await publish(leader, *map(str, range(10)))
        read: list[object] = []
        for one in found.members.values():
            feed = one.broker.topology.queues["v"].host.topic_feed("t", lambda: None)
            for partition, source in zip(one.broker.topics["t"].partitions, feed.sources(), strict=True):
                end = (await partition.ends())[1]
                await until(lambda source=source, end=end: source.end == end)  # type: ignore[misc]
                source.load(0, read.append)  # as another view has it in memory there
        await until(lambda: len(read) == 9)
        sent = {str(number) for number in range(40)}
        await publish(leader, *map(str, range(10, 40)))
        partitions = leader.broker.topics["t"].partitions
        for partition in partitions:
            await partition.ends()
        await until(lambda: sum(one.log.high_watermark for one in partitions) == 40)
        leader.cut()  # so that nobody hears what it gives out
        client = leader.client()
        client.session.set_prefetch(0, per_session=False)
        await client.consume("v")
        leader.turn()
        given: set[str] = set()
        here = sum(one.log.high_watermark for one in partitions if one.is_here)
        await until(lambda: given.update(one.body for one in client.take()) or len(given) >= here)
        await found.kill(leader.me)
        await until(lambda: any(one.leads(index) for one in found.members.values()))
        taker = found.leader(index)
        again = taker.client()
        again.session.set_prefetch(0, per_session=False)
        await again.consume("v")
        taker.turn()
        await until(lambda: len(again.deliveries) >= 40)
        assert {one.body for one in again.deliveries} == sent
        assert [one.body for one in again.deliveries if one.body in given and not one.redelivered] == []
        await publish(taker, "fresh")
        await until(lambda: len(again.deliveries) == 41)
        assert (again.deliveries[-1].body, again.deliveries[-1].redelivered) == ("fresh", False)


async def test_who_has_published_counts_and_purges_it_whatever_the_leader_of_the_view_knows_of_the_topic() -> None:
    async with mesh(serve_each_other=True) as found:
        leader = await spread_view(found)
        other = next(one for one in found.members.values() if one is not leader)
        for asked in (leader, other):
            for _ in range(5):
                await publish(other, *map(str, range(3)))
                assert (await asked.broker.check_queue("v")).message_count == 3
                assert await asked.broker.purge_queue("v") == 3
                assert (await asked.broker.check_queue("v")).message_count == 0
        client = await worker(leader)
        await publish(other, "fresh")
        await until(lambda: client.deliveries)
        assert client.take_bodies() == ["fresh"]


async def test_who_has_published_gets_it_whether_or_not_anybody_has_waited_for_it() -> None:
    async with mesh(serve_each_other=True) as found:
        leader = await spread_view(found)
        other = next(one for one in found.members.values() if one is not leader)
        for asked in (leader, other):
            for number in range(6):
                await publish(other, f"confirmed {number}")
                got = await asked.client().session.get("v", no_ack=True)
                assert got is not None
                assert got.slab.bodies[got.index] == f"confirmed {number}".encode()
                other.client().publish(f"k{number}", f"{number}", exchange="x", properties=TRANSIENT)
                other.turn()
                got = await other.client().session.get("v", no_ack=True)
                assert got is not None
                assert got.slab.bodies[got.index] == f"{number}".encode()
        assert await leader.client().session.get("v", no_ack=True) is None


async def test_one_that_begins_at_a_time_has_what_the_broker_that_declares_it_does_not_know_of() -> None:
    async with mesh(serve_each_other=True) as found:
        first, members = found.members[1], list(found.members.values())
        await first.broker.create_topic("t")
        await first.broker.declare_exchange("x", "topic", durable=True)
        await first.broker.bind("topic", "t", "x", "#")
        await until(lambda: all("t" in one.broker.topics for one in members))
        await until(lambda: any(one.broker.topics["t"].partitions[0].forward is None for one in members))
        other = next(one for one in members if one.broker.topics["t"].partitions[0].forward is not None)
        await until(lambda: other.broker.topics["t"].partitions[0].is_here)
        await publish(other, "new")
        assert not other.broker.topics["t"].partitions[0].log.high_watermark
        await other.broker.declare_queue("v", durable=True, arguments=VIEW | {"x-stream-offset": "1h"})
        assert (await other.broker.check_queue("v")).message_count == 1


async def test_a_view_is_not_deleted_as_empty_when_records_have_just_been_confirmed() -> None:
    async with mesh(serve_each_other=True) as found:
        leader = await spread_view(found)
        other = next(one for one in found.members.values() if one is not leader)
        for asked in (leader, other):
            for number in range(5):
                await publish(other, str(number))
                with pytest.raises(PreconditionFailed):
                    await asked.broker.delete_queue("v", if_empty=True)
                assert await asked.broker.purge_queue("v") == 1
        assert await leader.broker.delete_queue("v", if_empty=True) == 0


async def test_a_new_leader_says_how_far_its_log_is_committed_when_it_knows_no_less_than_the_one_before() -> None:
    async with mesh(serve_each_other=True) as found:
        await spread_view(found)
        await publish(found.members[1], "known")
        partitions = [one.broker.topics["t"].partitions for one in found.members.values()]
        index = next(index for index, one in enumerate(partitions[0]) if one.forward is not None)
        name = topic_log(found.members[1].broker.topics["t"].uid, index)
        leader = next(one for one in found.members.values() if one.part.role_of(name) is not None)
        role = leader.part.role_of(name)
        assert role is not None
        end = role.log.high_watermark
        role.epoch_start = end + 1
        with trio.move_on_after(0.2) as waited:
            await partitions[0][index].ends()
        assert waited.cancelled_caught
        role.epoch_start = end
        assert (await partitions[0][index].ends())[1] == end


async def test_a_topic_that_is_made_anew_while_a_view_of_it_is_declared_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mesh(serve_each_other=True) as found:
        first, second = found.members[1].broker, found.members[2].broker
        await first.create_topic("t", partitions=2)
        await first.declare_exchange("x", "topic", durable=True)
        await first.bind("topic", "t", "x", "#")
        await until(lambda: "t" in second.topics)
        await publish(found.members[1], *map(str, range(10)))
        ends, asked = TopicPartition.ends, []

        async def made_anew(partition: TopicPartition) -> tuple[int, int]:
            answer = await ends(partition)
            asked.append(answer)
            if len(asked) == 2:
                await first.delete_topic("t")
                await first.create_topic("t", partitions=2)
                await until(lambda: "t" in second.topics and partition not in second.topics["t"].partitions)
            return answer

        monkeypatch.setattr(TopicPartition, "ends", made_anew)
        arguments = VIEW | {"x-stream-offset": "next"}
        with pytest.raises(PreconditionFailed, match="is being changed by others"):
            await second.declare_queue("v", durable=True, arguments=arguments)
        await second.declare_queue("v", durable=True, arguments=arguments)
        assert sum(end for _, end in asked[:2]) == 10
        await first.bind("topic", "t", "x", "#")
        await publish(found.members[1], "new")
        await until(lambda: "v" in first.topology.queues)
        assert (await first.check_queue("v")).message_count == 1
