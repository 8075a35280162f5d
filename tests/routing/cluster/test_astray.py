"""What one broker adds to something while another removes that goes with it, from the catalog as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from core_log.files import MemoryFiles
from routing.errors import NotAllowed, NotFound
from routing.topology.entries import Entry
from tests.routing.harness import engine, killed
from tests.routing.topology.test_changes_by_others import other
from tests.support.home_cluster import Member, Mesh, mesh, until


async def at_once(*calls: Callable[[], Awaitable[Any]]) -> int:
    """Make calls at the same time; how many of them found that another was first."""
    late = 0

    async def call(one: Callable[[], Awaitable[Any]]) -> None:
        nonlocal late
        try:
            await one()
        except (NotFound, NotAllowed):
            late += 1

    async with trio.open_nursery() as nursery:
        for one in calls:
            nursery.start_soon(call, one)
    return late


def entries(one: Member, name: str) -> list[tuple[str, ...]]:
    """What the catalog has that concerns a name."""
    catalog = one.broker.topology.catalog
    kinds = ("vhost", "exchange", "queue", "binding", "policy")
    return [key for kind in kinds for key, _ in catalog.entries(kind) if name in key]


async def forgotten(brokers: Mesh, name: str) -> None:
    await until(lambda: not any(entries(one, name) for one in brokers.members.values()))
    for one in brokers.members.values():
        for vhost in one.broker.topology.vhosts.values():
            assert not vhost.bindings_to
            assert all(not exchange.bindings for exchange in vhost.exchanges.values())


async def test_bindings_of_what_is_deleted() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two, _ = (member.broker for member in brokers.members.values())
        late = 0
        for kind in ("queue", "exchange"):
            for _ in range(4):
                await one.declare_exchange("x", "fanout", durable=True)
                await one.declare_exchange("going", "fanout", durable=True, auto_delete=True)
                await one.declare_queue("q", durable=True)
                delete = one.delete_queue if kind == "queue" else one.delete_exchange
                late += await at_once(
                    lambda delete=delete, kind=kind: delete("q" if kind == "queue" else "x"),  # type: ignore[misc]
                    lambda: two.bind("queue", "q", "x", "key"),
                    lambda: two.bind("queue", "q", "going", "key"),
                    lambda: two.bind("exchange", "x", "amq.topic", "key"),
                )
                await trio.testing.wait_all_tasks_blocked(0.01)
                await one.delete_queue("q")
                await one.delete_exchange("x")
                await one.delete_exchange("going")
                for name in ("q", "x", "going"):
                    await forgotten(brokers, name)
        assert late < 20, "some came first"


async def test_what_a_virtual_host_has_that_is_deleted() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two, _ = (member.broker for member in brokers.members.values())
        for _ in range(3):
            await one.set_vhost("v")
            await at_once(
                lambda: one.delete_vhost("v"),
                lambda: two.declare_queue("q", durable=True, vhost="v"),
                lambda: two.declare_exchange("x", "fanout", durable=True, vhost="v"),
                lambda: two.set_policy("p", "^q", {"max-length": 1}, vhost="v"),
                lambda: two.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"}, vhost="v"),
            )
            for name in ("q", "x", "p", "v"):
                await forgotten(brokers, name)
            await until(lambda: not any(member.broker.topics for member in brokers.members.values()))


async def test_a_start_leaves_out_what_has_no_virtual_host() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        value = {"id": 7_000, "stripe": 0, "auto_delete": False, "arguments": {}}
        await other(running.broker).change([Entry(("queue", "gone", "q"), value, True)])
        found = killed(files)
    async with engine(found) as running:
        assert list(running.broker.topology.vhosts) == ["/"]
        catalog = running.broker.topology.catalog
        await until(lambda: not list(catalog.entries("queue")))
