"""Steps of writers to an exchange take effect once, whatever crashes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import FaultyFiles, MemoryFiles
from core_log.record_batch import BatchBuilder
from routing.access.grants import Permission
from routing.administration import administer
from routing.errors import AccessRefused, BrokerError, InvalidArgument, LimitExceeded, NotFound, QueueFull
from tests.routing.harness import Engine, engine, killed, passing

QUEUES = ("q", "r")


def batch(*numbers: int, key: str = "k.1", headers: Any = ()) -> bytes:
    builder = BatchBuilder(0, -1, 1000)
    for offset, number in enumerate(numbers):
        builder.add(offset, key.encode(), b"%d" % number, list(headers))
    return builder.build()


async def step(running: Engine, number: int, *batches: bytes, writer: str = "w", name: str = "amq.topic") -> int:
    said = {"name": name, "writer": writer, "number": number, "batches": list(batches)}
    found: int = await administer(running.broker, "guest", "exchanges.publish_once", said)
    return found


async def declare(running: Engine) -> None:
    for name in QUEUES:
        await running.queue(name)
        await running.bind("amq.topic", name, "k.#")
    await running.broker.create_topic("log")
    await running.broker.bind("topic", "log", "amq.topic", "k.#")
    assert running.home("q") is not running.home("r")


def topic_count(running: Engine) -> int:
    return running.broker.topology.topic("log").partitions[0].log.log_end_offset


async def bodies(running: Engine, queue: str) -> list[int]:
    return [int(body) for body, _ in await running.drain(queue)]


async def test_a_step_takes_effect_once() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await declare(running)
        assert await step(running, 0, batch(1, 2), batch(3)) == 3
        assert await step(running, 0, batch(1, 2), batch(3)) == -1
        assert await step(running, 0, batch(7), writer="other") == 1
        assert await step(running, 4, batch(4)) == 1
        assert await step(running, 3, batch(9)) == -1
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(step, running, 5, batch(5))
        assert topic_count(running) == 6
        found = killed(files)
    for left in (files, found):
        async with engine(left) as running:
            assert await step(running, 5, batch(5)) == -1
            assert await step(running, 6, batch(6)) == 1
            for name in QUEUES:
                assert await bodies(running, name) == [1, 2, 3, 7, 4, 5, 6]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
async def test_a_step_that_a_full_queue_refuses_has_not_taken_effect(overflow: str) -> None:
    async with engine(MemoryFiles()) as running:
        await declare(running)
        await running.queue("full", arguments={"x-max-length": 2, "x-overflow": overflow})
        await running.bind("amq.topic", "full", "k.#")
        assert await step(running, 0, batch(1)) == 1
        with pytest.raises(QueueFull, match=r"^queue 'full' in vhost '/' is full"):
            await step(running, 1, batch(2, 3))
        assert [running.count(name) for name in (*QUEUES, "full")] == [1, 1, 1]
        assert await bodies(running, "full") == [1]
        assert await step(running, 1, batch(2, 3)) == 2
        assert await step(running, 1, batch(2, 3)) == -1, "it is done, though the queue is full again"
        assert await bodies(running, "full") == [2, 3]


async def test_whatever_a_crash_cuts_off() -> None:
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        await declare(running)
        await step(running, 0, batch(1))
        files.hook = lambda operation, path: found.append(killed(memory))
        await step(running, 1, batch(2, 3))
        files.hook = None
    assert len(found) > 2
    for left in found:
        async with engine(left) as running:
            await step(running, 1, batch(2, 3))
            for name in QUEUES:
                assert await bodies(running, name) == [1, 2, 3]
            assert topic_count(running) == 3
            assert await step(running, 1, batch(2, 3)) == -1


async def test_a_step_is_decided_when_what_it_comes_behind_is_there() -> None:
    memory, let_go = MemoryFiles(), threading.Event()
    files = FaultyFiles(memory)

    def hold(operation: str, path: str) -> None:
        if operation == "write" and path.startswith("topics/"):
            let_go.wait(20)

    async with engine(files) as running, trio.open_nursery() as nursery:
        await declare(running)
        await step(running, 0, batch(1))
        await running.synced()
        files.hook = hold
        running.client().publish("k.x", 2, exchange="amq.topic")
        running.turn()
        nursery.start_soon(step, running, 1, batch(3))
        await wait_all_tasks_blocked(0.1)
        left = killed(memory)
        let_go.set()
    async with engine(left) as running:
        await step(running, 1, batch(3))
        for name in QUEUES:
            assert [body for body in await bodies(running, name) if body != 2] == [1, 3]


async def test_what_others_publish_and_take_meanwhile_does_not_make_a_step_look_as_if_it_were_over() -> None:
    memory, held = MemoryFiles(), {"transactions": threading.Event(), "queues": threading.Event()}
    files = FaultyFiles(memory)
    holding = {"transactions"}

    def hold(operation: str, path: str) -> None:
        room = path.partition("/")[0]
        if operation == "write" and room in holding:
            held[room].wait(20)

    async with engine(files, stripes=1, queue_segment_bytes=4096) as running, trio.open_nursery() as nursery:
        await running.queue("q")
        await running.bind("amq.topic", "q", "k.#")
        files.hook = hold
        nursery.start_soon(step, running, 0, batch(1))
        await wait_all_tasks_blocked(0.05)
        home, client = running.home("q"), running.client()
        for number in range(100):
            await client.publish_safely("q", f"{number} {'x' * 200}")
        assert len(await running.drain("q")) == 100
        await running.synced()
        for _ in range(20):
            running.broker.checkpoints.take(home)
            home.delete_dead_prefix()
            await wait_all_tasks_blocked(0.01)
        holding.add("queues")
        held["transactions"].set()
        await wait_all_tasks_blocked(0.05)
        left = killed(memory)
        held["queues"].set()
    async with engine(left, stripes=1, queue_segment_bytes=4096) as running:
        assert await step(running, 0, batch(1)) == -1, "it was decided"
        assert await bodies(running, "q") == [1]
        home = running.home("q")
        await running.synced()
        assert home.first_live_offset == home.next_offset, "nothing is kept for it any more"


async def test_what_messages_ask_for() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("p", arguments={"x-max-priority": 5})
        await running.broker.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        await running.bind("later", "p", "p")
        await step(running, 0, batch(1, key="p"), batch(2, key="p", headers=[("millrace.priority", b"3")]), name="")
        await step(running, 1, batch(3, key="p", headers=[("x-delay", b"100000")]), name="later")
        queue = running.broker.topology.queues["p"]
        assert (queue.message_count, queue.rules.delayed_count) == (2, 1)
        assert await bodies(running, "p") == [2, 1]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"name": "nowhere"}, NotFound),
        ({"batches": [b"nonsense"]}, InvalidArgument),
        ({"batches": [batch(1, headers=[("x-delay", b"soon")])]}, InvalidArgument),
        ({"batches": [batch(1, key="k" * 300)]}, InvalidArgument),
        ({"writer": ""}, InvalidArgument),
        ({"number": -1}, InvalidArgument),
        ({"batches": [batch(*range(2000))]}, LimitExceeded),
    ],
)
async def test_refused_steps_leave_nothing(said: dict[str, Any], error: type[BrokerError]) -> None:
    async with engine(MemoryFiles(), transaction_bytes_max=100_000) as running:
        await declare(running)
        given = {"name": "amq.topic", "writer": "w", "number": 0, "batches": [batch(1)]}
        with pytest.raises(error):
            await administer(running.broker, "guest", "exchanges.publish_once", given | said)
        assert await bodies(running, "q") == []
        assert await step(running, 0, batch(1)) == 1


async def test_rights() -> None:
    async with engine(MemoryFiles()) as running:
        await declare(running)
        await running.broker.rights.add_user("ada", b"x")
        await running.broker.rights.set_permission("/", "ada", Permission("", "other", ".*"))
        said = {"name": "amq.topic", "writer": "w", "number": 0, "batches": [batch(1)]}
        for one in (said, said | {"batches": []}):
            with pytest.raises(AccessRefused):
                await administer(running.broker, "ada", "exchanges.publish_once", one)
        assert await step(running, 0, batch(1)) == 1
        with pytest.raises(AccessRefused):
            await administer(running.broker, "ada", "exchanges.publish_once", said)


async def test_writers_that_are_not_heard_of_are_forgotten(clock: MockClock) -> None:
    async with engine(MemoryFiles(), group_offsets_retention_ms=60_000) as running:
        await declare(running)
        for number in range(1000):
            await step(running, 0, batch(1), writer=f"w{number}")
        await passing(clock, 61)
        await step(running, 0, batch(1), writer="new")
        store = running.broker.transactions.store
        assert store is not None
        assert sum(key.startswith(b"once:") for key, _ in store.items()) == 1
