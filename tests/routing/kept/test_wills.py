"""What is published for who is gone: once, whatever happens."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import FaultyFiles, MemoryFiles
from routing.errors import StorageUnavailable
from routing.kept.wills import Will
from routing.queues.homes.reclaim import give_back
from tests.routing.harness import PERSISTENT, Engine, engine, killed, passing

TAG = PERSISTENT.log_tag


def will(body: bytes = b"gone", **more: object) -> Will:
    fields = {"user": "guest", "exchange": "amq.topic", "routing_key": "k", "tag": TAG, "retained_tag": None}
    return Will(**{**fields, "body": body, **more})  # type: ignore[arg-type]


async def watched(at: Engine) -> None:
    await at.queue("q")
    await at.bind("amq.topic", "q", "#")


async def test_it_is_published_when_its_owner_is_gone_and_not_when_he_took_leave() -> None:
    async with engine(MemoryFiles()) as at:
        await watched(at)
        wills = at.broker.wills
        await wills.keep("/", "a", will(b"a is gone"))
        await wills.keep("/", "b", will(b"b is gone"))
        await wills.keep("/", "c", will(b"old"))
        await wills.keep("/", "c", will(b"new"))
        wills.erase("/", "b")
        for name in ("a", "b", "c", "nobody"):
            wills.send("/", name, 0)
        await at.until(lambda: at.count("q") == 2)
        assert [body for body, _ in await at.drain("q")] == ["a is gone", "new"]
        wills.send("/", "a", 0)
        await wills.finish()
        assert at.count("q") == 0


async def test_a_delay_gives_time_to_come_back(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as at:
        await watched(at)
        wills = at.broker.wills
        for name in ("late", "back", "afresh"):
            await wills.keep("/", name, will(name.encode()))
            wills.send("/", name, 10_000)
        await passing(clock, 9)
        wills.returned("/", "back", afresh=False)
        wills.returned("/", "nobody", afresh=True)
        assert at.count("q") == 0
        wills.returned("/", "afresh", afresh=True)
        await at.until(lambda: at.count("q") == 1)
        await passing(clock, 1.1)
        await at.until(lambda: at.count("q") == 2)
        await passing(clock, 100)
        assert [body for body, _ in await at.drain("q")] == ["afresh", "late"]


async def test_a_delay_of_a_hundred_years_is_one(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as at:
        await watched(at)
        await at.broker.wills.keep("/", "a", will())
        at.broker.wills.send("/", "a", 0xFFFFFFFF * 1000)
        await passing(clock, 86_400 * 365)
        assert at.count("q") == 0


async def test_what_is_retained_of_it_is_there_as_soon_as_it_is_decided() -> None:
    async with engine(MemoryFiles()) as at:
        await at.broker.wills.keep("/", "a", will(retained_tag=TAG))
        at.broker.wills.send("/", "a", 0)
        found = at.broker.retained.get("/", "k")
        assert found is not None
        assert found.body == b"gone"


async def test_one_that_may_not_be_published_is_dropped() -> None:
    async with engine(MemoryFiles()) as at:
        await watched(at)
        wills = at.broker.wills
        await wills.keep("/", "a", will(user="nobody"))
        await wills.keep("/", "b", will(exchange="none"))
        await wills.keep("none", "c", will())
        for vhost, name in (("/", "a"), ("/", "b"), ("none", "c")):
            wills.send(vhost, name, 0)
        await wills.finish()
        assert at.count("q") == 0


@pytest.mark.parametrize("delay_ms", [0, 5_000, 60_000])
async def test_after_a_kill_who_does_not_come_back_is_gone(delay_ms: int, clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        await watched(at)
        await at.broker.wills.keep("/", "gone", will(b"gone", delay_ms=delay_ms))
        await at.broker.wills.keep("/", "back", will(b"back", delay_ms=delay_ms))
        await at.broker.wills.keep("/", "left", will(b"left", delay_ms=delay_ms))
        at.broker.wills.erase("/", "left")
        await at.broker.retained.log.wait_committed(at.broker.retained.log.log_end_offset)
        left = killed(files)
    async with engine(left, will_grace_ms=30_000) as at:
        at.broker.wills.returned("/", "back", afresh=True)
        await passing(clock, max(30_000, delay_ms) / 1000 - 1)
        assert at.count("q") == 0
        await passing(clock, 2)
        await at.until(lambda: at.count("q") > 0)
        await at.broker.wills.finish()
        await at.synced()
        await at.broker.retained.log.wait_committed(at.broker.retained.log.log_end_offset)
        left = killed(left)
    async with engine(left) as at:
        await passing(clock, 1000)
        assert [body for body, _ in await at.drain("q")] == ["gone"]


async def test_a_delay_goes_on_after_a_kill(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        await watched(at)
        for name in ("a", "b"):
            await at.broker.wills.keep("/", name, will(name.encode(), delay_ms=1))
            at.broker.wills.send("/", name, 100_000)
        await at.broker.wills.finish()
        await at.broker.retained.log.wait_committed(at.broker.retained.log.log_end_offset)
        await passing(clock, 50)
        left = killed(files)
    async with engine(left) as at:
        at.broker.wills.returned("/", "b", afresh=False)
        await passing(clock, 49)
        assert at.count("q") == 0
        await passing(clock, 2)
        await at.until(lambda: at.count("q") == 1)
        assert [body for body, _ in await at.drain("q")] == ["a"]


async def test_a_clean_stop_publishes_what_is_due() -> None:
    files = MemoryFiles()
    async with engine(files) as at:
        await watched(at)
        await at.broker.wills.keep("/", "a", will())
        at.broker.wills.send("/", "a", 0)
    async with engine(files) as at:
        assert at.count("q") == 1


async def test_a_kill_at_any_moment_leaves_it_published_once(clock: MockClock) -> None:
    """The disk is looked at after each step of the publishing, and a broker started on what it had."""
    files = MemoryFiles()
    pictures: list[MemoryFiles] = []

    def pictured(call: Callable[[], None]) -> Callable[[], None]:
        def turn() -> None:
            pictures.append(killed(files))
            pictures.append(files.crash())
            call()
            pictures.append(killed(files))

        return turn

    async with engine(files, stripes=1) as at:
        await watched(at)
        await at.broker.wills.keep("/", "a", will())
        assert at.broker.after_turn is not None
        at.broker.after_turn = pictured(at.broker.after_turn)
        at.broker.wills.send("/", "a", 0)
        await at.until(lambda: at.count("q") == 1)
        await at.broker.wills.finish()
        await at.synced()
        await at.broker.retained.log.wait_committed(at.broker.retained.log.log_end_offset)
        pictures.append(killed(files))
    assert len(pictures) > 6
    for found in pictures:
        async with engine(found, stripes=1, will_grace_ms=0) as at:
            await passing(clock, 1)
            await at.broker.wills.finish()
            await at.until(lambda: at.count("q") > 0)
            assert [body for body, _ in await at.drain("q")] == ["gone"]


async def test_it_is_published_once_where_a_kill_took_what_came_before_it(clock: MockClock) -> None:
    memory, let_go = MemoryFiles(), threading.Event()
    files = FaultyFiles(memory)
    kept: list[str] = []

    def hold_queues(operation: str, path: str) -> None:
        if operation == "write" and path.startswith("queues/"):
            let_go.wait(20)

    def hold_the_removal_of_the_note(operation: str, path: str) -> None:
        if operation == "write" and path.startswith("retained/"):
            kept.append(path)
            if len(kept) > 3:
                let_go.wait(20)

    async with engine(files, stripes=1) as at:
        await watched(at)
        await at.broker.wills.keep("/", "a", will())
        await at.synced()
        files.hook = hold_queues
        at.client().publish("q", *range(10))
        at.turn()
        at.broker.wills.send("/", "a", 0)
        await wait_all_tasks_blocked(0.1)
        left = killed(memory)
        let_go.set()
    let_go.clear()
    files = FaultyFiles(left)
    files.hook = hold_the_removal_of_the_note
    async with engine(files, stripes=1) as at:
        await at.until(lambda: at.count("q") == 1)
        await at.synced()
        again = killed(left)
        let_go.set()
    async with engine(again, stripes=1) as at:
        await at.broker.wills.finish()
        assert [body for body, _ in await at.drain("q")] == ["gone"]


async def test_what_a_start_looks_at_is_kept_until_it_is_safe() -> None:
    files, let_go = FaultyFiles(MemoryFiles()), threading.Event()

    def hold_queues(operation: str, path: str) -> None:
        if operation == "write" and path.startswith("queues/"):
            let_go.wait(20)

    async with engine(files, stripes=1) as at:
        await watched(at)
        await at.synced()
        (home,) = at.broker.topology.led
        for name in ("a", "b"):
            await at.broker.wills.keep("/", name, will(name.encode()))
        before = home.next_offset
        files.hook = hold_queues
        for name in ("a", "b"):
            at.broker.wills.send("/", name, 0)
        await at.until(lambda: at.count("q") == 2)
        await at.drain("q")
        assert home.first_live_offset == before
        let_go.set()
        await at.broker.wills.finish()
        assert home.first_live_offset == home.next_offset


async def test_one_that_was_taken_does_not_come_again_though_its_note_does() -> None:
    """The removal of the note is in no hurry: a power loss may take it, when the log of the queue has begun anew."""
    files = MemoryFiles()
    async with engine(files, stripes=1) as at:
        await watched(at)
        await at.client().publish_safely("q", b"x" * 100_000)
        await at.drain("q")
        await at.broker.wills.keep("/", "a", will())
        at.broker.wills.send("/", "a", 0)
        await at.broker.wills.finish()
        assert [body for body, _ in await at.drain("q")] == ["gone"]
        (home,) = at.broker.topology.led
        end = home.next_offset
        while home.log.log_start_offset < end:
            give_back(home)
            await at.synced()
        await at.client().publish_safely("q", "later")
        await at.synced()
        files.sync_directory("queues/0")
        found = files.crash()
    async with engine(found, stripes=1) as at:
        assert at.broker.wills._recovered
        await wait_all_tasks_blocked()
        await at.broker.wills.finish()
        assert [body for body, _ in await at.drain("q")] == ["later"]


async def test_it_is_published_once_where_the_disk_refuses_what_has_it(clock: MockClock) -> None:
    """It was published once more, a second later, though its queue had it."""
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as at:
        await watched(at)
        await at.synced()
        wills, home = at.broker.wills, at.home("q").log
        await wills.keep("/", "a", will())

        def refuse(operation: str, path: str) -> None:
            if operation in ("write", "sync") and path.startswith(home.directory):
                raise OSError(errno.EIO, "bad", path)

        files.hook = refuse
        wills.send("/", "a", 0)
        await at.until(lambda: home.error is not None)
        await passing(clock, 3)
        files.hook = None
        await passing(clock, 3)
        await at.until(lambda: home.error is None)
        await passing(clock, 3)
        await wills.finish()
        assert [body for body, _ in await at.drain("q")] == ["gone"]
    async with engine(files) as at:
        await passing(clock, 100)
        assert await at.drain("q") == []


@pytest.mark.parametrize("second", [b"1", b"2"])
async def test_one_that_the_disk_refused_is_published_though_its_owner_is_back_first(
    second: bytes, clock: MockClock
) -> None:
    """It was lost, or, where the next one is the same, that one."""
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as at:
        await watched(at)
        wills, log = at.broker.wills, at.broker.retained.log
        await wills.keep("/", "a", will(b"1"))

        def refuse(operation: str, path: str) -> None:
            if operation in ("write", "sync") and path.startswith(log.directory):
                raise OSError(errno.EIO, "bad", path)

        files.hook = refuse
        with pytest.raises(StorageUnavailable):
            await wills.keep("/", "b", will())
        wills.send("/", "a", 0)
        wills.returned("/", "a", afresh=False)
        with pytest.raises(StorageUnavailable):
            await wills.keep("/", "a", will(b"refused"))
        wills.erase("/", "a")
        files.hook = None
        while log.error is not None:
            await passing(clock, 0.1)
        wills.returned("/", "a", afresh=False)
        await wills.keep("/", "a", will(second))
        await passing(clock, 3)
        await wills.finish()
        assert [body for body, _ in await at.drain("q")] == ["1"]
        wills.send("/", "a", 0)
        await wills.finish()
        assert [body for body, _ in await at.drain("q")] == [second.decode()]
