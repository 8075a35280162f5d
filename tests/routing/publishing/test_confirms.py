"""What a confirm promises, and when it may be given."""

from __future__ import annotations

import errno
import threading

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from core_log.record_batch import encode_headers
from routing.errors import LimitExceeded, StorageUnavailable
from routing.message import Properties
from tests.routing.harness import PERSISTENT, TRANSIENT, Client, engine, killed


class Gate:
    """Holds up one kind of operation on the logs of queues and topics."""

    def __init__(self, files: FaultyFiles, operation: str) -> None:
        self.operation = operation
        self.open = threading.Event()
        self.reached = threading.Event()
        files.hook = self.pass_through

    def pass_through(self, operation: str, path: str) -> None:
        if operation == self.operation and path.endswith(".log") and path.startswith(("queues/", "topics/")):
            self.reached.set()
            assert self.open.wait(20)

    def wait_until_reached(self) -> None:
        assert self.reached.wait(20)


def refused(client: Client) -> list[tuple[int, int]]:
    return [event[1:] for event in client.events if event[0] == "refuse"]


async def test_deliveries_leave_before_their_publishers_are_told() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", durable=False)
        publisher, reader = running.client(), running.client()
        await reader.consume("q", no_ack=True)
        sent: list[tuple[int, int]] = []
        running.broker.after_turn = lambda: sent.append((len(reader.deliveries), publisher.confirmed))
        publisher.publish("q", 1, 2, properties=TRANSIENT, confirm=True)
        running.turn()
        assert sent == [(2, 0), (2, 2)]


@pytest.mark.parametrize("target", ["queue", "topic"])
async def test_a_persistent_message_is_confirmed_after_the_sync(target: str) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        if target == "queue":
            await running.queue("q")
            await running.bind("amq.fanout", "q")
            log = running.home("q").log
        else:
            log = (await running.broker.create_topic("t")).partitions[0].log
            await running.broker.bind("topic", "t", "amq.fanout", "")
        client = running.client()
        gate = Gate(files, "sync")
        committed: list[int] = []
        client.on_confirm = lambda _: committed.append(log.committed_offset)
        client.publish("k", 1, 2, 3, exchange="amq.fanout", confirm=True)
        end = log.log_end_offset
        assert client.events == []
        running.turn()
        await trio.to_thread.run_sync(gate.wait_until_reached)
        running.turn()
        assert client.events == [], "the sync is under way, nothing is promised"
        assert log.committed_offset <= end
        gate.open.set()
        await running.until(lambda: bool(client.events))
        assert client.events == [("confirm", 3)]
        assert committed[0] >= end + 3


async def test_a_transient_message_in_a_durable_queue_waits_for_the_write_alone() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        await running.queue("q")
        await running.client().publish_safely("q", "the files are there now")
        client = running.client()
        gate = Gate(files, "write")
        client.publish("q", 1, properties=TRANSIENT, confirm=True)
        running.turn()
        await trio.to_thread.run_sync(gate.wait_until_reached)
        running.turn()
        assert client.events == []
        syncs: list[str] = []
        files.hook = lambda operation, path: syncs.append(path) if operation == "sync" else None
        gate.open.set()
        await running.until(lambda: bool(client.events))
        assert client.events == [("confirm", 1)]
        assert syncs == []


@pytest.mark.parametrize("fsync", ["interval", "never"])
async def test_with_another_fsync_the_write_is_enough_for_all(fsync: str) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, fsync=fsync, fsync_interval_ms=3_600_000) as running:
        await running.queue("q")
        await running.client().publish_safely("q", 0)  # the first write of all notes the leader epoch
        syncs: list[str] = []
        files.hook = lambda operation, path: syncs.append(path) if operation == "sync" else None
        await running.client().publish_safely("q", 1, 2)
        assert syncs == []
        assert isinstance(files.inner, MemoryFiles)
        found = killed(files.inner)
        files.hook = None
    async with engine(found, fsync=fsync) as running:
        assert await running.drain("q") == [("0", True), ("1", True), ("2", True)]


async def test_without_a_durable_target_the_turn_is_enough() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", durable=False)
        client = running.client()
        client.publish("q", 1, 2, confirm=True)
        client.publish("nowhere", 3, confirm=True)
        assert client.events == []
        running.turn()
        assert client.events == [("confirm", 3)]


async def test_what_nobody_wants_is_returned_before_it_is_confirmed() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        client.publish("q", 1, confirm=True, mandatory=True)
        client.publish("nowhere", "a", "b", confirm=True, mandatory=True)
        client.publish("nowhere", "c", confirm=True)
        running.turn()
        assert client.events == [("returned", ["a", "b"], "NO_ROUTE")]
        await running.until(lambda: len(client.events) > 1)
        assert client.events == [("returned", ["a", "b"], "NO_ROUTE"), ("confirm", 4)]


