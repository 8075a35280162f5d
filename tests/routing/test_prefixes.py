"""Checkpoints, and the parts of logs that nobody needs any more."""

from __future__ import annotations

import errno

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.message import Slab
from routing.queues.fact_columns import BLOCK_BITS
from routing.queues.homes.reclaim import shed
from routing.queues.homes.replay import checkpoint_path
from routing.queues.homes.standby import Standby
from routing.queues.packed_ranges import unpack
from tests.routing.harness import TRANSIENT, Engine, engine, killed
from tests.routing.test_storage import log_bytes


async def test_the_log_shrinks_and_what_is_left_is_right() -> None:
    files = MemoryFiles()
    config = {"stripes": 1, "queue_segment_bytes": 20_000, "housekeeping_interval_ms": 1}
    async with engine(files, **config) as running:
        for name in ("a", "b", "c"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        for name in ("a", "b"):
            await client.consume(name, no_ack=True)
        # the destination set is defined at the very start of the log and needed to its end
        for number in range(200):
            client.publish("", *[f"{number}.{at:050}" for at in range(100)], exchange="amq.fanout")
            client.publish("c", f"single {number}")
            running.turn()
        client.deliveries.clear()
        await running.synced()
        log = running.home("a").log
        grown = log.size_bytes
        assert grown > 1_000_000
        consumer = running.client()
        await consumer.consume("c")
        running.turn()
        await running.until(lambda: len(consumer.deliveries) == 200 * 101)
        consumer.ack(1, 200 * 101 - 40)
        consumer.session.close()
        await running.synced()
        await running.until(lambda: log.size_bytes < grown / 4)
        await client.publish_safely("", "after", exchange="amq.fanout")
        await running.synced()
        assert log_bytes(files, log.directory) < grown / 2
        for consuming in list(client.session.consumers):
            client.session.cancel(consuming)
        await client.publish_safely("", "last", exchange="amq.fanout")
        found = files.crash()
    for again, redelivered in ((found, True), (files, False)):
        async with engine(again, **config) as running:
            assert await running.drain("a") == [("last", redelivered)]
            drained = await running.drain("c")
            assert len(drained) == 42
            assert [body for body, _ in drained[-2:]] == ["after", "last"]


async def test_a_crash_while_a_prefix_is_deleted_keeps_what_the_rest_needs() -> None:
    """Definitions in the prefix are written again, and must be durable before the prefix goes."""
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    async with engine(files, stripes=1, queue_segment_bytes=10_000) as running:
        await running.queue("q")
        client = running.client()
        await client.consume("q", no_ack=True)
        for number in range(3):
            client.publish("q", *[number] * 17_000)
            running.turn()
        client.session.cancel(next(iter(client.session.consumers)))
        home = running.home("q")
        assert len(client.deliveries) == 51_000
        await client.publish_safely("q", "kept")
        pictures: list[MemoryFiles] = []
        files.hook = lambda operation, path: pictures.append(memory.crash())
        while home.log.log_start_offset < 30_000:
            home.delete_dead_prefix()
            running.turn()
            await running.until(lambda: home.log.job is None and not home.log._pending)
        await client.publish_safely("q", "more")
        files.hook = None
        pictures.append(memory.crash())
    assert len(pictures) > 10
    for picture in pictures:
        async with engine(picture, stripes=1, queue_segment_bytes=10_000) as running:
            bodies = [body for body, _ in await running.drain("q")]
            assert bodies in (["kept"], ["kept", "more"])
    assert bodies == ["kept", "more"]


async def test_a_quiet_log_is_not_told_to_move_its_start_again_and_again() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        client = running.client()
        await client.consume("q", no_ack=True)
        home = running.home("q")
        saved: list[str] = []
        files.hook = lambda operation, path: saved.append(path) if "log-start" in path else None
        for number in range(5):
            client.publish("q", *[number] * 20_000)
            await running.synced()
            home.delete_dead_prefix()
            await running.synced()
        assert saved == [], "no segment could be dropped"


@pytest.mark.parametrize("picture", [MemoryFiles.crash, lambda files: files], ids=["crash", "stop"])
async def test_checkpoints_shorten_the_replay_and_say_the_same(picture: object) -> None:
    files = MemoryFiles()
    config = {"stripes": 1, "checkpoint_interval_bytes": 5000, "housekeeping_interval_ms": 1}
    async with engine(files, **config) as running:
        for name in ("q", "r"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        home = running.home("q")
        client.session.set_prefetch(10, per_session=False)
        await client.consume("q")
        settled: set[str] = set()
        delivered: set[str] = set()
        for number in range(300):
            await client.publish_safely("", f"{number:050}", exchange="amq.fanout")
            for delivery in client.take():
                delivered.add(delivery.body)
                if number % 3:
                    client.ack(delivery.id)
                    settled.add(delivery.body)
        await running.until(lambda: files.exists(checkpoint_path(home.log)))
        await running.synced()
        found = picture(files)  # type: ignore[operator]
    crashed = found is not files
    expected = [f"{number:050}" for number in range(300) if f"{number:050}" not in settled]
    async with engine(found, **config) as running:
        assert await running.drain("q") == [(body, crashed or body in delivered) for body in expected]
        assert [body for body, _ in await running.drain("r")] == [f"{number:050}" for number in range(300)]


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "future"])
async def test_without_its_checkpoint_the_log_alone_is_enough(damage: str) -> None:
    files = MemoryFiles()
    config = {"stripes": 1, "checkpoint_interval_bytes": 100, "housekeeping_interval_ms": 1}
    async with engine(files, **config) as running:
        for name in ("q", "r", "s"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        client.publish("k", "never stored", exchange="amq.direct")
        running.broker.topology.vhost("/").router.routed(
            _slab("amq.fanout")
        )  # a destination set that the log has not heard of
        home = running.home("q")
        await running.until(lambda: home.unchecked_bytes == 0)
        await client.publish_safely("q", *range(20))
        await client.consume("q")
        client.take()
        client.ack(1, 5)
        client.session.close()
    async with engine(files, **config) as running:
        await running.client().publish_safely("", "for all", exchange="amq.fanout")
    path = "queues/0/checkpoint"
    file = files.open(path)
    if damage == "cut":
        file.truncate(files.size(path) - 1)
    elif damage == "flip":
        file.pwritev([b"\xff\xff"], 12)
    elif damage == "remove":
        files.remove(path)
    else:
        for name in files.list("queues/0"):
            if name != "checkpoint":
                files.remove(f"queues/0/{name}")
    async with engine(files, **config) as running:
        drained = [body for body, _ in await running.drain("q")]
        others = [body for body, _ in await running.drain("r")]
        if damage == "future":
            assert (drained, others) == ([], [])
        else:
            assert drained == [*map(str, range(5, 20)), "for all"]
            assert others == ["for all"]
        await running.client().publish_safely("q", "goes on")
        assert await running.drain("q") == [("goes on", False)]


async def test_a_checkpoint_that_cannot_be_saved_is_no_disaster() -> None:
    files = FaultyFiles(MemoryFiles())
    config = {"stripes": 1, "checkpoint_interval_bytes": 100, "housekeeping_interval_ms": 1}
    async with engine(files, **config) as running:
        await running.queue("q")
        tried = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def fail(operation: str, path: str) -> None:
            if "checkpoint" in path and operation in ("open", "write"):
                token.run_sync_soon(tried.set)
                raise OSError(errno.ENOSPC, "full")

        files.hook = fail
        await running.client().publish_safely("q", *range(100))
        await tried.wait()
    files.hook = None
    async with engine(files) as running:
        assert [body for body, _ in await running.drain("q")] == [str(number) for number in range(100)]


@pytest.mark.parametrize("durable", [True, False])
async def test_destination_sets_that_come_and_go_leave_nothing_behind(durable: bool) -> None:
    files = MemoryFiles()
    config = {"stripes": 1, "queue_segment_bytes": 5000}
    async with engine(files, **config) as running:
        client = running.client()
        await running.queue("stays", durable=durable)
        await running.bind("amq.fanout", "stays")
        home = running.home("stays")
        for number in range(60):
            name = f"q{number}"
            await running.queue(name, durable=durable)
            await running.bind("amq.fanout", name)
            client.publish("", f"{number:01000}", exchange="amq.fanout")
            running.turn()
            if number < 50:
                await running.broker.delete_queue(name)
            await running.broker.purge_queue("stays")
            running.turn()
        for number in range(50, 60):
            await running.broker.purge_queue(f"q{number}")
        assert len(home.sets.in_use) <= 1
        if durable:
            assert len(home.sets.definitions) == 60
            client.publish("stays", *["x" * 1000] * 20_000, confirm=True)
            await running.synced()
            for _ in range(3):
                await running.broker.purge_queue("stays")
                await running.synced()
                home.delete_dead_prefix()
                await running.synced()
            assert len(home.sets.definitions) <= 1
        await client.publish_safely("", "last", exchange="amq.fanout")
        assert running.count("stays") == running.count("q55") == 1
        found = files.crash()
    async with engine(found, **config) as running:
        if durable:
            assert await running.drain("stays") == [("last", True)]
            assert await running.drain("q55") == [("last", True)]


async def test_nothing_is_left_of_a_connection_with_many_queues() -> None:
    async with engine(MemoryFiles()) as running:
        owner = object()
        for number in range(300):
            await running.broker.declare_queue(f"q{number}", exclusive=True, owner=owner)
            running.client(owner).publish(f"q{number}", 1)
        home = running.broker.topology.transient
        running.turn()
        running.broker.release(owner)
        assert not home.sets.definitions
        assert not home.queues
        assert len(home.sets.in_use) == 0
        assert home.first_live_offset == home.next_offset


def _slab(exchange: str) -> Slab:
    return Slab(exchange, "", TRANSIENT, [b""])


async def test_a_transient_backlog_that_fills_the_disk_loses_its_oldest(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles(), transient_memory_bytes=1000, queue_segment_bytes=50_000) as running:
        await running.queue("stalled", durable=False)
        await running.queue("short", durable=False)
        client = running.client()
        client.publish("short", "kept")
        for start in range(0, 3000, 50):
            client.publish("stalled", *[f"{number:0200}" for number in range(start, start + 50)])
            running.turn()
        home = running.home("stalled")
        assert shed(home, 1 << 30) == 0
        assert shed(home, 100_000) == 1501
        assert "queue stalled loses its 1501 oldest messages" in caplog.text
        assert "short" not in caplog.text
        assert await running.drain("short") == [("kept", False)]
        assert [int(body) for body, _ in await running.drain("stalled")] == list(range(1501, 3000))


async def test_settlements_wait_for_company_but_not_for_long() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1, settle_delay_ms=5) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", *range(100))
        log = running.home("q").log
        await client.consume("q")
        client.take()
        before = log.log_end_offset
        for number in range(1, 51):
            client.ack(number)
            running.turn()
        assert log.log_end_offset == before
        await running.until(lambda: log.log_end_offset > before)
        assert log.log_end_offset == before + 1
        await running.synced()
        found = killed(files)
        client.ack(51)
        running.turn()
        await client.publish_safely("q", "takes it along")
        assert log.log_end_offset == before + 4
        client.ack(52, 100)
    async with engine(found) as running:
        assert await running.drain("q") == [(str(number), True) for number in range(50, 100)]
    async with engine(files) as running:
        assert await running.drain("q") == [("takes it along", True)]


