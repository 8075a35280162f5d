"""Records that wait for their turn (`millrace.priority.group`) in a topic of several brokers."""

from __future__ import annotations

from core_log.record_batch import validate
from routing.republishing.parked_records import GroupReleaser
from routing.topics.topic_partition import TopicPartition
from tests.core_log.helpers import read_all
from tests.routing.republishing.test_delayed_records import batch
from tests.support.home_cluster import Member, Mesh, mesh, until

CONFIG = {"millrace.priority.group": "g", "millrace.priority.ahead": "1", "min.insync.replicas": "2"}


async def waiting_beside(brokers: Mesh) -> tuple[Member, TopicPartition, str]:
    """A topic that one broker leads, as it does the queue of what waits for it, of which the first record is there."""
    for number in range(20):
        name = f"t{number}"
        await brokers.members[1].broker.create_topic(name, partitions=1, config=CONFIG)
        await until(lambda name=name: all(name in one.broker.topics for one in brokers.members.values()))  # type: ignore[misc]

        def leader(name: str = name) -> Member | None:
            for member in brokers.members.values():
                leadership = member.broker.topics[name].partitions[0].leadership
                assert leadership is not None
                if leadership.refusal() is None and len(leadership.standing.isr) == len(brokers.members):
                    return member
            return None

        await until(leader)
        found = leader()
        assert found is not None
        partition, data = found.broker.topics[name].partitions[0], batch("1", "1", "1", name="x-priority")
        await found.broker.delayed.park(partition, [validate(data)], [data])
        queue = f"millrace.waiting.{name}.0"
        if found.leads(found.broker.topology.queues[queue].partition.index):
            await until(lambda partition=partition: partition.log.high_watermark == 1)  # type: ignore[misc]
            return found, partition, queue
    raise AssertionError("no queue is where its topic is")


async def test_too_few_in_sync_for_a_while_have_nothing_appended_twice() -> None:
    """What waited to be committed was given out again, though its leader went on leading, and had it."""
    async with mesh(2, serve_each_other=True) as brokers:
        leader, partition, queue = await waiting_beside(brokers)
        leadership, log = partition.leadership, partition.log
        assert leadership is not None
        there = leader.broker.topology.queues[queue]
        await until(lambda: there.outstanding == 0)
        (other,) = (member for member in brokers.members.values() if member is not leader)
        files = await brokers.kill(other.me)
        releaser = leader.broker.delayed._releasers[queue]
        assert isinstance(releaser, GroupReleaser)
        releaser._got_to(1)
        leader.turn()
        await until(lambda: leadership.shortage() is not None)
        assert (log.log_end_offset, log.high_watermark, there.outstanding) == (2, 1, 1)
        releaser.follow()
        releaser._got_to(2)
        assert not releaser.writable(), "it has room, and nobody takes anything"
        await brokers.add(other.me, files)
        await until(lambda: log.log_end_offset == log.high_watermark == 3 and there.outstanding == 0)
        assert read_all(log) == [(0, b"v0"), (1, b"v1"), (2, b"v2")]
