"""Whoever waits for the leader of a queue is served when this broker becomes it, and keeps nothing if he has gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing

from core_log.replication.leader import Leader
from routing.cluster.clients.offsets import ReplicatedOffsets
from routing.cluster.metadata.log_names import offsets_log
from routing.errors import StorageUnavailable
from routing.groups.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupError,
    NotCoordinator,
    UnknownGroup,
)
from routing.groups.membership import Joining
from routing.topics.offset_store import Committed
from tests.routing.cluster.test_homes import home_of
from tests.routing.harness import body_of
from tests.support.home_cluster import Member, Mesh, mesh, until


async def orphaned(brokers: Mesh) -> int:
    """A queue with messages; the home whose leader is about to die."""
    one = brokers.members[1]
    await one.queue("q")
    await one.client().publish_safely("q", *range(3))
    return home_of(one, "q")


async def led_anew(brokers: Mesh, index: int) -> Member:
    await brokers.kill(1)
    return await brokers.settled(index)


@pytest.mark.parametrize("closed", ["before", "after", "never"])
async def test_who_waits_to_consume_does_when_it_is_led_here(closed: str) -> None:
    async with mesh() as brokers, trio.open_nursery() as nursery:
        index = await orphaned(brokers)
        clients = {me: brokers.members[me].client() for me in (2, 3)}
        consuming: set[int] = set()

        async def consume(me: int) -> None:
            with suppress(StorageUnavailable):  # the other one has no link to whoever leads then
                await clients[me].consume("q")
                consuming.add(me)

        def close() -> None:
            for client in clients.values():
                client.session.close()

        for me in clients:
            nursery.start_soon(consume, me)
        await trio.testing.wait_all_tasks_blocked()
        if closed == "before":
            close()
        leader = await led_anew(brokers, index)
        taken: list[str] = []
        if closed != "before":
            await until(lambda: taken.extend(clients[leader.me].take_bodies()) or len(taken) == 3, 3)
            assert leader.me in consuming, "it was told before it was given anything"
        if closed == "after":
            close()
        if closed != "never":
            await until(lambda: leader.count("q") == 3)
            taken = [body for body, _ in await leader.drain("q")]
        assert taken == ["0", "1", "2"]
        nursery.cancel_scope.cancel()


async def test_who_asks_about_a_queue_is_answered_when_it_is_led_here() -> None:
    async with mesh() as brokers, trio.open_nursery() as nursery:
        index = await orphaned(brokers)
        counts: dict[int, int] = {}

        async def ask(me: int) -> None:
            with suppress(StorageUnavailable):
                counts[me] = (await brokers.members[me].broker.check_queue("q")).message_count

        for me in (2, 3):
            nursery.start_soon(ask, me)
        await trio.testing.wait_all_tasks_blocked()
        leader = await led_anew(brokers, index)
        await until(lambda: leader.me in counts, 3)
        assert counts[leader.me] == 3
        nursery.cancel_scope.cancel()


async def test_who_gets_is_given_a_message_when_it_is_led_here() -> None:
    """Or the client's connection is closed, as RESOURCE_ERROR is said of all of it."""
    async with mesh() as brokers, trio.open_nursery() as nursery:
        index = await orphaned(brokers)
        clients = {me: brokers.members[me].client() for me in (2, 3)}
        given: dict[int, list[str]] = {me: [] for me in clients}

        async def get(me: int) -> None:
            with suppress(StorageUnavailable):  # the other one has no link to whoever leads then
                while (got := await clients[me].session.get("q", no_ack=True)) is not None:
                    given[me].append(body_of(got))

        for me in clients:
            nursery.start_soon(get, me)
        await trio.testing.wait_all_tasks_blocked()
        leader = await led_anew(brokers, index)
        await until(lambda: len(given[leader.me]) == 3, 3)
        assert given[leader.me] == ["0", "1", "2"]
        nursery.cancel_scope.cancel()


async def test_who_gets_from_a_queue_that_may_not_be_served_waits_a_while() -> None:
    async with mesh() as brokers, trio.open_nursery() as nursery:
        index = await orphaned(brokers)
        leader = await brokers.settled(index)
        clock = leader.part._clock
        leader.part._clock = lambda: trio.current_time() + 60
        leader.turn()
        with pytest.raises(StorageUnavailable):
            await leader.client().session.get("q", no_ack=True)
        found: list[str] = []

        async def get() -> None:
            got = await leader.client().session.get("q", no_ack=True)
            assert got is not None
            found.append(body_of(got))

        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        leader.part._clock = clock
        await until(lambda: found == ["0"], 3)


async def test_groups_are_looked_after_once_a_lease_that_was_late_is_renewed() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        assert isinstance(one.broker.offsets, ReplicatedOffsets)
        log = offsets_log(one.broker.offsets.log_of("g"))
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        is_late = True

        def serves(real: Callable[[Leader], bool], role: Leader) -> bool:
            return not is_late and real(role)

        dying = one.part.leader_of(log)[0]
        for me, member in brokers.members.items():
            if me != dying:
                member.part.may_serve = partial(serves, member.part.may_serve)  # type: ignore[method-assign]
        await brokers.kill(dying)
        found: list[Member] = []
        await until(lambda: found.extend(m for m in brokers.members.values() if m.part.role_of(log)) or found)
        (leader,) = found
        role = leader.part.role_of(log)
        assert role is not None
        await until(lambda: trio.current_time() > role.serve_from_s + 0.1)  # by then all who are told were told
        assert isinstance(refusal(leader), CoordinatorUnavailable)

        is_late = False
        await until(lambda: isinstance(refusal(leader), UnknownGroup), 5)


async def test_how_far_a_group_has_come_is_told_once_its_log_is_handed_over() -> None:
    async with mesh() as brokers, trio.open_nursery() as nursery:
        offsets = brokers.members[1].broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        log = offsets_log(offsets.log_of("g"))
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        await until(lambda: isinstance(refusal(leader), UnknownGroup), 5)
        await leader.broker.offsets.commit("g", {("t", 0): Committed(7)})
        role = leader.part.role_of(log)
        assert role is not None
        role.handing_over = True
        found: list[int] = []

        async def fetch() -> None:
            found.append((await leader.broker.groups.fetch("g", [("t", 0)]))["t", 0].offset)

        nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        role.handing_over = False
        await until(lambda: found == [7], 3)

        role.handing_over = True
        with pytest.raises(CoordinatorUnavailable):
            await leader.broker.groups.fetch("g", [("t", 0)])


async def test_who_asks_how_far_a_group_has_come_that_has_just_moved_is_to_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mesh() as brokers:
        offsets = brokers.members[1].broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        log = offsets_log(offsets.log_of("g"))
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        before = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        await until(lambda: isinstance(refusal(before), UnknownGroup), 5)
        joining = Joining("", None, "c", "/h", 10_000, 20_000, "consumer", [("range", b"")])
        before.broker.groups.join("g", joining, lambda joined: None)
        await before.part.resign()
        await until(lambda: before.part.leader_of(log)[0] not in (None, before.me))
        groups = before.broker.groups
        with pytest.raises(CoordinatorLoading):
            await groups.fetch("g", [("t", 0)])
        assert isinstance(refusal(before), NotCoordinator)
        now_ms = groups._now_ms()
        monkeypatch.setattr(groups, "_now_ms", lambda: now_ms + 60_000)
        with pytest.raises(NotCoordinator):
            await groups.fetch("g", [("t", 0)])


def refusal(member: Member) -> GroupError | None:
    """Why nothing is told of a group."""
    try:
        member.broker.groups.describe("g")
    except GroupError as error:
        return error
    return None
