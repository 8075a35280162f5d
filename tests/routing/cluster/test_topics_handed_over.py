"""Partitions of topics whose leader hands over while somebody publishes to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from core_log.producer_states import ProducerStates
from core_log.record_batch import validate
from routing.clients import Client
from routing.cluster.metadata import operating
from routing.cluster.metadata.log_names import topic_log
from routing.errors import NotLeader, StorageUnavailable
from routing.topics import topic_partition
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
        return bool(found) and len(found[0][1].leadership.standing.isr) == len(brokers.members)  # type: ignore[union-attr]

    await until(leads)
    return found[0]


async def led_stream(brokers: Mesh) -> tuple[Member, TopicPartition]:
    """The same of a topic that is a stream, as all brokers know."""
    leader, partition = await led(brokers)
    await leader.broker.declare_queue("t", durable=True, arguments={"x-queue-type": "stream"})
    await until(lambda: all("t" in one.broker.topology.vhosts["/"].streams for one in brokers.members.values()))
    return leader, partition


async def test_a_leader_says_no_end_that_may_be_before_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not told of the last that was committed, and too few are in sync to commit it again."""
    monkeypatch.setattr(topic_partition, "_LATEST_TIMEOUT_S", 0.05)
    async with mesh() as brokers:
        first, partition = await led(brokers, **{"min.insync.replicas": "2"})
        second, third = (member for member in brokers.members.values() if member is not first)
        await brokers.kill(third.me)
        await until(lambda: len(partition.leadership.standing.isr) == 2)  # type: ignore[union-attr]
        for other, mine, theirs in second.links:
            (mine if other is first else theirs).is_cut = True  # its reports are lost, not what it is sent
        partition.log.append(make_batch([b"x"]))
        first.turn()
        (left,) = second.broker.topics["t"].partitions
        await until(lambda: left.log.log_end_offset == 1)
        assert (left.log.high_watermark, left.leadership.standing.leader) == (0, first.me)  # type: ignore[union-attr]
        files = await brokers.kill(first.me)
        await until(lambda: left.leadership.refusal() is None)  # type: ignore[union-attr]
        with pytest.raises(NotLeader, match="has not heard yet how far it was committed"):
            await left.latest()
        await brokers.add(first.me, files)
        await until(lambda: left.log.high_watermark == 1)
        assert await left.latest() == 1


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
        leader, _ = await led_stream(brokers)
        clients = {member: member.client() for member in members}
        number = dict.fromkeys(members, 0)
        going = True

        async def publish(member: Member) -> None:
            while going:
                clients[member].publish("t", f"{member.me}-{number[member]}", confirm=True)
                number[member] += 1
                member.turn()
                await trio.sleep(0.004)

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(publish, member)
            for _ in range(2):
                leader = next(member for member in members if leads(member))
                await leader.one.members.update(draining=True)
                await until(lambda leader=leader: any(leads(one) for one in members if one is not leader))  # type: ignore[misc]
                await leader.one.members.update(draining=False)
                await trio.sleep(0.02)
            going = False
        for member, client in clients.items():
            await until(lambda client=client, member=member: client.confirmed == number[member])  # type: ignore[misc]
        await until(lambda: any(map(leads, members)))
        (partition,) = next(filter(leads, members)).broker.topics["t"].partitions
        found = [str(value or b"", "ascii") for _, value in read_all(partition.log)]
        for member, client in clients.items():
            assert not [told for told in client.events if told[0] == "refuse"]
            own = [text for text in found if text.startswith(f"{member.me}-")]
            assert own == [f"{member.me}-{n}" for n in range(number[member])]


async def test_what_is_published_at_its_leader_waits_for_replicas_in_sync() -> None:
    async with mesh(serve_each_other=True) as brokers:
        leader, partition = await led_stream(brokers)
        client = leader.client()
        client.publish("t", "before", confirm=True)
        await until(lambda: leader.turn() or client.confirmed == 1)
        leader.cut()
        await until(lambda: partition.error() is not None)
        for number in range(3):
            client.publish("t", f"{number}", confirm=True)
            leader.turn()
        await trio.sleep(0.1)
        assert client.confirmed == 1
        brokers.link(leader)
        await until(lambda: partition.error() is None)
        client.publish("t", "after", confirm=True)
        await until(lambda: leader.turn() or client.confirmed == 5)
        assert not [told for told in client.events if told[0] == "refuse"]
        assert [value for _, value in read_all(partition.log)] == [b"before", b"0", b"1", b"2", b"after"]
        client.publish("t", "at last", confirm=True)
        await until(lambda: leader.turn() or client.confirmed == 6)
        assert partition.behind is None


async def test_what_waits_for_replicas_in_sync_is_refused_in_the_end() -> None:
    async with mesh(serve_each_other=True, patience_s=0.3) as brokers:
        leader, partition = await led_stream(brokers)
        client = leader.client()
        leader.cut()
        await until(lambda: partition.error() is not None)
        client.publish("t", "too long", confirm=True)
        leader.turn()
        assert not client.events
        await until(lambda: leader.turn() or client.events)
        assert client.events[0][:3] == ("refuse", 1, 1)
        brokers.link(leader)
        await until(lambda: partition.error() is None)
        client.publish("t", "in time", confirm=True)
        await until(lambda: leader.turn() or client.confirmed == 2)
        assert [value for _, value in read_all(partition.log)] == [b"in time"]


