"""Homes of which the disk has lost something that nobody else has: it is said once, and the rest flows on."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio

from core_log.errors import CorruptBatch
from core_log.files import Files
from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.replica_log import ReplicaLog
from core_log.threads import in_thread
from routing.cluster.trash import put_aside
from routing.queues.homes import standby_feed
from routing.queues.homes.standby_feed import Known, StandbyFeed
from routing.queues.packed_ranges import unpack
from routing.session import Outcome
from tests.routing.harness import engine

COUNT = 100
LOG = f"queues/0/{0:020d}.log"
CONFIG = {"stripes": 1, "stripe_cache_bytes": 10_000}


async def filled(files: MemoryFiles, **config: int) -> None:
    """A queue of messages of which the first ten are settled, on a broker that was stopped."""
    async with engine(files, **CONFIG, **config) as running:
        await running.broker.declare_queue("q", durable=True)
        client = running.client()
        for number in range(COUNT):
            await client.publish_safely("q", f"{number:01000}")
        client.session.set_prefetch(10, per_session=False)
        await client.consume("q")
        running.turn()
        await running.until(lambda: len(client.deliveries) == 10)
        client.session.settle_up_to(client.take()[-1].id, Outcome.ACK)
        running.turn()


def flip(files: MemoryFiles, share: float) -> None:
    file, position = files.open(LOG), int(files.size(LOG) * share)
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 4])], position)


async def left(files: Files) -> list[int]:
    """What a consumer gets after another start."""
    async with engine(files, **CONFIG) as running:
        client = running.client()
        await client.consume("q")
        got: list[int] = []
        queue = running.broker.topology.queues["q"]
        with trio.fail_after(20):
            while queue.message_count or queue.outstanding:
                running.turn()
                for one in client.take():
                    got.append(int(one.body))
                    client.session.settle(one.id, one.id, Outcome.ACK)
                await trio.sleep(0.001)
            while running.broker.topology.stripes[0].log.error is not None:
                await trio.sleep(0.001)
        publisher = running.client()
        with trio.fail_after(20):
            while not publisher.confirmed:  # the disk may refuse once more, and what was refused be there all the same
                answered = len(publisher.events)
                publisher.publish("q", "1000", confirm=True)
                while len(publisher.events) == answered:
                    running.turn()
                    await trio.sleep(0.001)
        await running.until(lambda: client.deliveries)
        assert set(client.take_bodies()) == {"1000"}
        return got


@pytest.mark.parametrize("without", ["the file", "the checkpoint"])
async def test_a_start_goes_on_behind_what_is_damaged(without: str, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    await filled(files)
    flip(files, 0.5)
    if without == "the checkpoint":
        files.remove("queues/0/checkpoint")
    got = await left(files)
    assert len(set(got)) == len(got) > 80
    assert set(range(10, 40)) | set(range(60, 100)) <= set(got)
    assert len(caplog.records) <= 4, "said once for the place, and not for each message"


async def test_much_that_is_gone_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    await filled(files)
    file = files.open(LOG)
    file.pwritev([bytes(40_000)], 30_000)
    got = await left(files)
    assert 40 < len(got) < 70
    assert len(caplog.records) <= 6


@pytest.mark.parametrize("opened", range(5, 14))
async def test_what_a_disk_refuses_behind_what_is_damaged_is_asked_for_again(opened: int) -> None:
    inner = MemoryFiles()
    await filled(inner)
    flip(inner, 0.5)
    files, turns = FaultyFiles(inner), iter(range(opened + 40))

    def hook(operation: str, path: str) -> None:
        if (operation, path) == ("open", LOG) and next(turns, 0) >= opened:
            raise OSError(errno.EMFILE, "too many open files")

    files.hook = hook
    assert len(await left(files)) > 80


async def test_messages_whose_queues_stand_in_the_checkpoint_only(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    await filled(files, queue_segment_bytes=1 << 16)
    names = [name for name in files.list("queues/0") if name.endswith(".log")]
    assert len(names) == 2, "which queues there are stands in the first"
    files.remove(LOG)
    last = f"queues/0/{names[1]}"
    files.open(last).truncate(files.size(last) - 3000)
    got = await left(files)
    assert got == list(range(got[0], got[-1] + 1))
    assert len(got) > 30
    assert len(caplog.records) < 6


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_replica_leads_a_damaged_home_if_nobody_else_could(
    elsewhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    await filled(files)
    flip(files, 0.5)
    files.remove("queues/0/checkpoint")
    log = ReplicaLog.open_replica(files, "queues/0", LogConfig(), LogFlusher(), wall_clock_ms=lambda: 0)
    log.high_watermark = end = log.log_end_offset
    log.may_hand_over = lambda: elsewhere

    async def known() -> Known:
        return Known(None)

    feed = StandbyFeed(files, log, checkpoint_interval_bytes=1 << 30, save=lambda log, content: None, known=known)
    if elsewhere:
        with pytest.raises(CorruptBatch):
            await feed.finish(end, Known(None))
        return
    standby = await feed.finish(end, Known(None))
    (live,) = (sum(count for _, count in unpack(ranges)) for ranges in standby.live.values() if ranges)
    assert 80 < live <= COUNT
    assert len(caplog.records) == 1


async def test_a_standby_whose_replica_is_moved_away_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    await filled(files)
    log = ReplicaLog.open_replica(files, "queues/0", LogConfig(), LogFlusher(), wall_clock_ms=lambda: 0)
    log.high_watermark = log.log_end_offset

    async def known() -> Known:
        return Known(None)

    feed = StandbyFeed(files, log, checkpoint_interval_bytes=1 << 30, save=lambda log, content: None, known=known)
    log.close(keep=False)
    put_aside(files, "queues/0", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await trio.sleep(0.1)
        await feed.stop()
    assert caplog.messages == []


async def test_a_standby_goes_on_where_the_log_begins_by_the_time_that_it_reads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    await filled(files, queue_segment_bytes=20_000)
    files.remove("queues/0/checkpoint")
    log = ReplicaLog.open_replica(files, "queues/0", LogConfig(), LogFlusher(), wall_clock_ms=lambda: 0)
    log.high_watermark = end = log.log_end_offset

    async def known() -> Known:
        return Known(None)

    async def behind(work: Callable[..., object], *arguments: object) -> object:
        if log.log_start_offset == 0 and not arguments[1:]:
            log.delete_prefix(end // 2)
        return await in_thread(work, *arguments)

    monkeypatch.setattr(standby_feed, "in_thread", behind)
    feed = StandbyFeed(files, log, checkpoint_interval_bytes=1 << 30, save=lambda log, content: None, known=known)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        with trio.fail_after(5):
            while feed.standby.offset < end and not caplog.messages:
                await trio.sleep(0.001)
        await feed.stop()
    assert caplog.messages == []
    assert log.log_start_offset == end // 2


async def test_what_is_damaged_at_a_follower_goes_with_what_has_gone_at_its_leader() -> None:
    """Its standby, which cannot read it, held it for ever, and all that came after it."""
    files = MemoryFiles()
    await filled(files, queue_segment_bytes=20_000)
    files.remove("queues/0/checkpoint")
    flip(files, 0.5)
    log = ReplicaLog.open_replica(files, "queues/0", LogConfig(), LogFlusher(), wall_clock_ms=lambda: 0)
    log.high_watermark = end = log.log_end_offset
    log.needed_from = 0

    async def known() -> Known:
        return Known(None)

    feed = StandbyFeed(files, log, checkpoint_interval_bytes=1 << 30, save=lambda log, content: None, known=known)
    log.follow_start(end // 2)
    assert log.log_start_offset == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        with trio.fail_after(5):
            while feed.standby.offset < end:
                await trio.sleep(0.001)
        await feed.stop()
    assert log.log_start_offset == end // 2
