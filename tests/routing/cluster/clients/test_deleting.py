"""Queues that are deleted at a broker that does not lead them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from routing.cluster.clients import served_commands
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.errors import NotFound
from tests.support.engine_node import town_of


@pytest.mark.parametrize("if_unused", [False, True])
async def test_a_queue_that_goes_while_its_leader_is_asked_is_gone(
    if_unused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = (town.nodes[number].broker for number in (1, 2))
        await leader.declare_queue("q", durable=True)
        refresh = RemoteQueue.refresh

        async def late(queue: RemoteQueue) -> None:
            await leader.delete_queue("q")
            await refresh(queue)

        monkeypatch.setattr(RemoteQueue, "refresh", late)
        assert await other.delete_queue("q", if_unused=if_unused) == 0
        assert "q" not in other.topology.queues


@pytest.mark.parametrize("if_empty", [False, True])
async def test_a_queue_that_is_led_here_by_the_time_its_leader_is_found_is_deleted(if_empty: bool) -> None:
    async with town_of(1, 2, stripes=1) as town, trio.open_nursery() as nursery:
        one, two = (town.nodes[number].broker for number in (1, 2))
        await one.declare_queue("q", durable=True)
        town.lead(0, None)
        nursery.start_soon(lambda: two.delete_queue("q", if_empty=if_empty))
        await trio.sleep(0.01)
        assert "q" in two.topology.queues
        town.lead(0, 2)
        with trio.fail_after(30):
            while "q" in two.topology.queues:
                await trio.sleep(0.001)


async def test_a_queue_that_ends_with_another_broker_and_goes_while_that_is_asked_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, stripes=1) as town:
        owner, other = (town.nodes[number].broker for number in (1, 2))
        command = RemoteQueue.command

        async def late(queue: RemoteQueue, *asked: Any, **how: Any) -> Any:
            await owner.delete_queue("q")
            return await command(queue, *asked, **how)

        async def made() -> None:
            await owner.declare_queue("q")
            while "q" not in other.topology.vhosts["/"].away:
                await trio.sleep(0.001)

        monkeypatch.setattr(RemoteQueue, "command", late)
        with trio.fail_after(10):
            await made()
            assert await other.delete_queue("q") == 0
            await made()
            await other.unbind("queue", "q", "amq.topic", "a.*")
            await made()
            with pytest.raises(NotFound, match="no queue 'q'"):
                await other.bind("queue", "q", "amq.topic", "a.*")


async def test_a_queue_of_another_broker_is_deleted_though_the_link_was_lost_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, stripes=1) as town:
        owner, other = (town.nodes[number].broker for number in (1, 2))
        run, asked = served_commands.run_forwarded, []

        async def cut(*said: Any) -> Any:
            asked.append(said)
            answer = await run(*said)
            if len(asked) == 1:
                town.nodes[2].cut(1)
            return answer

        monkeypatch.setattr(served_commands, "run_forwarded", cut)
        await owner.declare_queue("q")
        with trio.fail_after(10):
            while "q" not in other.topology.vhosts["/"].away:
                await trio.sleep(0.001)
            assert await other.delete_queue("q") == 0
        assert "q" not in owner.topology.queues
