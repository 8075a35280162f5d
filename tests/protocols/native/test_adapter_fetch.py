"""Fetches through the native door of a real engine in memory: polls, limits, memory and disk."""

from __future__ import annotations

import pytest
import trio

from core_log.memory_files import MemoryFiles
from core_log.wall_clock import wall_clock_ms
from protocols.log_waits import LogWaits
from protocols.native import wire, wire_topics
from protocols.native.config import NativeConfig
from protocols.native.errors import ErrorCode
from tests.protocols.native.asking import fetch, fetched, parked, produce, produced, refused, until_parked
from tests.protocols.native.broker import batch_of, connected, native_broker, values_of

TIMEOUT_S = 30


async def test_a_long_poll_ends_with_the_first_record_and_holds_up_nobody() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        fetch_id = await peer.say(fetch(("t", 0, 0), wait_ms=60_000))
        produce_id = await peer.say(produce(("t", 0, batch_of(b"a"))))
        with trio.fail_after(TIMEOUT_S):
            replies = {(await peer.hear()).correlation_id, (await peer.hear()).correlation_id}
        assert replies == {fetch_id, produce_id}
        assert parked(running, "t") == 0


async def test_a_long_poll_ends_empty_when_its_time_is_over() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 2, {}))
        assert await fetched(peer, fetch(("t", 0, 0), ("t", 1, 0), wait_ms=10)) == [(None, []), (None, [])]
        assert await fetched(peer, fetch(("t", 0, 0), wait_ms=0)) == [(None, [])]
        assert parked(running, "t") == 0


async def test_bytes_min_waits_for_more() -> None:
    batch = batch_of(b"x" * 100)
    async with native_broker() as running, connected(running) as peer, connected(running) as other:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        await peer.say(fetch(("t", 0, 0), wait_ms=60_000, bytes_min=2 * len(batch)))
        await until_parked(running, "t")
        await produced(other, ("t", 0, batch))
        assert parked(running, "t") == 1
        await produced(other, ("t", 0, batch))
        reply = await peer.hear()
        assert isinstance(reply, wire.FetchReply)
        assert len(values_of(reply.entries[0].records)) == 2
        # more than can ever be sent is not waited for
        await produced(other, ("t", 0, batch), ("t", 0, batch))
        request = fetch(("t", 0, 0), wait_ms=60_000, bytes_min=1 << 30, bytes_max=2 * len(batch))
        ((_, values),) = await fetched(peer, request)
        assert len(values) == 2


async def test_limits_of_bytes_hold_but_for_the_first_batch() -> None:
    batch = batch_of(b"x" * 1000)
    size = len(batch)
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 3, {}))
        for partition in range(3):
            for _ in range(3):
                await produced(peer, ("t", partition, batch))
        every = [("t", partition, 0) for partition in range(3)]

        async def counts(**limits: int) -> list[int]:
            return [len(values) for _, values in await fetched(peer, fetch(*every, **limits))]

        assert await counts() == [3, 3, 3]
        assert await counts(each=2 * size) == [2, 2, 2]
        assert await counts(bytes_max=1) == [1, 0, 0]
        assert await counts(bytes_max=0) == [1, 0, 0]
        assert await counts(bytes_max=size) == [1, 0, 0]
        assert await counts(each=size, bytes_max=2 * size) == [1, 1, 0]
        assert await counts(bytes_max=4 * size) == [3, 1, 0]


async def test_what_a_fetch_cannot_have_is_answered_at_once() -> None:
    async with native_broker() as running, connected(running) as peer:
        await produced(peer, ("t", 0, batch_of(b"a")))
        request = fetch(("t", 0, 1), ("t", 0, 2), ("t", 1, 0), ("u", 0, 0), wait_ms=60_000)
        reply = await peer.ask(request)
        assert isinstance(reply, wire.FetchReply)
        codes = [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC]
        assert [entry.error and entry.error[0] for entry in reply.entries] == [None, *codes]
        assert (reply.entries[1].log_start_offset, reply.entries[1].high_watermark) == (0, 1)


async def test_parked_fetches_go_with_their_connection() -> None:
    async with native_broker() as running:
        async with connected(running) as peer:
            await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
            for _ in range(5):
                await peer.say(fetch(("t", 0, 0), wait_ms=60_000))
            await until_parked(running, "t", 5)
            timers = len(running.broker.timers)
        await until_parked(running, "t", 0)
        assert len(running.broker.timers) <= timers - 5


