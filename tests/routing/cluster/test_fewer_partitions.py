"""What becomes of a topic's partitions when etcd is put back to before it got them, under brokers that run."""

from __future__ import annotations

from trio.testing import MockClock

from core_log.absent_log import AbsentLog
from routing.queues.view_queue import ViewQueue
from routing.topics.topic import Topic
from tests.support.home_cluster import Member, mesh, until

VIEW = {"x-queue-type": "view", "x-view-topic": "t"}


def topic_of(member: Member) -> Topic:
    return member.broker.topics["t"]


def seen_by_view(member: Member) -> int | None:
    """How many partitions the view has, where it is led."""
    queue = member.broker.topology.queues["v"]
    return len(queue.view.sources) if isinstance(queue, ViewQueue) else None


async def test_partitions_that_etcd_has_lost_are_gone_and_may_be_made_again(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True) as brokers:
        members = brokers.members.values()
        one = brokers.members[1]
        await one.broker.create_topic("t", partitions=3)
        await one.broker.declare_queue("v", durable=True, arguments=VIEW)
        topic = topic_of(one)
        await brokers.settled(one.broker.topology.queues["v"].partition.index)
        backup = brokers.model.revision
        await one.broker.create_partitions("t", 5)
        for member in members:
            await until(lambda member=member: len(topic_of(member).partitions) == 5)
            assert seen_by_view(member) in (None, 5)
        assert [seen_by_view(member) for member in members].count(5) == 1
        lost = {f"topic-{topic.uid}-{index}" for index in (3, 4)}
        places = [topic.partitions[index].log.directory for index in (3, 4)]
        brokers.model.restore(backup)
        for member in members:
            await until(lambda member=member: len(topic_of(member).partitions) == 3)
            assert seen_by_view(member) in (None, 3)
            assert not lost.intersection(member.part.replicas.by_name), "nobody leads what nobody knows"
            assert all(member.files.exists(place) for place in places), "it is nobody's to remove"
        await until(lambda: not one.part.elections.leaderless)
        await one.broker.create_partitions("t", 5)
        for member in members:
            await until(lambda member=member: len(topic_of(member).partitions) == 5)
        for index in range(5):
            name = f"topic-{topic.uid}-{index}"
            await until(lambda name=name: any(member.part.may_append(name) for member in members))
            assert not any(isinstance(topic_of(member).partitions[index].log, AbsentLog) for member in members)