async def test_confirms_are_cumulative_and_in_order() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=2) as running:
        await running.queue("slow")
        await running.queue("fast")
        assert running.home("slow") is not running.home("fast")
        client = running.client()
        await client.publish_safely("slow", "warm")
        await client.publish_safely("fast", "up")
        client.events.clear()
        slow = running.home("slow").log.directory
        held = threading.Event()

        def hold_slow(operation: str, path: str) -> None:
            if operation == "sync" and path.startswith(slow):
                assert held.wait(20)

        files.hook = hold_slow
        client.publish("slow", 1, confirm=True)
        running.turn()
        fast = running.home("fast").log
        client.publish("fast", 2, 3, confirm=True)
        running.turn()
        await running.until(lambda: fast.committed_offset == fast.log_end_offset)
        assert client.events == [], "the first one is not safe yet"
        held.set()
        await running.until(lambda: bool(client.events))
        assert client.events == [("confirm", 5)]


async def test_a_message_for_two_stripes_waits_for_both() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=2) as running:
        for name in ("a", "b"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        logs = [running.home("a").log, running.home("b").log]
        assert logs[0] is not logs[1]
        client = running.client()
        client.on_confirm = lambda up_to: None if up_to == 0 else checked.append([log.committed_offset for log in logs])
        checked: list[list[int]] = []
        for number in range(20):
            client.publish("", number, exchange="amq.fanout", confirm=True)
            ends = [running.home(name).next_offset for name in ("a", "b")]
            running.turn()
            await running.until(lambda number=number: client.confirmed == number + 1)  # type: ignore[misc]
            assert all(done >= end for done, end in zip(checked[-1], ends))


async def test_sessions_are_confirmed_apart() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        clients = [running.client() for _ in range(5)]
        for number in range(40):
            clients[number % 5].publish("q", number, confirm=number % 7 != 0)
            if number % 3 == 0:
                running.turn()
        running.turn()
        wanted = [sum(number % 7 != 0 for number in range(at, 40, 5)) for at in range(5)]
        await running.until(lambda: [client.confirmed for client in clients] == wanted)
        for client in clients:
            confirms = [event[1] for event in client.events]
            assert confirms == sorted(set(confirms))


async def test_a_closed_session_is_told_nothing_more() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        client.publish("q", 1, confirm=True)
        client.session.close()
        await running.synced()
        assert client.events == []
        assert await running.drain("q") == [("1", False)]


@pytest.mark.parametrize(("operation", "code"), [("sync", errno.EIO), ("write", errno.ENOSPC)])
@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
async def test_a_failing_disk_refuses_and_nothing_is_confirmed_until_it_recovers(
    operation: str, code: int, properties: Properties
) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        log = running.home("q").log
        client = running.client()
        await client.publish_safely("q", "before")
        files.failing[operation] = code
        client.publish("q", "during", confirm=True)
        running.turn()
        await running.until(lambda: log.error is not None)
        assert client.events == [("confirm", 1), ("refuse", 2, 2)]
        client.publish("q", "refused at once", "and this", confirm=True)
        if properties is PERSISTENT:
            with pytest.raises(StorageUnavailable):
                client.publish("q", "there is no other way to tell", properties=properties)
        else:
            client.publish("q", "not even noticed", properties=properties)
        client.publish("nowhere", "no disk is needed for this", confirm=True)
        running.turn()
        assert client.events[2:] == [("refuse", 3, 4), ("confirm", 5)]
        assert running.broker.refused_messages == 3
        del files.failing[operation]
        await running.until(lambda: log.error is None)
        client.publish("q", "after", confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 6)
        assert refused(client) == [(2, 2), (3, 4)]
        found = files.crash()
    async with engine(found) as running:
        assert [body for body, _ in await running.drain("q")] == ["before", "during", "after"]


async def test_one_failing_stripe_does_not_stop_the_others() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=2) as running:
        await running.queue("bad")
        await running.queue("good")
        client = running.client()
        await client.publish_safely("good", 1)
        directory = running.home("bad").log.directory

        def fail(operation: str, path: str) -> None:
            if operation in ("write", "sync") and path.startswith(directory):
                raise OSError(errno.EIO, "no")

        files.hook = fail
        client.publish("good", 2, confirm=True)
        client.publish("bad", 3, confirm=True)
        running.turn()
        await running.until(lambda: bool(refused(client)))
        assert refused(client) == [(2, 3)], "a turn is confirmed or refused as a whole"
        client.publish("bad", 4, confirm=True)
        client.publish("good", 5, 6, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 6)
        assert refused(client) == [(2, 3), (4, 4)]
        files.hook = None
        await running.until(lambda: running.home("bad").log.error is None)
        await client.publish_safely("bad", 7)
        assert [body for body, _ in await running.drain("bad")] == ["3", "7"]
        assert [body for body, _ in await running.drain("good")] == ["1", "2", "5", "6"]


