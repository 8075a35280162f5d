"""The directory: both ways, cut short, damaged; and what a start makes of logs with it, without it, and torn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from core_log.batch_header import HEADER_BYTES
from core_log.errors import CorruptBatch
from core_log.files import MemoryFiles
from core_log.record_batch import BatchBuilder, BatchHeader, decode_runs, parse_header
from routing.facts import pack
from routing.message import Properties, Slab
from routing.queues.fact_columns import Columns, from_columns, to_columns
from routing.queues.homes.directory import (
    DIRECTORY_BIT,
    Directory,
    Move,
    decode_directory,
    directory_of,
    each_of,
    encode_directory,
    facts_of,
)
from routing.queues.waiting import live_ranges
from tests.routing.harness import PERSISTENT, PROTOCOL, Client, engine, killed

WIDE = pack(True, 255, 1000, 1 << 40)
CASES: dict[str, tuple[list[tuple[int, int]], list[Columns | None] | None, list[Move]]] = {
    "nothing": ([], None, []),
    "one": ([(1, 1)], None, []),
    "many": ([(at, at % 7 + 1) for at in range(500)], None, []),
    "large": ([((1 << 32) - 1, (1 << 32) - 1)], None, []),
    "one fact": ([(1, 1000)], [to_columns([pack(True, 9)])], []),
    "facts": ([(1, 3), (2, 2), (3, 1)], [to_columns([1, 2, 3]), None, to_columns([WIDE])], []),
    "facts of each": ([(1, 3), (2, 1)], [to_columns([1, 2, 3]), to_columns([9])], []),
    "wide facts": ([(1, 3)], [to_columns([1, WIDE, 3])], []),
    "moved": ([(1, 3), (9, 1)], None, [Move(5, 0), Move(1 << 60, 1_700_000_000_000)]),
    "moved facts": ([(1, 2)], [to_columns([1, WIDE])], [Move(5, 0)]),
}


def each_fact(found: Directory) -> list[Columns | None]:
    """The facts of each slab, one a message."""
    if found.each is not None:
        assert found.facts is None
        low, first = found.each[0], found.firsts[0]
        return [(low[at - first : at - first + count], None) for at, count in zip(found.firsts, found.counts)]
    facts = found.facts or [None] * len(found.counts)
    return [None if one is None else each_of(one, count) for one, count in zip(facts, found.counts, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_both_ways_and_cut_short(case: str) -> None:
    entries, facts, moves = CASES[case]
    record = encode_directory(entries, facts, moves)
    if facts is None and not moves:
        assert len(record) == 8 + 8 * len(entries)
    found = decode_directory(record, 1000)
    assert list(zip(found.set_ids, found.counts, strict=True)) == entries
    assert list(found.firsts) == [1000 + sum(count for _, count in entries[:at]) for at in range(len(entries))]
    assert each_fact(found) == [
        None if one is None else each_of(one, count)
        for (_, count), one in zip(entries, facts or [None] * len(entries), strict=True)
    ]
    assert (found.moves or []) == moves
    for size in range(0, len(record), 1 if len(record) < 200 else 97):
        with pytest.raises(CorruptBatch):
            decode_directory(record[:size], 1000)
    with pytest.raises(CorruptBatch):
        decode_directory(record + b"\0", 1000)


def test_damage_is_an_error_or_another_directory() -> None:
    dice = random.Random(3)
    for case in CASES.values():
        record = encode_directory(*case)
        for _ in range(300):
            damaged = bytearray(record)
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            try:
                found = decode_directory(bytes(damaged), 0)
            except CorruptBatch:
                continue
            assert len(found.set_ids) == len(found.counts) == len(found.firsts) <= len(record)


def test_the_record_in_its_batch() -> None:
    record = encode_directory([(7, 2)])
    builder = BatchBuilder(50, 3, 1_000, attributes=DIRECTORY_BIT)
    builder.add_first(record)
    builder.add_run(51, b"", [b"a", b"b"])
    size = builder.size_estimate
    batch = builder.build()
    assert len(batch) == size
    header = parse_header(batch)
    assert header.attributes == DIRECTORY_BIT
    assert not header.is_control
    assert directory_of(batch, header).firsts == [51]
    assert [(run.first_offset, run.count, run.key) for run in decode_runs(batch)] == [(50, 1, None), (51, 2, b"")]
    for size in range(61, 70):
        with pytest.raises(CorruptBatch):
            directory_of(batch[:size], header)
    keyed = BatchBuilder(50, 3, 1_000)
    keyed.add(50, b"key", record)
    with pytest.raises(CorruptBatch):
        directory_of(keyed.build(), header)


def test_facts_of_slabs() -> None:
    plain = Properties(PROTOCOL, b"", persistent=True)
    urgent = Properties(PROTOCOL, b"", persistent=True, facts=pack(True, 9))
    assert facts_of(Slab("", "", plain, [b"", b""])) is None
    one = facts_of(Slab("", "", urgent, [b"", b""]))
    assert one is not None
    assert from_columns(*one) == [pack(True, 9)]
    assert from_columns(*each_of(one, 2)) == [pack(True, 9)] * 2
    each = facts_of(Slab("", "", plain, [b"", b""], facts=[1, WIDE]))
    assert each is not None
    assert from_columns(*each_of(each, 2)) == [1, WIDE]
    assert from_columns(*each_of(each, 1)) == [1]


# --- starts --------------------------------------------------------------------------------------------------------


def logs(files: MemoryFiles) -> Iterator[str]:
    for stripe in files.list("queues"):
        for name in files.list(f"queues/{stripe}"):
            if name.endswith(".log"):
                yield f"queues/{stripe}/{name}"


def batches(files: MemoryFiles, path: str) -> list[tuple[BatchHeader, bytes]]:
    data, at, found = bytes(files.open(path).pread(files.size(path), 0)), 0, []
    while any(data[at : at + HEADER_BYTES]):  # behind the last there may be room
        header = parse_header(data, at)
        found.append((header, data[at : at + header.size]))
        at += header.size
    return found


def without_directories(files: MemoryFiles) -> int:
    """Make the logs what they were before there were directories; how many there were."""
    count = 0
    for path in list(logs(files)):
        parts = []
        for header, batch in batches(files, path):
            if header.attributes & DIRECTORY_BIT:
                count += 1
                builder = BatchBuilder(header.base_offset, header.leader_epoch, header.base_timestamp_ms)
                for run in decode_runs(batch)[1:]:
                    builder.add_run(run.first_offset, run.key, run.values, run.header_block)
                batch = builder.build()
            parts.append(batch)
        data = b"".join(parts)
        file = files.open(path)
        file.truncate(0)
        file.pwritev([data], 0)
    return count


async def fill(files: MemoryFiles) -> tuple[MemoryFiles, dict[str, list[str]]]:
    """Queues that share messages, with some settled; what a kill leaves and what must be there."""
    async with engine(files, stripes=1) as running:
        for name in ("a", "b", "c"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        for turn in range(20):
            client.publish("a", *range(turn * 100, turn * 100 + 5))
            client.publish("b", turn * 100 + 5)
            client.publish("", *range(turn * 100 + 6, turn * 100 + 9), exchange="amq.fanout")
            await client.publish_safely("c", turn * 100 + 9)
        for name in ("a", "b"):
            for _ in range(13):
                await client.session.get(name, no_ack=True)
        await running.synced()
        found = killed(files)
        return found, {name: [body for body, _ in await running.drain(name)] for name in ("a", "b", "c")}


@pytest.mark.parametrize("old", [False, True], ids=["with directories", "without"])
async def test_logs_with_and_without_directories_give_the_same_queues(old: bool) -> None:
    found, expected = await fill(MemoryFiles())
    if old:
        assert without_directories(found) >= 20
    async with engine(found, stripes=1) as running:
        for name, bodies in expected.items():
            assert [body for body, _ in await running.drain(name)] == bodies
        await running.client().publish_safely("a", "new")
        again = killed(found)
    async with engine(again, stripes=1) as running:
        assert await running.drain("a") == [("new", True)]


async def test_a_torn_turn_is_what_the_log_has_of_it_for_ever() -> None:
    """A turn of several batches loses its last: the directory speaks of messages that are not there, nor ever were."""
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        client = running.client()
        for number in range(4):
            client.publish("q", f"{number}:" + "x" * 600_000)
        await client.publish_safely("q", "last")
        found = killed(files)
    (path,) = logs(found)
    data = [entry for entry in batches(found, path) if not entry[0].is_control]
    assert [bool(header.attributes & DIRECTORY_BIT) for header, _ in data] == [True] + [False] * (len(data) - 1)
    assert len(data) > 2
    found.open(path).truncate(found.size(path) - len(data[-1][1]) - 100)
    present = sum(header.record_count for header, _ in data[:-2]) - 1
    for name in ("torn", "grown", "grown more"):
        async with engine(found, stripes=1) as running:
            assert running.count("q") == present, name
            client = running.client()
            await client.publish_safely("q", "new")
            present += 1
            found = killed(found)
    async with engine(found, stripes=1) as running:
        bodies = [body[:2] for body, _ in await running.drain("q")]
        assert bodies == [f"{number}:" for number in range(present - 3)] + ["ne"] * 3


def fact_slab(count: int, first: int, facts: list[int] | None, properties: Properties = PERSISTENT) -> Slab:
    return Slab("", "q", properties, [str(first + at).encode() for at in range(count)], facts=facts)


async def publish(client: Client, slab: Slab) -> None:
    client.session.publish(slab, confirm=True)
    wanted = client.session.confirms.published
    client.engine.turn()
    await client.engine.until(lambda: client.confirmed >= wanted)


async def test_facts_are_found_again_by_offset_and_in_slabs_read_back() -> None:
    files = MemoryFiles()
    urgent = Properties(PROTOCOL, b"", persistent=True, facts=pack(True, 7))
    each = [pack(True, at % 10, 500_000 + at) for at in range(40)]
    config: dict[str, Any] = {"stripes": 1, "stripe_cache_bytes": 0}
    async with engine(files, **config) as running:
        await running.queue("q")
        client = running.client()
        await publish(client, fact_slab(40, 0, each))
        await publish(client, fact_slab(3, 40, None))
        await publish(client, fact_slab(5, 43, None, urgent))
        await running.client().session.get("q", no_ack=True)
        await running.synced()
        found = killed(files)
    expected = each[1:] + [1] * 8  # the priority means nothing to this queue
    async with engine(found, **config) as running:
        home = running.home("q")
        at = 0
        for first, count in live_ranges(running.broker.topology.queues["q"]):
            for offset in range(first, first + count):
                known = home.facts.of(offset)
                assert (known[0] if known else 1) == expected[at]
                assert known is None or known[1] > 1_600_000_000_000
                at += 1
        assert at == len(expected)
        client = running.client()
        for _ in expected:
            assert await client.session.get("q", no_ack=True) is not None
        assert not home.facts
