"""What others have told of queues that end with them, when etcd was away for longer than leases last."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from routing.topology.interest import Interest
from tests.support.home_cluster import Mesh, mesh, until


def tell_all(brokers: Mesh) -> None:
    """Each has been told something by the others."""
    for member in brokers.members.values():
        assert member.broker.engine is not None
        for other in brokers.members.keys() - {member.me}:
            interest = Interest("/", "amq.topic", f"of.{other}", "topic", "")
            member.broker.engine.interests.on_told(other, True, [interest], [])


def known_to(brokers: Mesh, me: int) -> set[int]:
    engine = brokers.members[me].broker.engine
    assert engine is not None
    return set(engine.interests.known)


def takes_for_gone(brokers: Mesh, me: int, other: int) -> bool:
    """Whether it would do again what the process of another one has decided."""
    there, engine = brokers.members[other].broker.engine, brokers.members[me].broker.engine
    assert there is not None
    assert engine is not None
    key = b"%s%s" % (other.to_bytes(8, "big"), there.forwarding.process.to_bytes(8, "big"))
    assert engine.transactions is not None
    return engine.transactions._is_gone(key)


async def test_one_that_etcd_alone_does_not_reach_is_there_as_long_as_it_has_a_link(autojump_clock: MockClock) -> None:
    async with mesh(serve_each_other=True) as brokers:
        alone = brokers.members[3]
        alone.one.transport.cut_off = True
        await until(lambda: 3 not in brokers.members[1].part.members.brokers)
        await trio.sleep(5)
        assert not takes_for_gone(brokers, 1, 3)
        alone.cut()
        assert takes_for_gone(brokers, 1, 3)
        alone.one.transport.cut_off = False


@pytest.mark.parametrize("last", [1, 3])
async def test_brokers_that_register_anew_are_not_taken_for_gone(last: int, autojump_clock: MockClock) -> None:
    async with mesh() as brokers:
        tell_all(brokers)
        members = brokers.members.values()
        for member in members:
            member.one.transport.cut_off = True
        await until(lambda: all(member.part.has_no_lease for member in members))
        for member in sorted(members, key=lambda member: member.me == last):
            if member.me == last:
                await trio.sleep(0.5)
            member.one.transport.cut_off = False
        registered = [False]
        while not all(registered):
            await trio.sleep(0.02)
            for me in brokers.members:
                assert known_to(brokers, me) == {1, 2, 3} - {me}
                assert not any(takes_for_gone(brokers, me, other) for other in {1, 2, 3} - {me})
            registered = [len(member.part.members.brokers) == 3 and not member.part.has_no_lease for member in members]
        await trio.sleep(2.1)
        assert known_to(brokers, 1) == {2, 3}


async def test_one_that_does_not_come_back_is_gone_soon(autojump_clock: MockClock) -> None:
    async with mesh() as brokers:
        tell_all(brokers)
        members = list(brokers.members.values())
        for member in members:
            member.one.transport.cut_off = True
        await until(lambda: all(member.part.has_no_lease for member in members))
        for member in members[:2]:
            member.one.transport.cut_off = False
        await until(lambda: not any(member.part.has_no_lease for member in members[:2]))
        await until(lambda: known_to(brokers, 1) == {2} and known_to(brokers, 2) == {1}, 3)
        members[2].one.transport.cut_off = False


async def test_one_that_is_gone_while_etcd_is_there_is_forgotten_at_once(autojump_clock: MockClock) -> None:
    async with mesh() as brokers:
        tell_all(brokers)
        await brokers.kill(3)
        await until(lambda: known_to(brokers, 1) == {2}, 0.1)
