"""A broker that etcd does not reach, though the others do, does not know what was declared since."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from routing.errors import StorageUnavailable
from tests.support.home_cluster import Member, Mesh, mesh, until


async def cut_off(brokers: Mesh, me: int) -> Member:
    """Have etcd reach a broker no more; it once its lease has ended."""
    member = brokers.members[me]
    member.one.transport.cut_off = True
    await until(lambda: member.part.has_no_lease and me not in brokers.members[1].part.members.brokers)
    return member


async def test_what_goes_where_a_broker_cannot_know_is_refused(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await one.broker.declare_exchange("e", "direct", durable=True)
        await one.queue("before")
        alone = await cut_off(brokers, 3)
        client = alone.client()
        await client.publish_safely("k", "unbound", exchange="e")
        assert client.events == [("confirm", 1)], "as long as nothing has changed it knows"
        assert alone.part.serves
        await one.queue("since")
        await one.bind("e", "since", "k")
        await until(lambda: alone.part.is_outdated, 1)
        assert not alone.part.serves
        client.events.clear()
        client.publish("k", "1", exchange="e", confirm=True, mandatory=True)
        client.publish("since", "2", confirm=True)
        alone.turn()
        assert client.events == [("refuse", 2, 2), ("refuse", 3, 3)], "there is a queue, and it would be lost"
        with pytest.raises(StorageUnavailable):
            client.publish("k", "3", exchange="e")
        await client.publish_safely("before", "4")
        assert client.events[-1] == ("confirm", 4), "where a queue lies that it knows of does not depend on that"
        alone.one.transport.cut_off = False
        await until(lambda: not alone.part.has_no_lease and "since" in alone.broker.topology.queues)
        await client.publish_safely("k", "5", exchange="e")
        assert await one.drain("since") == [("5", False)]


async def test_a_transaction_of_such_a_broker_is_refused(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True, patience_s=0.5) as brokers:
        one = brokers.members[1]
        await one.broker.declare_exchange("e", "direct", durable=True)
        await one.queue("before")
        alone = await cut_off(brokers, 3)
        await one.queue("since")
        await until(lambda: alone.part.is_outdated, 1)
        client = alone.client()
        client.session.begin()
        client.publish("k", "1", exchange="e")
        with pytest.raises(StorageUnavailable, match="cut off from etcd"):
            await client.session.commit()
        client.publish("before", "2")
        await client.session.commit()
        assert {body for body, _ in await one.drain("before")} == {"2"}


async def test_no_broker_is_outdated_while_etcd_is_away_for_all(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True, patience_s=0.5) as brokers:
        one = brokers.members[1]
        await one.broker.declare_exchange("e", "direct", durable=True)
        await one.queue("q")
        await one.bind("e", "q", "k")
        members = brokers.members.values()
        for member in members:
            member.one.transport.cut_off = True
        await until(lambda: all(member.part.has_no_lease for member in members))
        for member in members:
            client = member.client()
            await client.publish_safely("k", member.me, exchange="e")
            assert client.events == [("confirm", 1)]
        for member in members:
            member.one.transport.cut_off = False
            await until(lambda member=member: not member.part.has_no_lease)
            assert not any(other.part.is_outdated for other in members), "who comes back first changes no topology"


async def test_none_is_outdated_either_as_another_one_began_later(autojump_clock: MockClock) -> None:
    """It says that all may have changed when it read what there is: the others know as much."""
    async with mesh(serve_each_other=True, patience_s=0.5) as brokers:
        await brokers.members[1].broker.declare_exchange("e", "direct", durable=True)
        await brokers.add(3, await brokers.kill(3))
        members = brokers.members.values()
        await until(lambda: all(len(member.part.members.brokers) == 3 for member in members))
        await brokers.settled(0)
        for member in members:
            member.one.transport.cut_off = True
        await until(lambda: all(member.part.has_no_lease for member in members))
        await trio.sleep(1)
        assert [member.part.is_outdated for member in members] == [False] * 3
        for member in members:
            member.one.transport.cut_off = False


async def test_who_hears_nobody_does_not_know_what_has_changed(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True) as brokers:
        await brokers.members[1].broker.declare_exchange("e", "direct", durable=True)
        alone = await cut_off(brokers, 3)
        client = alone.client()
        await client.publish_safely("k", "unbound", exchange="e")
        alone.cut()
        await until(lambda: alone.part.is_outdated, 2.1)
        client.publish("k", "1", exchange="e", confirm=True)
        alone.turn()
        assert client.events == [("confirm", 1), ("refuse", 2, 2)]