async def test_who_waits_at_a_leader_that_is_cut_off_from_the_metadata_alone_is_told_in_the_end() -> None:
    """Brokers reach each other, and clients all of them: nobody tells this one that another leads."""
    async with mesh(serve_each_other=True, patience_s=0.3, housekeeping_interval_ms=20) as brokers:
        leader, partition = await led(brokers)
        others = [member for member in brokers.members.values() if member is not leader]
        told: list[StorageUnavailable | None] = []
        leader.broker.commits.when_committed([(partition.log, partition.log.log_end_offset + 1)], told.append)
        closed: list[str] = []
        sent_on: list[str] = []
        leader.broker.connect(object(), Client("p", "guest", "/", "", closed.append))
        leader.broker.connect(object(), Client("q", "guest", "/", "", closed.append, send_on=sent_on.append))
        leader.one.transport.cut_off = True
        await others[0].one.store.revoke(leader.one.store.lease_id)
        await until(lambda: any(leads(member) for member in others))
        assert partition.leadership is not None
        assert partition.leadership.standing.leader == leader.me, "it does not know"
        await until(lambda: told)
        assert isinstance(told[0], NotLeader)
        assert "may not act as the leader" in str(told[0])
        await until(lambda: sent_on)
        assert not closed, "who does not ask it for leaders may stay"
        leader.one.transport.cut_off = False


def leads(member: Member) -> bool:
    (partition,) = member.broker.topics["t"].partitions
    return partition.leadership is not None and partition.leadership.refusal() is None


async def test_a_topic_that_is_deleted_keeps_no_publisher_waiting() -> None:
    async with mesh(serve_each_other=True) as brokers:
        members = list(brokers.members.values())
        leader, _ = await led_stream(brokers)
        clients = {member: member.client() for member in members}
        partitions = {member: member.broker.topics["t"].partitions[0] for member in members}
        told: list[StorageUnavailable | None] = []
        log = partitions[leader].log
        leader.broker.commits.when_committed([(log, log.log_end_offset + 1)], told.append)
        for member, client in clients.items():
            client.publish("t", "x", confirm=True)
            member.broker.forget_partition(partitions[member])
            member.turn()
            assert client.events == [("confirm", 1)]
        assert [str(error) for error in told] == ["the log was closed"], "who appends to a topic itself is told"


async def test_a_minimum_that_is_set_again_is_that_of_all_partitions() -> None:
    """Somebody was killed, or was quicker, between the states of the logs and the topic's entry."""
    async with mesh() as brokers:
        leader, _ = await led(brokers, **{"min.insync.replicas": "1"})
        log = topic_log(leader.broker.topics["t"].uid, 0)
        await operating.require_insync(leader.part, [log], 3)
        await leader.broker.topic_control.alter_topic("t", lambda config: config | {"min.insync.replicas": "1"})
        state = leader.part.state_of(log)
        assert state is not None
        assert (state.min_insync, state.minimum) == (1, 1)
        await operating.require_insync(leader.part, [log], 3)
        await leader.broker.topic_control.alter_topic("t", lambda config: {})
        state = leader.part.state_of(log)
        assert state is not None
        assert (state.min_insync, state.minimum, state.firm) == (2, 2, False)


async def test_of_two_minima_that_are_set_at_once_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh() as brokers:
        leader, _ = await led(brokers)
        other = next(member for member in brokers.members.values() if member is not leader)
        control = leader.broker.topic_control
        write = control._alter

        async def write_later(name: str, config_of: Callable[[], dict[str, str]]) -> None:
            await other.broker.topic_control.alter_topic("t", lambda config: config | {"min.insync.replicas": "1"})
            await write(name, config_of)

        monkeypatch.setattr(control, "_alter", write_later)
        await control.alter_topic("t", lambda config: config | {"min.insync.replicas": "3"})
        assert leader.broker.topics["t"].config["min.insync.replicas"] == "3"
        state = leader.part.state_of(topic_log(leader.broker.topics["t"].uid, 0))
        assert state is not None
        assert (state.min_insync, state.minimum) == (3, 3)


async def test_a_minimum_of_two_counts_at_once_on_two_brokers() -> None:
    async with mesh(2) as brokers:
        leader, _ = await led(brokers, **{"min.insync.replicas": "2"})
        state = leader.part.state_of(topic_log(leader.broker.topics["t"].uid, 0))
        assert state is not None
        assert (len(state.replicas), state.min_insync) == (2, 2)
        await leader.broker.topic_control.alter_topic("t", lambda config: {})
        state = leader.part.state_of(topic_log(leader.broker.topics["t"].uid, 0))
        assert state is not None
        assert (state.min_insync, state.minimum) == (1, 2), "as if nobody had asked for any"


async def test_what_came_before_a_leader_is_told_of_again_keeps_its_place() -> None:
    """As when it may serve at last, or leads in another epoch, in the midst of a turn."""
    async with mesh() as brokers:
        leader, partition = await led_stream(brokers)
        name = topic_log(leader.broker.topics["t"].uid, 0)
        client = leader.client()
        client.publish("t", "1", "2", "3", confirm=True)
        leader.part._tell(name)
        leader.turn()
        client.publish("t", "4", confirm=True)
        leader.part._tell(name)
        client.publish("t", "5", confirm=True)
        leader.turn()
        await until(lambda: client.confirmed == 5)
        assert partition.next_offset == partition.log.log_end_offset == 5