async def test_a_parked_fetch_survives_the_deletion_of_its_topic() -> None:
    async with native_broker() as running, connected(running) as peer, connected(running) as other:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        await peer.say(fetch(("t", 0, 0), wait_ms=60_000))
        await until_parked(running, "t")
        (waiting,) = LogWaits.of(running.broker.topics["t"].partitions[0].log)._waiters
        await other.ask(wire_topics.DeleteTopic(0, "t"))
        waiting.timed_out()  # type: ignore[attr-defined]
        running.broker.end_turn()
        with trio.fail_after(TIMEOUT_S):
            reply = await peer.hear()
        assert isinstance(reply, wire.FetchReply)
        assert reply.entries[0].error is not None
        assert reply.entries[0].error[0] == ErrorCode.UNKNOWN_TOPIC


async def test_requests_in_flight_at_the_limit_and_one_more() -> None:
    config = NativeConfig(requests_in_flight_max=3)
    async with native_broker(config=config) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        for _ in range(3):
            await peer.say(fetch(("t", 0, 0), wait_ms=60_000))
        assert await refused(peer, fetch(("t", 0, 0), wait_ms=60_000)) == ErrorCode.LIMIT_EXCEEDED
        assert parked(running, "t") == 3


@pytest.mark.parametrize("harm", ["a bit flips", "the file is gone"])
async def test_who_reads_what_is_damaged_for_good_is_told_so_and_not_to_try_again(harm: str) -> None:
    files = MemoryFiles()
    async with native_broker(files) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {"segment.bytes": "1024"}))
        for _ in range(4):
            await produced(peer, ("t", 0, batch_of(b"x" * 600)))
        log = running.broker.topics["t"].partitions[0].log
        path = log.segments[1].log_path
    if harm == "a bit flips":
        file = files.open(path)
        file.pwritev([bytes([file.pread(1, 100)[0] ^ 1])], 100)
    else:
        files.remove(path)
    async with native_broker(files) as running, connected(running) as peer:
        at = running.broker.topics["t"].partitions[0].log.segments[1].base_offset
        reply = await peer.ask(fetch(("t", 0, at), wait_ms=60_000))
        assert isinstance(reply, wire.FetchReply)
        assert reply.entries[0].error is not None
        assert reply.entries[0].error[:2] == (ErrorCode.CORRUPT_BATCH, False)
        assert await fetched(peer, fetch(("t", 0, at + 1))) == [(None, [b"x" * 600])]


async def test_what_left_memory_is_read_from_disk() -> None:
    files = MemoryFiles()
    async with native_broker(files) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 2, {}))
        for number in range(4):
            await produced(peer, ("t", number % 2, batch_of(b"%d" % number)))
    async with native_broker(files) as running, connected(running) as peer:
        assert running.broker.topics["t"].partitions[0].log.read(0, 1000) is None
        request = fetch(("t", 0, 0), ("t", 1, 0), ("t", 0, 1), wait_ms=60_000)
        assert await fetched(peer, request) == [(None, [b"0", b"2"]), (None, [b"1", b"3"]), (None, [b"2"])]
        assert await fetched(peer, fetch(("t", 0, 0), ("t", 1, 0), bytes_max=1)) == [(None, [b"0"]), (None, [])]


async def test_a_reader_that_does_not_read_costs_no_memory() -> None:
    """Fifty replies of 4 MiB each would be 200 MiB: they wait until the first is taken."""
    batch = batch_of(b"x" * 1_000_000, timestamp_ms=wall_clock_ms())  # not for retention to take
    async with native_broker(config=NativeConfig(fetch_bytes_max=4 << 20)) as running, connected(running) as peer:
        assert await produced(peer, *[("t", 0, batch)] * 4) == [(None, offset) for offset in range(4)]
        for _ in range(50):
            await peer.say(fetch(("t", 0, 0), wait_ms=60_000, bytes_max=4 << 20, each=4 << 20))
        (connection,) = running.shell.connections
        seen = 0
        with trio.fail_after(TIMEOUT_S):
            for _ in range(50):
                seen = max(seen, connection.outbox.pending_bytes)
                reply = await peer.hear()
                assert isinstance(reply, wire.FetchReply)
                assert len(reply.entries[0].records) == 4 * len(batch)
        assert seen < 16 << 20
