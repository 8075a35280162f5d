"""Partitions of topics whose leader hands over while somebody publishes to them."""

from __future__ import annotations

import pytest
import trio

from core_log.producer_states import ProducerStates
from core_log.record_batch import validate
from routing.errors import NotLeader
from routing.topics.topic_partition import TopicPartition
from tests.core_log.helpers import make_batch, read_all
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


async def test_what_is_published_at_any_broker_stays_in_its_order() -> None:
    """Also at the one that leads next: what it has sent and was not answered for comes before what it takes itself."""
    async with mesh(serve_each_other=True) as brokers:
        members = list(brokers.members.values())
        leader, partition = await led(brokers)
        await leader.broker.declare_queue("t", durable=True, arguments={"x-queue-type": "stream"})
        await until(lambda: all("t" in member.broker.topology.vhosts["/"].streams for member in members))
        clients = {member: member.client() for member in members}
        number = dict.fromkeys(members, 0)
        going = True

        async def publish(member: Member) -> None:
            while going:
                clients[member].publish("t", f"{member.me}-{number[member]}", confirm=True)
                number[member] += 1
                member.turn()
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(publish, member)
            for _ in range(4):
                leader = next(member for member in members if leads(member))
                await leader.one.members.update(draining=True)
                await until(lambda leader=leader: any(leads(one) for one in members if one is not leader))  # type: ignore[misc]
                await leader.one.members.update(draining=False)
                await trio.sleep(0.02)
            going = False
        for member, client in clients.items():
            await until(lambda client=client, member=member: client.confirmed == number[member])  # type: ignore[misc]
        found = [str(value or b"", "ascii") for _, value in read_all(partition.log)]
        for member, client in clients.items():
            refused = {n for told in client.events if told[0] == "refuse" for n in range(told[1] - 1, told[2])}
            own = [text for text in found if text.startswith(f"{member.me}-")]
            assert own == [f"{member.me}-{n}" for n in range(number[member]) if n not in refused]


def leads(member: Member) -> bool:
    (partition,) = member.broker.topics["t"].partitions
    return partition.leadership is not None and partition.leadership.refusal() is None
