"""Partitions of topics whose leader hands over while somebody publishes to them."""

from __future__ import annotations

import pytest
import trio

from core_log.producer_states import ProducerStates
from core_log.record_batch import validate
from routing.errors import NotLeader
from routing.topics.topic_partition import TopicPartition
from tests.core_log.helpers import make_batch
from tests.protocols.kafka.door import idempotent
from tests.support.home_cluster import Member, Mesh, mesh, until


async def led(brokers: Mesh, **config: str) -> tuple[Member, TopicPartition]:
    """A topic of one partition, which all brokers have in sync; who leads it."""
    await brokers.members[1].broker.create_topic("t", partitions=1, config=config)
    found: list[tuple[Member, TopicPartition]] = []

    def leads() -> bool:
        for member in brokers.members.values():
            topic = member.broker.topics.get("t")
            if topic is None:
                return False
            (partition,) = topic.partitions
            if partition.leadership is not None and partition.leadership.refusal() is None:
                found.append((member, partition))
        return bool(found) and len(found[0][1].leadership.standing.isr) == 3  # type: ignore[union-attr]

    await until(leads)
    return found[0]


@pytest.mark.parametrize("config", [{}, {"millrace.deduplication.window.ms": "60000"}], ids=["plain", "ids"])
async def test_who_reads_of_producers_meanwhile_appends_nothing_to_what_another_leads(config: dict[str, str]) -> None:
    async with mesh(serve_each_other=True) as brokers:
        leader, partition = await led(brokers, **config)
        known = partition.producers.states

        async def states() -> ProducerStates:
            found = await known()
            await leader.one.members.update(draining=True)
            await until(lambda: partition.forward is not None)
            return found

        partition.producers.states = states  # type: ignore[method-assign]
        batch = idempotent(make_batch([b"x"]), 7, 0, 0)
        with pytest.raises(NotLeader), trio.fail_after(10):
            await partition.append_once([validate(batch)], [batch])
        assert partition.log.log_end_offset == 0