async def test_consuming_goes_on_while_the_disk_fails_and_what_was_settled_is_written_afterwards() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        log = running.home("q").log
        client = running.client()
        await client.publish_safely("q", *range(1, 6))
        files.failing["write"] = errno.ENOSPC
        await client.consume("q")
        assert client.take_bodies() == ["1", "2", "3", "4", "5"]
        client.ack(1, 2)
        running.turn()
        await running.until(lambda: log.error is not None)
        client.ack(4)
        client.requeue(5)
        running.turn()
        assert [(d.body, d.redelivered) for d in client.take()] == [("5", True)]
        del files.failing["write"]
        await running.until(lambda: log.error is None)
        await running.synced()
        found = files.crash()
    async with engine(found) as running:
        assert await running.drain("q") == [("3", True), ("5", True)]


async def test_clients_come_and_go_while_the_disk_fails() -> None:
    files = FaultyFiles(MemoryFiles())
    owner = object()
    async with engine(files, stripes=1) as running:
        broker = running.broker
        await running.queue("q")
        await running.queue("passing", auto_delete=True)
        await running.bind("amq.fanout", "passing")
        await broker.declare_queue("mine", exclusive=True, owner=owner)
        await broker.bind("queue", "mine", "amq.topic", "#", owner=owner)
        client = running.client(owner)
        await client.publish_safely("q", 1)
        await client.consume("q")
        await client.consume("passing", tag="p")
        await client.consume("mine", tag="m")
        assert client.take_bodies() == ["1"]
        files.failing["write"] = files.failing["sync"] = errno.EIO
        for act in (
            lambda: broker.declare_queue("new", durable=True),
            lambda: broker.declare_queue("newer", durable=True),
            lambda: broker.declare_exchange("new", "fanout", durable=True),
            lambda: broker.bind("queue", "q", "amq.topic", "k"),
            lambda: broker.delete_queue("q"),
            lambda: broker.create_topic("t"),
        ):
            with pytest.raises(StorageUnavailable):
                await act()
        client.publish("q", 2, confirm=True)
        running.turn()
        await running.until(lambda: bool(refused(client)))
        client.session.close()
        broker.release(owner)
        running.turn()
        assert "mine" not in broker.topology.queues
        assert not [b for b in broker.topology.exchanges["amq.topic"].bindings if b.destination == ("queue", "mine")]
        assert running.count("q") == 2
        files.failing.clear()
        await running.until(lambda: not any(log.error for log in broker.logs))
        await running.queue("after the storm")
        assert await running.drain("q") == [("1", True), ("2", True)]


async def test_a_disk_that_fails_until_the_end_loses_nothing_that_was_confirmed() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", *range(5))
        files.failing["write"] = files.failing["sync"] = files.failing["rename"] = errno.EIO
        client.publish("q", "lost", confirm=True)
        running.turn()
        await running.until(lambda: bool(refused(client)))
    files.failing.clear()
    async with engine(files.inner) as running:
        assert [body for body, _ in await running.drain("q")] == [str(number) for number in range(5)]


async def test_message_size_limits_are_exact_and_checked_before_anything_is_enqueued() -> None:
    async with engine(MemoryFiles(), message_bytes_max=5000) as running:
        await running.queue("q")
        await running.broker.create_topic("t", config={"max.message.bytes": "2000"})
        await running.bind("amq.fanout", "q")
        await running.broker.bind("topic", "t", "amq.direct", "key")
        await running.broker.bind("queue", "q", "amq.direct", "key")
        client = running.client()
        await client.publish_safely("", "x" * 5000, exchange="amq.fanout")
        with pytest.raises(LimitExceeded, match=r"^message size 5001 is larger than configured max size 5000$"):
            client.publish("", "small", "x" * 5001, exchange="amq.fanout", confirm=True)
        around = 61 + 24 + len("key") + len(encode_headers([]))
        await client.publish_safely("key", "small", "x" * (2000 - around), exchange="amq.direct")
        with pytest.raises(LimitExceeded, match=r"larger than topic 't' takes \(1939\)$"):
            client.publish("key", "small", "x" * (2001 - around), exchange="amq.direct", confirm=True)
        assert client.confirmed == 3
        assert [len(body) for body, _ in await running.drain("q")] == [5000, 5, 2000 - around]


@pytest.mark.parametrize("target", ["queue", "topic"])
async def test_very_many_small_messages_in_one_turn_are_cut_into_batches(target: str) -> None:
    """Keys and headers count: a run of empty bodies may be larger than a batch may be."""
    files = MemoryFiles()
    async with engine(files, message_bytes_max=16 << 10) as running:
        if target == "queue":
            await running.queue("q")
            await running.bind("amq.fanout", "q")
            log = running.home("q").log
        else:
            log = (await running.broker.create_topic("t")).partitions[0].log
            await running.broker.bind("topic", "t", "amq.fanout", "")
        client = running.client()
        start = log.log_end_offset
        for _ in range(4):
            client.publish("k" * 250, *[""] * 5000, exchange="amq.fanout", confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 20_000)
        assert log.log_end_offset >= start + 20_000
        if target == "queue":
            found = files.crash()
            async with engine(found) as again:
                assert again.count("q") == 20_000