@pytest.mark.parametrize("gone", [False, True], ids=["settled", "deleted"])
@pytest.mark.parametrize("again", [False, True], ids=["running", "started-again"])
async def test_the_log_defines_all_sets_that_it_names(gone: bool, again: bool) -> None:
    """Else a new replica takes nothing from its standby to the last, as a definition might still come, and a start says
    that messages are lost.
    """
    files = MemoryFiles()
    config = {"stripes": 1, "queue_segment_bytes": 1_000_000, "checkpoint_interval_bytes": 1 << 30}
    async with engine(files, **config) as running:
        for name in ("brief", "kept"):
            await running.queue(name)
        client = running.client()
        await client.consume("brief", no_ack=True)
        for _ in range(30):
            client.publish("brief", "x" * 40_000)
            await running.synced()
        # up to the end of a block, which is what is looked at as a whole
        client.publish("brief", *[0] * (-running.home("brief").next_offset % (1 << BLOCK_BITS) - 1))
        await running.synced()
        await client.publish_safely("kept", "first live")
        await client.publish_safely("kept", "y" * 600_000)
        if gone:
            await running.broker.delete_queue("brief")
        found = killed(files) if again else files
        if not again:
            await shortened(running)
    if again:
        async with engine(found, **config) as running:
            await shortened(running)


async def shortened(running: Engine) -> None:
    """The start of the log has gone, and each set that what is left names is defined there."""
    home = running.home("kept")
    (queue,) = (one for one in home.queues.values() if one.name == "kept")
    for _ in range(3):
        home.delete_dead_prefix()
        await running.synced()
    standby = Standby(home.log.log_start_offset)
    assert standby.offset > 0
    standby.read(home.log, home.log.log_end_offset)
    assert standby.is_defined
    standby.fold(home.queues, home.log.log_start_offset)
    assert sum(count for _, count in unpack(standby.live[queue.id])) == running.count("kept")
