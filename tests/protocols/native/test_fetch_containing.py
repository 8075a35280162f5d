"""Fetches that look for something, through the native door of a real engine in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from core_log.batch_header import parse_header
from core_log.compression import Compression
from core_log.memory_files import MemoryFiles
from core_log.record_batch import BatchBuilder, encode_headers, iterate_records
from millrace import BlockingClient, TransactionalProducer
from protocols.native import wire, wire_topics
from protocols.native.clients.records import split_batches
from protocols.native.errors import ErrorCode, MillraceError
from protocols.native.wire_base import CONTAINING_BYTES_MAX, CONTAINING_MAX
from tests.protocols.native import broker as native
from tests.protocols.native.asking import fetch, parked, produced, refused, until_parked
from tests.protocols.native.broker import Peer, connected, native_broker

batch_of = partial(native.batch_of, timestamp_ms=1000)
"""The same bytes each time: single letters may stand in a checksum as well."""
TIMEOUT_S = 30


def looking(request: wire.Fetch, *groups: list[bytes]) -> wire.Fetch:
    request.containing = list(groups)
    return request


def entries_of(reply: wire.AnyReply) -> list[list[tuple[int, int, list[bytes | None] | None]]]:
    """(first offset, next offset, values) of the batches of each entry; no values of a control batch."""
    assert isinstance(reply, wire.FetchReply), reply
    found = []
    for entry in reply.entries:
        assert entry.error is None
        batches = []
        for batch in split_batches(entry.records):
            header = parse_header(batch)
            values = None if header.is_control else [record.value for record in iterate_records(batch)]
            batches.append((header.base_offset, header.next_offset, values))
        found.append(batches)
    return found


async def found_by(peer: Peer, request: wire.Fetch) -> list[list[tuple[int, int, list[bytes | None] | None]]]:
    return entries_of(await peer.ask(request))


@pytest.mark.parametrize("in_memory", [True, False])
async def test_what_has_nothing_of_it_is_left_out(in_memory: bool) -> None:
    files = MemoryFiles()
    async with native_broker(files) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 2, {"retention.ms": "-1"}))
        for value in (b"a", b"b", b"ab", b"c"):
            await produced(peer, ("t", 0, batch_of(value)), ("t", 1, batch_of(value)))
        if in_memory:
            assert await found_by(peer, looking(fetch(("t", 0, 0)), [b"b"])) == [
                [(1, 2, [b"b"]), (2, 3, [b"ab"]), (3, 4, None)]
            ]
            return
    async with native_broker(files) as running, connected(running) as peer:
        assert running.broker.topics["t"].partitions[0].log.read(0, 1000) is None
        request = looking(fetch(("t", 0, 1), ("t", 1, 3), ("t", 1, 4)), [b"a", b"c"], [b"b", b"c"])
        assert await found_by(peer, request) == [[(2, 3, [b"ab"]), (3, 4, [b"c"])], [(3, 4, [b"c"])], []]
        broker = running.broker
        assert (broker.looked_bytes, broker.left_out_bytes) == (3 * 69 + 70, 69)
        assert await found_by(peer, looking(fetch(("t", 0, 0)), [b"x", b""])) == await found_by(
            peer, fetch(("t", 0, 0))
        )
        assert await refused_offset(peer)


async def refused_offset(peer: Peer) -> bool:
    reply = await peer.ask(looking(fetch(("t", 0, 9), wait_ms=60_000), [b"b"]))
    assert isinstance(reply, wire.FetchReply)
    return reply.entries[0].error is not None and reply.entries[0].error[0] == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_long_poll_that_sees_nothing_of_it_is_answered_and_moves_on() -> None:
    async with native_broker() as running, connected(running) as peer, connected(running) as other:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        await produced(other, ("t", 0, batch_of(b"a", b"a")))
        request = looking(fetch(("t", 0, 0), wait_ms=60_000, bytes_min=1 << 19), [b"b"])
        with trio.fail_after(TIMEOUT_S):
            assert await found_by(peer, request) == [[(0, 2, None)]]
            await peer.say(looking(fetch(("t", 0, 2), wait_ms=60_000, bytes_min=1 << 19), [b"b"]))
            await until_parked(running, "t")
            await produced(other, ("t", 0, batch_of(b"b")))
            found = entries_of(await peer.hear())
            assert found == [[]], "parked it is answered without, and asks again"
            assert await found_by(peer, looking(fetch(("t", 0, 2), wait_ms=60_000), [b"b"])) == [[(2, 3, [b"b"])]]
        assert parked(running, "t") == 0


async def test_what_may_be_looked_for_has_limits() -> None:
    async with native_broker() as running, connected(running) as peer:
        await produced(peer, ("t", 0, batch_of(b"a")))
        half = CONTAINING_MAX // 2
        request = looking(fetch(("t", 0, 0)), [b"x"] * half, [b"a"] * half)
        assert await found_by(peer, request) == [[(0, 1, None)]]
        too_many = looking(fetch(("t", 0, 0)), [b"x"] * half, [b"a"] * half, [b"a"])
        assert await refused(peer, too_many) == ErrorCode.LIMIT_EXCEEDED
        too_long = looking(fetch(("t", 0, 0)), [b"x" * (CONTAINING_BYTES_MAX + 1)])
        assert await refused(peer, too_long) == ErrorCode.LIMIT_EXCEEDED
        for groups in ([[]], [[b"x"]] * (CONTAINING_MAX + 1), [[b"x"] * (CONTAINING_MAX + 1)]):
            assert await refused(peer, looking(fetch(("t", 0, 0)), *groups)) == ErrorCode.INVALID_REQUEST


async def test_aborted_transactions_are_not_shown_for_what_they_contain() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        async with TransactionalProducer(running.server, "one") as producer:
            for number in range(4):
                await producer.begin()
                await producer.send("t", b"%d" % number, key=b"abort" if number % 2 else b"commit", partition=0)
                await producer.flush()
                await (producer.abort() if number % 2 else producer.commit())
        (found,) = await found_by(peer, looking(fetch(("t", 0, 0)), [b"commit"]))
        assert [values for _, _, values in found if values] == [[b"0"], [b"2"]]
        (found,) = await found_by(peer, looking(fetch(("t", 0, 0)), [b"abort"]))
        assert [values for _, _, values in found if values] == []
        assert found[-1][1] == 8, "the end of the last transaction"


def _random_batches(rng: random.Random) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Batches, and the (key, value of a header) of their records."""
    for _ in range(60):
        builder = BatchBuilder(
            0, -1, 1000, compression=rng.choice([Compression.NONE, Compression.NONE, Compression.LZ4])
        )
        rows = []
        for offset in range(rng.randrange(1, 8)):
            key, value = rng.randbytes(rng.randrange(3)), rng.choice([b"", b"a", b"bc", rng.randbytes(3)])
            builder.add(offset, key, rng.randbytes(rng.randrange(5)), [("name", value)])
            rows.append((key, value))
        yield builder.build(), rows


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_has_it_is_lost(seed: int) -> None:
    """Random keys and headers, in all sizes of fetches; groups are conditions that hold together."""
    rng = random.Random(seed)
    batches = list(_random_batches(rng))
    rows = [row for _, each in batches for row in each]
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {"retention.ms": "-1"}))
        for batch, _ in batches:
            await produced(peer, ("t", 0, batch))
        for _ in range(12):
            key, value = rng.choice(rows)
            wanted, offset, end = [[key], [b"\x08name", value]], 0, len(rows)
            seen: set[int] = set()
            while offset < end:
                request = looking(fetch(("t", 0, offset), each=rng.choice([1, 300, 5000])), *wanted)
                (found,) = await found_by(peer, request)
                offset = found[-1][1]
                seen |= {one for first, behind, values in found if values is not None for one in range(first, behind)}
            assert {at for at, row in enumerate(rows) if row == (key, value)} <= seen


async def test_clients_say_it_to_brokers_that_know_it() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        for key in (b"a", b"b", b"c"):
            builder = BatchBuilder(0, -1, 1000)
            builder.add_run(0, key, [b"v"], encode_headers([]))
            await produced(peer, ("t", 0, builder.build()))

        def ask() -> list[tuple[int, bool]]:
            with BlockingClient(running.server) as client:
                found = client.fetch("t", 0, 0, containing=[[b"b"]]).batches
                with pytest.raises(MillraceError, match=f"at most {CONTAINING_MAX} byte strings"):
                    client.fetch("t", 0, 0, containing=[[b"x" * (CONTAINING_BYTES_MAX + 1)]])
            return [(parse_header(batch).base_offset, parse_header(batch).is_control) for batch in found]

        assert await trio.to_thread.run_sync(ask) == [(1, False), (2, True)]
