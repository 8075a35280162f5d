"""What the catalog refuses has changed nothing, neither in memory nor after a restart, and can be asked for again."""

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.broker import Broker
from routing.errors import BrokerError, PreconditionFailed, StorageUnavailable
from tests.routing.harness import Engine, engine, killed

Act = Callable[[Broker], Awaitable[Any]]


async def prepare(running: Engine) -> None:
    broker = running.broker
    await broker.declare_exchange("x", "topic", durable=True)
    await broker.declare_exchange("auto", "fanout", durable=True, auto_delete=True)
    await running.queue("q")
    await running.queue("goes", auto_delete=True)
    await running.bind("x", "q", "k")
    await running.bind("auto", "q")
    await broker.bind("exchange", "auto", "x", "k")
    await broker.create_topic("t")
    await broker.bind("topic", "t", "x", "k")


def picture(broker: Broker) -> dict[str, Any]:
    """Everything durable that exists, as it is in memory."""
    topology = broker.topology
    return {
        "exchanges": sorted((e.name, e.kind) for e in topology.exchanges.values() if e.durable),
        "queues": sorted(q.name for q in topology.queues.values() if q.partition.durable),
        "bindings": sorted(b.key("/") for e in topology.exchanges.values() for b in e.bindings),
        "topics": sorted(topology.topics),
    }


def recorded(broker: Broker) -> list[Any]:
    """What the catalog says."""
    kinds = ("vhost", "exchange", "queue", "binding", "topic")
    return sorted(repr(entry) for kind in kinds for entry in broker.topology.catalog.entries(kind))


ACTS: dict[str, Act] = {
    "declare exchange": lambda b: b.declare_exchange("new", "direct", durable=True),
    "declare queue": lambda b: b.declare_queue("new", durable=True),
    "bind": lambda b: b.bind("queue", "q", "x", "new"),
    "unbind": lambda b: b.unbind("queue", "q", "x", "k"),
    "unbind the last of an auto-delete exchange": lambda b: b.unbind("queue", "q", "auto", ""),
    "delete exchange": lambda b: b.delete_exchange("x"),
    "delete queue": lambda b: b.delete_queue("q"),
    "create topic": lambda b: b.create_topic("new"),
    "delete topic": lambda b: b.delete_topic("t"),
}


@pytest.mark.parametrize("known", [True, False], ids=["known to refuse", "found out while writing"])
@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("what", ACTS)
async def test_a_refused_change_has_changed_nothing(what: str, operation: str, known: bool) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    act = ACTS[what]
    async with engine(files) as running:
        broker = running.broker
        await prepare(running)
        before, written = picture(broker), recorded(broker)
        files.failing[operation] = errno.EIO
        for _ in range(2 if known else 1):
            with pytest.raises(StorageUnavailable):
                await act(broker)
            assert picture(broker) == before
            assert recorded(broker) == written
        files.failing.clear()
        (catalog, *_) = broker.storage.stores
        await running.until(lambda: catalog.error is None)
        await broker.declare_exchange("later", "fanout", durable=True)
        await broker.delete_exchange("later")
        for found in (killed(disk), disk.crash()):
            async with engine(found) as again:
                assert picture(again.broker) == before, "what was refused came back"
        await act(broker)
        after = picture(broker)
        assert after != before
        async with engine(disk.crash()) as again:
            assert picture(again.broker) == after
        if "topic" not in what:
            await act(broker)  # is no news
            assert picture(broker) == after


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_stop_right_after_a_refusal_takes_it_back_as_well(operation: str) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    async with engine(files, flush_retry_interval_ms=3_600_000) as running:
        await prepare(running)
        before = picture(running.broker)
        files.failing[operation] = errno.EIO
        with pytest.raises(StorageUnavailable):
            await running.broker.bind("queue", "q", "x", "new")
        files.failing.clear()
    for found in (killed(disk), disk):
        async with engine(found) as again:
            assert picture(again.broker) == before


