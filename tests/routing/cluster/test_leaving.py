"""What is to go by itself, and cannot at once, is there no more for whoever asks meanwhile, at whichever broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from routing.declaring import control
from routing.errors import NotFound
from tests.routing.cluster.test_homes import home_of
from tests.support.home_cluster import Member, Mesh, mesh, until


async def declared(brokers: Mesh, **options: Any) -> Member:
    """A queue that all brokers know; its leader."""
    await brokers.members[1].queue("q", **options)
    await until(lambda: all("q" in one.broker.topology.queues for one in brokers.members.values()))
    return brokers.leader(home_of(brokers.members[1], "q"))


@pytest.mark.parametrize("me", [1, 2, 3])
@pytest.mark.parametrize("arguments", [{}, {"x-expires": 60_000}])
async def test_who_declares_a_queue_that_is_leaving_has_a_new_one(me: int, arguments: dict[str, Any]) -> None:
    async with mesh(serve_each_other=True) as brokers:
        leader = await declared(brokers, auto_delete=True, arguments=arguments)
        queue = leader.broker.topology.queues["q"]
        leader.broker.topology.drop_queue(queue)
        assert leader.broker.topology.is_leaving(queue)
        assert not queue.deleted
        await brokers.members[me].queue("q", auto_delete=True, arguments=arguments)
        for one in brokers.members.values():
            await until(lambda one=one: one.broker.topology.queues["q"].id != queue.id)  # type: ignore[misc]
        assert queue.deleted
        assert not leader.broker.topology.is_leaving(queue)


async def finds(one: Member) -> None:
    await one.broker.check_queue("q")


async def consumes(one: Member) -> None:
    await one.client().consume("q")


@pytest.mark.parametrize("use", [finds, consumes])
@pytest.mark.parametrize("me", [1, 2, 3])
async def test_nobody_else_finds_it(me: int, use: Callable[[Member], Awaitable[None]]) -> None:
    async with mesh(serve_each_other=True) as brokers:
        leader = await declared(brokers, auto_delete=True)
        leader.broker.topology.drop_queue(leader.broker.topology.queues["q"])
        with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
            await use(brokers.members[me])
        await until(lambda: all("q" not in one.broker.topology.queues for one in brokers.members.values()))


@pytest.mark.parametrize("durable", [True, False])
async def test_exchanges_go_with_the_last_of_what_leaves_at_once(durable: bool) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1].broker
        for name in ("of one", "of both"):
            await one.declare_exchange(name, "fanout", durable=durable, auto_delete=True)
        for name in "ab":
            await one.declare_queue(name, durable=True, auto_delete=True)
            await one.bind("queue", name, "of both", "")
        await one.bind("queue", "a", "of one", "")
        for name in "ab":
            one.topology.drop_queue(one.topology.queues[name])
        names = {"a", "b", "of one", "of both"}
        for member in brokers.members.values():
            found = member.broker.topology
            await until(lambda found=found: names.isdisjoint([*found.queues, *found.exchanges]))  # type: ignore[misc]


async def test_who_ends_waits_for_all_leaders_at_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SERVED_WITHIN_S", 0.3)
    async with mesh(serve_each_other=True) as brokers:
        mute, here, other = brokers.members.values()
        for declaring, name in ((mute, "a"), (mute, "b"), (here, "c"), (other, "d"), (other, "e")):
            await declaring.queue(name, auto_delete=True)
        await until(lambda: len(here.broker.topology.queues) == 5)
        client = here.client()
        for name in here.broker.topology.queues:
            await client.consume(name)
        consumed = [consumer.queue for consumer in client.session.consumers]
        stay = [name for name in here.broker.topology.queues if mute.leads(home_of(here, name))]
        assert {"a", "b"} <= set(stay)
        mute.cut()
        client.session.close()
        began_s = trio.current_time()
        await here.broker.until_gone(consumed)
        assert trio.current_time() - began_s < 3
        assert [queue.name for queue in consumed if not queue.deleted] == stay


async def test_what_is_said_of_one_that_its_leader_does_not_have() -> None:
    async with mesh(serve_each_other=True) as brokers:
        leader = await declared(brokers)
        one = next(member for member in brokers.members.values() if member is not leader)
        queue = leader.broker.topology.queues["q"]
        queue.partition.queues.pop(queue.id)
        for use in (finds, consumes):
            with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
                await use(one)
