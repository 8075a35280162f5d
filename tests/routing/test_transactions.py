"""Transactions: all or nothing, whatever they concern and whenever the process ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import FaultyFiles, MemoryFiles
from routing.errors import LimitExceeded, StorageUnavailable
from routing.facts import pack
from routing.message import Slab
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, TRANSIENT, Client, Engine, engine, killed, passing

QUEUES = ("a", "b", "c", "d")


async def world(running: Engine) -> Client:
    """Queues on both stripes and a transient one, a topic beside `d`, three messages in `a`."""
    for name in QUEUES:
        await running.queue(name)
    await running.queue("t", durable=False)
    await running.broker.create_topic("log")
    await running.bind("amq.fanout", "d")
    await running.broker.bind("topic", "log", "amq.fanout", "")
    client = running.client()
    await client.publish_safely("a", "a1", "a2", "a3")
    return client


async def take(client: Client, count: int = 2) -> None:
    """Have some of `a` outstanding, as ids 1, 2, ..."""
    for _ in range(count):
        assert await client.session.get("a", no_ack=False) is not None


def counts(running: Engine) -> list[int]:
    running.turn()
    return [running.count(name) for name in (*QUEUES, "t")]


def durable_counts(running: Engine) -> list[int]:
    return [running.count(name) for name in QUEUES]


def publish_to_two(client: Client) -> None:
    client.publish("a", 1, 2)
    client.publish("b", 1, 2)


def publish_everywhere(client: Client) -> None:
    for name in (*QUEUES, "t"):
        client.publish(name, 1)
    client.publish("", 2, exchange="amq.fanout")


def work(client: Client) -> None:
    client.ack(1, 2)
    client.publish("b", "result")
    client.publish("c", 3)


WHOLE: dict[str, Callable[[Client], None]] = {
    "publishes to one stripe": lambda client: client.publish("a", *range(40)),
    "publishes to two stripes": publish_to_two,
    "publishes to everything": publish_everywhere,
    "settlements of one stripe": lambda client: client.ack(1, 2),
    "work and results": work,
}


@pytest.mark.parametrize("what", WHOLE)
@pytest.mark.parametrize("end", ["commit", "roll back", "close"])
async def test_nothing_happens_before_the_commit(what: str, end: str) -> None:
    async with engine(MemoryFiles()) as running:
        client = await world(running)
        before = counts(running)
        await take(client)
        client.session.begin()
        WHOLE[what](client)
        running.turn()
        assert counts(running) == [before[0] - 2, *before[1:]]
        if end == "commit":
            await client.session.commit()
            expected = {
                "publishes to one stripe": [41, 0, 0, 0, 0], "publishes to two stripes": [3, 2, 0, 0, 0],
                "publishes to everything": [2, 1, 1, 2, 1], "settlements of one stripe": [1, 0, 0, 0, 0],
                "work and results": [1, 1, 1, 0, 0],
            }[what]  # fmt: skip
            assert counts(running) == expected
            client.session.close()
            settled = "settlements" in what or "work" in what
            assert counts(running) == [expected[0] + (0 if settled else 2), *expected[1:]]
        else:
            if end == "roll back":
                client.session.roll_back()
                running.turn()
                assert counts(running) == [before[0] - 2, *before[1:]]
                client.ack(1)  # it is outstanding again
                await client.session.commit()
                client.session.roll_back()
                assert counts(running) == [before[0] - 2, *before[1:]]
                client.session.close()
                assert counts(running) == [before[0] - 1, *before[1:]]
            else:
                client.session.close()
                assert counts(running) == before


@pytest.mark.parametrize("what", WHOLE)
async def test_what_was_committed_survives_a_kill(what: str) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        client = await world(running)
        await take(client)
        client.session.begin()
        WHOLE[what](client)
        await client.session.commit()
        expected = counts(running)[:4]
        if "settlements" not in what and "work" not in what:
            expected[0] += 2  # what is outstanding comes back
        log = running.broker.transactions.store.log
        await running.synced()
        await running.until(
            lambda: not running.broker.transactions._applied and log.written_offset == log.log_end_offset
        )
        left = killed(files)
    for _ in range(2):
        async with engine(left) as running:
            assert durable_counts(running) == expected
            left = killed(left)


@pytest.mark.parametrize("what", WHOLE)
async def test_a_kill_at_any_write_leaves_all_or_nothing(what: str) -> None:
    """The files are looked at before each operation on a log, as a kill would leave them."""
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        client = await world(running)
        await take(client)
        nothing = [3, 0, 0, 0]
        client.session.begin()
        WHOLE[what](client)
        files.hook = lambda operation, path: found.append(killed(memory))
        await client.session.commit()
        await running.synced()
        files.hook = None
        everything = counts(running)[:4]
        if "settlements" not in what and "work" not in what:
            everything[0] += 2
        # A thread may still have been about to look: what a clean stop leaves is for other tests.
        pictures = [*found, killed(memory)]
    seen = set()
    for left in pictures:
        async with engine(left) as again:
            drained = [await again.drain(name) for name in QUEUES]
        distinct = [len(dict(messages)) for messages in drained]
        # Applied twice, a publish may be there twice, and is marked then; but never a part of the whole.
        assert distinct in (nothing, everything)
        assert all(redelivered for messages in drained for _, redelivered in messages)
        seen.add(distinct == nothing)
    assert seen == {True, False}


DELAYED = {"x-delayed": True, "x-max-priority": 3, "x-retry": [60_000]}


async def test_what_comes_in_the_place_of_a_message_that_was_settled_and_lost_is_not_settled() -> None:
    memory, let_go = MemoryFiles(), threading.Event()
    files = FaultyFiles(memory)
    slow = "queues/"

    def hold(operation: str, path: str) -> None:
        if operation == "write" and path.startswith(slow):
            let_go.wait(20)

    async with engine(files) as running, trio.open_nursery() as nursery:
        await running.queue("a")
        await running.queue("b")
        assert running.home("a") is not running.home("b")
        await running.synced()
        files.hook = hold
        client = running.client()
        client.publish("a", "old")
        await take(client, 1)
        client.session.begin()
        client.ack(1)
        client.publish("b", "done")
        nursery.start_soon(client.session.commit)
        await wait_all_tasks_blocked(0.1)
        left = killed(memory)
        let_go.set()
    let_go.clear()
    files, slow = FaultyFiles(left), "transactions/"
    files.hook = hold
    async with engine(files) as running:
        await running.client().publish_safely("a", "new")
        again = killed(left)
        let_go.set()
    async with engine(again) as running:
        assert await running.drain("a") == [("new", True)]


async def test_what_is_settled_may_have_been_delayed_once(clock: MockClock) -> None:
    """A start holds back what was delayed until it has seen it all: what is settled by then is gone as well."""
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        client = await world(running)
        await running.queue("d1", arguments=DELAYED)
        facts = [pack(True, 1, None, 100), pack(True, 2, None, 60_000), pack(True, 3)]
        client.session.publish(Slab("", "d1", PERSISTENT, [b"due", b"later", b"now"], facts=facts))
        await running.synced()
        await passing(clock, 0.2)
        for _ in range(2):
            assert await client.session.get("d1", no_ack=False) is not None
        client.session.begin()
        client.ack(1, 2)
        publish_to_two(client)
        files.hook = lambda operation, path: found.append(killed(memory))
        await client.session.commit()
        await running.synced()
        files.hook = None
        pictures = list(found)
    seen = set()
    for left in pictures:
        async with engine(left) as again:
            await passing(clock, 1)
            state = (len(dict(await again.drain("b"))), sorted(dict(await again.drain("d1"))))
            assert state in ((0, ["due", "now"]), (2, []))
            assert again.broker.topology.queues["d1"].rules.delayed_count == 1
            seen.add(state[0])
    assert seen == {0, 2}


async def test_what_was_committed_and_consumed_does_not_come_again_after_a_loss_of_power() -> None:
    files = MemoryFiles()
    async with engine(files, housekeeping_interval_ms=10) as running:
        client = await world(running)
        client.session.begin()
        publish_to_two(client)
        await client.session.commit()
        for name in ("a", "b"):
            await running.drain(name)
        await running.synced()
        log = running.broker.transactions.store.log
        await running.until(lambda: not running.broker.transactions._applied)
        await running.until(lambda: log.flushed_offset == log.log_end_offset)
        left = files.crash()
    async with engine(left) as running:
        assert durable_counts(running) == [0, 0, 0, 0]


async def test_a_refusing_disk_leaves_everything_as_it_was() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        client = await world(running)
        await take(client)
        client.session.begin()
        WHOLE["work and results"](client)

        def refuse(operation: str, path: str) -> None:
            if operation == "write" and path.startswith("transactions/"):
                raise OSError(errno.ENOSPC, "full")

        files.hook = refuse
        with pytest.raises(StorageUnavailable):
            await client.session.commit()
        assert counts(running) == [1, 0, 0, 0, 0]
        files.hook = None
        client.session.settle(1, 2, Outcome.REQUEUE)
        client.session.roll_back()
        client.session.close()
        assert counts(running) == [3, 0, 0, 0, 0]
    async with engine(files) as running:
        assert durable_counts(running) == [3, 0, 0, 0]


async def test_what_a_disk_that_refused_for_a_moment_has_taken_is_not_applied_again_much_later() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, housekeeping_interval_ms=10) as running:
        client = await world(running)
        broker = running.broker
        client.session.begin()
        publish_to_two(client)
        decided = []

        def refuse(operation: str, path: str) -> None:
            """From when it is decided on."""
            if operation == "sync" and path.startswith("transactions/"):
                decided.append(path)
            elif operation == "write" and decided and not path.startswith("transactions/"):
                raise OSError(errno.ENOSPC, "full")

        files.hook = refuse
        await client.session.commit()
        await running.until(lambda: running.home("b").log.error is not None)
        files.hook = None
        await running.until(lambda: not broker.transactions._applied)
        await running.synced()
        log = broker.transactions.store.log
        await running.until(lambda: log.written_offset == log.log_end_offset)
        for name in ("a", "b"):
            for _ in range(running.count(name)):
                await client.session.get(name, no_ack=True)
        await running.synced()
        files = FaultyFiles(killed(files.inner))  # type: ignore[arg-type]
    async with engine(files) as running:
        assert durable_counts(running) == [0, 0, 0, 0]


@pytest.mark.parametrize("what", ["publishes to one stripe", "settlements of one stripe"])
@pytest.mark.parametrize("refused", ["write", "sync"])
async def test_a_commit_of_one_batch_is_answered_when_the_disk_has_taken_it(what: str, refused: str) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        client = await world(running)
        await take(client)
        client.session.begin()
        WHOLE[what](client)
        answered = trio.Event()

        async def commit() -> None:
            await client.session.commit()
            answered.set()

        files.failing[refused] = errno.ENOSPC
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await running.until(lambda: running.home("a").log.error is not None)
            with trio.move_on_after(0.15):
                await answered.wait()
            assert not answered.is_set()
            del files.failing[refused]
        assert answered.is_set()
        files = FaultyFiles(killed(files.inner))  # type: ignore[arg-type]
    async with engine(files) as running:
        assert running.count("a") == (43 if "publishes" in what else 1)


async def test_a_transaction_has_a_limit() -> None:
    async with engine(MemoryFiles(), transaction_bytes_max=10_000) as running:
        client = await world(running)
        client.session.begin()
        client.publish("a", "x" * 9_000)
        with pytest.raises(LimitExceeded, match="transaction is larger than configured max size 10000"):
            client.publish("a", "x" * 900)
        client.session.close()
        assert counts(running)[0] == 3
        client = running.client()
        for _ in range(50):
            client.publish("a", "y")
        running.turn()
        await take(client, 50)
        client.session.begin()
        tags = [*range(1, 51, 2), *range(2, 51, 2)]
        with pytest.raises(LimitExceeded):
            list(map(client.ack, tags))
        client.session.close()
        assert counts(running)[0] == 53


@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.REQUEUE])
async def test_what_makes_a_transaction_too_large_at_once_is_not_lost(outcome: Outcome) -> None:
    async with engine(MemoryFiles(), transaction_bytes_max=2000) as running:
        for name in "ab":
            await running.queue(name)
        client = running.client()
        for name in "ab":
            await client.consume(name, tag=name)
        for number in range(20):
            for name in "ab":
                client.publish(name, number)
                running.turn()
        client.session.begin()
        with pytest.raises(LimitExceeded):
            client.session.settle_up_to(0, outcome)
        client.session.roll_back()
        client.session.settle(1, 2, Outcome.REQUEUE)
        client.session.close()
        running.turn()
        assert (running.count("a"), running.count("b")) == (20, 20)


FULL = {"x-max-length": 2, "x-overflow": "reject-publish"}


@pytest.mark.parametrize("others", [(), ("t",), ("b", "c")], ids=["one batch", "a transient queue", "a record"])
async def test_a_full_queue_refuses_the_whole(others: tuple[str, ...]) -> None:
    async with engine(MemoryFiles()) as running:
        client = await world(running)
        await running.queue("full", arguments=FULL)
        await take(client, 1)
        client.session.begin()

        async def commit(*numbers: int) -> None:
            for number in numbers:
                client.publish("full", number)
            for other in others:
                client.publish(other, *numbers)
            client.ack(1)
            await client.session.commit()

        before = counts(running)
        with pytest.raises(LimitExceeded, match=r"^queue 'full' in vhost '/' is full: nothing of the transaction"):
            await commit(1, 2, 3)
        assert counts(running) == before
        await commit(1, 2)
        assert running.count("full") == 2
        assert sum(counts(running)) == sum(before) + 2 * len(others)


async def test_what_is_decided_a_queue_takes_that_was_filled_meanwhile() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        client = await world(running)
        await running.queue("full", arguments=FULL)
        client.session.begin()
        client.publish("b", 1)
        client.publish("c", 1)
        client.publish("full", "of the transaction")
        writes, filled = threading.Event(), threading.Event()

        def wait(operation: str, path: str) -> None:
            if operation == "write" and path.startswith("transactions/"):
                writes.set()
                assert filled.wait(10)

        files.hook = wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.session.commit)
            assert await trio.to_thread.run_sync(writes.wait, 10)
            running.client().publish("full", 1, 2)
            running.turn()
            filled.set()
        files.hook = None
        assert sorted(body for body, _ in await running.drain("full")) == ["1", "2", "of the transaction"]


@pytest.mark.parametrize("gone", ["a", "log"])
async def test_what_is_deleted_while_it_is_decided_is_left_out(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        client = await world(running)
        broker = running.broker
        await take(client)
        change = broker.transactions.store.change

        async def change_slowly(*args: Any, **options: Any) -> None:
            await change(*args, **options)
            await (broker.delete_topic("log") if gone == "log" else broker.delete_queue(gone))

        monkeypatch.setattr(broker.transactions.store, "change", change_slowly)
        client.session.begin()
        client.ack(1, 2)
        publish_everywhere(client)
        await client.session.commit()
        running.turn()
        there = [name for name in QUEUES if name != gone]
        expected = {"a": 2, "b": 1, "c": 1, "d": 2}
        assert [running.count(name) for name in there] == [expected[name] for name in there]
    async with engine(files) as running:
        assert [running.count(name) for name in there] == [expected[name] for name in there]


async def test_returns_come_with_the_commit_and_passing_consumers_get_theirs() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("t", durable=False)
        listener = running.client()
        await listener.consume("t", no_ack=True)
        client = running.client()
        client.session.begin()
        client.publish("nowhere", "lost", mandatory=True)
        client.publish("t", "found", properties=TRANSIENT)
        assert (client.events, listener.take_bodies()) == ([], [])
        await client.session.commit()
        assert (client.events, listener.take_bodies()) == ([("returned", ["lost"], "NO_ROUTE")], ["found"])


async def test_settlements_free_the_prefetch_with_the_commit() -> None:
    async with engine(MemoryFiles()) as running:
        client = await world(running)
        client.session.set_prefetch(2, per_session=False)
        await client.consume("a")
        assert client.take_bodies() == ["a1", "a2"]
        client.session.begin()
        client.ack(1, 2)
        assert client.take_bodies() == []
        client.session.roll_back()
        assert client.take_bodies() == []
        client.ack(2)
        await client.session.commit()
        assert client.take_bodies() == ["a3"]
        client.ack(1)
        client.requeue(3)
        await client.session.commit()
        assert [(delivery.body, delivery.redelivered) for delivery in client.take()] == [("a3", True)]