async def test_what_goes_by_itself_stays_while_the_catalog_refuses() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        await prepare(running)
        owner = object()
        await broker.declare_queue("mine", exclusive=True, owner=owner)
        await broker.declare_exchange("with mine", "fanout", durable=True, auto_delete=True)
        await broker.bind("queue", "mine", "with mine", "", owner=owner)
        client = running.client()
        tag = await client.consume("goes")
        files.failing["write"] = errno.EIO
        with pytest.raises(StorageUnavailable):
            await broker.declare_exchange("new", "direct", durable=True)
        client.session.cancel(tag)
        broker.release(owner)
        assert "goes" in broker.topology.queues
        assert "mine" not in broker.topology.queues, "nothing of it is on disk"
        assert "with mine" in broker.topology.exchanges
        files.failing.clear()
        (catalog, *_) = broker.storage.stores
        await running.until(lambda: catalog.error is None)
        client.session.cancel(await client.consume("goes"))
        assert "goes" not in broker.topology.queues


class Held:
    """Syncs of the catalog wait until they are let through."""

    def __init__(self, files: FaultyFiles) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()
        files.hook = self._hook

    def _hook(self, operation: str, path: str) -> None:
        if operation == "sync" and path.startswith("catalog"):
            self.waiting.set()
            assert self.gate.wait(20)


async def test_nothing_is_seen_before_it_is_durable_and_changes_that_meet_wait_for_each_other() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        await prepare(running)
        held = Held(files)
        order: list[str] = []

        async def note(what: str, act: Awaitable[Any]) -> None:
            try:
                await act
                order.append(what)
            except BrokerError as error:
                order.append(f"{what}: {error}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "declare", broker.declare_queue("new", durable=True))
            await trio.testing.wait_all_tasks_blocked()
            assert "new" not in broker.topology.queues
            nursery.start_soon(note, "other", broker.declare_queue("other", durable=True))
            nursery.start_soon(note, "again", broker.declare_queue("new", durable=True))
            nursery.start_soon(note, "transient", broker.declare_queue("new"))
            nursery.start_soon(note, "bind", broker.bind("queue", "q", "x", "fresh"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(note, "delete", broker.delete_exchange("x"))
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            held.gate.set()
        assert set(order) == {
            "declare", "other", "again", "bind", "delete",
            "transient: inequivalent arg 'durable' for queue 'new' in vhost '/': received 'false' but current is "
            "'true'",
        }  # fmt: skip
        assert order.index("bind") < order.index("delete")
        assert order.index("declare") < order.index("again")
        assert len({queue.id for queue in broker.topology.queues.values()}) == len(broker.topology.queues)
        assert "x" not in broker.topology.exchanges
        files.hook = None


async def test_a_queue_that_must_be_empty_is_looked_at_again_when_its_deletion_is_written() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        await prepare(running)
        before, written = picture(broker), recorded(broker)
        held = Held(files)
        refused: list[str] = []

        async def delete() -> None:
            with pytest.raises(PreconditionFailed) as caught:
                await broker.delete_queue("q", if_empty=True)
            refused.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            await trio.testing.wait_all_tasks_blocked()
            running.client().publish("q", 1)
            running.turn()
            held.gate.set()
        assert refused == ["queue 'q' in vhost '/' not empty"]
        assert (picture(broker), recorded(broker)) == (before, written)
        assert await running.drain("q") == [("1", False)]
        files.hook = None


async def test_a_cancelled_change_is_whole() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        held = Held(files)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: broker.declare_queue("new", durable=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            held.gate.set()
        assert "new" in broker.topology.queues
        files.hook = None


@pytest.mark.parametrize("destination", ["q", "no"])
@pytest.mark.parametrize("exchange", ["x", "no"])
async def test_unbinding_what_is_gone_is_no_error(exchange: str, destination: str) -> None:
    async with engine(MemoryFiles()) as running:
        await prepare(running)
        await running.broker.unbind("queue", destination, exchange, "never")
        await running.broker.unbind("exchange", destination, exchange, "never")
