"""Queues read by who is no consumer: browsed, or with messages set aside that outlive crashes until done with."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import AsyncGenerator, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles, MemoryFiles
from core_log.record_batch import iterate_records, parse_header
from routing import filter_streams
from routing.access.grants import Permission
from routing.administration import administer
from routing.errors import AccessRefused, BrokerError, InvalidArgument, NotFound, PreconditionFailed, StorageUnavailable
from routing.facts import pack
from routing.message import Properties, Slab
from routing.queues.homes.queue_partition import QueuePartition
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, PROTOCOL, Engine, engine, killed, passing, wall_clock_ms, with_headers

HOUR_MS = 3_600_000


async def ask(running: Engine, operation: str, **arguments: Any) -> Any:
    return await administer(running.broker, "guest", operation, {"name": "q", **arguments})


async def reserve(running: Engine, position: int, count: int, **arguments: Any) -> tuple[int, int]:
    """Up to which position, and how many still wait."""
    given = {"reader": "r", "position": position, "count": count, "lease_ms": HOUR_MS, **arguments}
    found = await ask(running, "queues.reserve", **given)
    assert found["position"] == position
    return found["end"], found["ready"]


def bodies_of(batches: bytes) -> list[tuple[int, str]]:
    found, at = [], 0
    while at < len(batches):
        header = parse_header(batches, at)
        batch = batches[at : at + header.size]
        found += [(one.offset, bytes(one.value or b"").decode()) for one in iterate_records(batch)]
        at += header.size
    return found


async def read(running: Engine, position: int, end: int, bytes_max: int = 1 << 20, reader: str = "r") -> list[str]:
    """The bodies at these positions, in as many answers as it takes."""
    found: list[tuple[int, str]] = []
    start = position
    while position < end:
        answer = await ask(
            running, "queues.reserved", reader=reader, position=position, before=end, bytes_max=bytes_max
        )
        found += bodies_of(answer["batches"])
        assert answer["next"] > position
        position = answer["next"]
    assert [number for number, _ in found] == list(range(start, end))
    return [body for _, body in found]


async def browse(running: Engine, offset: int = 0, before: int = 1 << 40, bytes_max: int = 1 << 20) -> list[str]:
    found: list[tuple[int, str]] = []
    before = min(before, (await ask(running, "queues.ends"))["end"])
    while offset < before:
        answer = await ask(running, "queues.browse", offset=offset, before=before, bytes_max=bytes_max)
        found += bodies_of(answer["batches"])
        assert answer["next"] > offset
        offset = answer["next"]
    assert [number for number, _ in found] == sorted({number for number, _ in found})
    return [body for _, body in found]


def texts(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


async def filled(running: Engine, count: int, **arguments: Any) -> None:
    await running.queue("q", arguments=arguments or None)
    client = running.client()
    for first in range(0, count, 10):
        await client.publish_safely("q", *range(first, min(first + 10, count)))
    client.session.close()


async def test_what_is_reserved_is_out_of_line_until_it_is_done_with() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running, 30)
        assert await reserve(running, 0, 12) == (12, 18)
        assert await read(running, 0, 12, bytes_max=100) == texts(0, 12)
        assert await read(running, 3, 7) == texts(3, 7)
        assert await reserve(running, 0, 12) == (12, 18), "the same again"
        assert await reserve(running, 0, 5) == (5, 18), "no less than there is, but no more is told"
        assert await reserve(running, 5, 10) == (15, 15)
        assert await read(running, 5, 15) == texts(5, 15)
        with pytest.raises(PreconditionFailed, match="asks for positions 4 to 15 and has 5 to 15"):
            await read(running, 4, 15)
        assert await reserve(running, 15, 0) == (15, 15)
        queue = running.broker.topology.queues["q"]
        assert (queue.outstanding, queue.message_count) == (0, 15)
        assert [body for body, _ in await running.drain("q")] == texts(15, 30)
        assert await reserve(running, 15, 10) == (15, 0)


@pytest.mark.parametrize("how", ["stop", "kill", "power", "shortened"])
async def test_what_is_reserved_outlives_the_process(how: str, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    config: dict[str, Any] = {"queue_segment_bytes": 4096} if how == "shortened" else {}
    async with engine(files, **config) as running:
        if how == "shortened":
            await filled(running, 400)
            await running.drain("q")
        await filled(running, 200)
        await reserve(running, 0, 50)
        await reserve(running, 20, 40)
        await reserve(running, 7, 3, reader="other")
        client = running.client()
        got = [await client.session.get("q", no_ack=False) for _ in range(2)]
        assert all(got)
        if how == "shortened":
            client.session.close()
            await reserve(running, 40, 10)
            await running.shortened(running.home("q"), 0)
        found = files.crash() if how == "power" else killed(files)
    assert "the next start goes by the log" not in caplog.text
    if how == "stop":
        found = files
    done = 40 if how == "shortened" else 20
    async with engine(found, **config) as running:
        assert await read(running, done, 60) == texts(done, 60)
        assert await read(running, 7, 10, reader="other") == texts(60, 63)
        assert await reserve(running, done, 60 - done) == (60, 137)
        assert await reserve(running, 60, 5) == (65, 132)
        assert await read(running, 60, 65) == texts(63, 68)
        assert await ask(running, "queues.give_back", reader="r") == 5
        assert [body for body, _ in await running.drain("q")] == texts(63, 200)
        assert await ask(running, "queues.give_back", reader="other") == 3
        await running.synced()
        again = killed(found)
    async with engine(again, **config) as running:
        assert await running.drain("q") == [(body, True) for body in texts(60, 63)]


async def test_who_is_not_heard_of_loses_what_is_reserved(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await filled(running, 10)
        await reserve(running, 0, 4, lease_ms=1000)
        await passing(clock, 0.6)
        await read(running, 0, 1)
        await passing(clock, 0.6)
        assert await read(running, 0, 4) == texts(0, 4), "to read is to be heard of"
        await passing(clock, 1.1)
        with pytest.raises(PreconditionFailed, match="has nothing"):
            await read(running, 0, 4)
        assert running.count("q") == 10
        await running.synced()
        found = killed(files)
        assert await reserve(running, 0, 4, lease_ms=1000) == (4, 6)
        kept = killed(files)
    async with engine(found) as running:
        assert running.count("q") == 10
    async with engine(kept) as running:
        assert running.count("q") == 6
        await passing(clock, 1.1)
        assert running.count("q") == 10


async def test_another_position_begins_anew() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running, 10)
        assert await reserve(running, 100, 4) == (104, 6)
        assert await reserve(running, 0, 3) == (3, 7)
        assert await read(running, 0, 3) == texts(0, 3)
        with pytest.raises(PreconditionFailed):
            await read(running, 100, 104)


async def test_priorities_come_first_and_transient_messages_too() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments={"x-max-priority": 5})
        client = running.client()
        for number in range(6):
            properties = Properties(PROTOCOL, b"", persistent=number != 5, facts=pack(number != 5, number % 3))
            client.publish("q", number, properties=properties, confirm=True)
            running.turn()
        assert await reserve(running, 0, 4) == (4, 2)
        first = await read(running, 0, 4)
        assert first[:2] == ["2", "5"]
        assert sorted([*first, *await browse(running)]) == texts(0, 6)
        found = killed(files)
    async with engine(found) as running:
        assert await read(running, 0, 4) == first


async def test_a_queue_that_is_deleted_or_purged() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running, 10)
        home = running.home("q")
        await reserve(running, 0, 4)
        assert await running.broker.purge_queue("q") == 6
        assert await read(running, 0, 4) == texts(0, 4)
        await running.broker.delete_queue("q")
        assert not home.holds_deleted
        assert home.first_live_offset == home.next_offset
        with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
            await reserve(running, 0, 4)


@pytest.mark.parametrize(
    ("arguments", "given", "error"),
    [
        ({"x-group-by": "n"}, {}, PreconditionFailed),
        ({}, {"position": -1}, InvalidArgument),
        ({}, {"reader": ""}, InvalidArgument),
        ({}, {"reader": "r" * 300}, InvalidArgument),
    ],
)
async def test_what_cannot_be_reserved(arguments: dict[str, Any], given: Any, error: type[BrokerError]) -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running, 1, **arguments)
        with pytest.raises(error):
            await ask(running, "queues.reserve", **{"reader": "r", "position": 0, "count": 1, "lease_ms": 1, **given})


async def test_rights() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running, 1)
        await running.broker.rights.add_user("ada", b"x")
        await running.broker.rights.set_permission("/", "ada", Permission("", "", "other"))
        for name, given in {
            "queues.ends": {},
            "queues.browse": {"offset": 0, "before": 9},
            "queues.reserve": {"reader": "r", "position": 0, "count": 1, "lease_ms": 1},
            "queues.reserved": {"reader": "r", "position": 0, "before": 1},
            "queues.give_back": {"reader": "r"},
        }.items():
            with pytest.raises(AccessRefused):
                await administer(running.broker, "ada", name, {"name": "q", **given})
        with pytest.raises(AccessRefused):
            await administer(running.broker, "ada", "topics.of_filter", {"pattern": "a.+"})


async def test_nothing_is_reserved_that_the_disk_does_not_take() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        await filled(running, 10)
        await running.synced()
        files.failing = dict.fromkeys(("write", "sync"), errno.EIO)
        with pytest.raises(StorageUnavailable):
            await reserve(running, 0, 4)
        files.failing = {}
        await running.until(lambda: running.home("q").log.error is None)
        end, _ = await reserve(running, 0, 4)
        assert await read(running, 0, end) == texts(0, 4)


async def test_what_a_log_refuses_to_reserve_stands_in_line_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length-bytes": 1000, "x-max-priority": 5})
        client = running.client()
        facts = [pack(True, priority) for priority in (0, 4, 4, 0)]
        client.session.publish(Slab("", "q", PERSISTENT, [b"a", b"b", b"c", b"d"], facts=facts))
        running.turn()
        queue = running.broker.topology.queues["q"]
        assert queue.rules.sizes is not None
        with monkeypatch.context() as refusing:
            refusing.setattr(QueuePartition, "append_controls", refuse)
            with pytest.raises(StorageUnavailable):
                await reserve(running, 0, 4)
        assert (queue.rules.sizes.waiting_bytes, queue.outstanding) == (4, 0)
        assert await running.drain("q") == [(body, False) for body in "bcad"]


def refuse(*_: object) -> None:
    raise LogUnavailable("the log cannot be written to")


# --- browsing -----------------------------------------------------------------------------


async def test_browsing_takes_nothing_and_shows_what_waits() -> None:
    files = MemoryFiles()
    async with engine(files, stripe_cache_bytes=0) as running:
        await filled(running, 50)
        other = running.client()
        await running.queue("p")
        await other.publish_safely("p", "not of q")
        assert await browse(running) == texts(0, 50)
        assert await browse(running, bytes_max=50) == texts(0, 50)
        client = running.client()
        for _ in range(5):
            await client.session.get("q", no_ack=False)
        client.session.settle(2, 3, Outcome.ACK)
        assert await browse(running) == texts(5, 50)
        client.session.close()
        assert await browse(running) == ["0", *texts(3, 50)]
        ends = await ask(running, "queues.ends")
        assert ends["ready"] == 48
        await other.publish_safely("q", 50)
        assert await browse(running, ends["end"]) == ["50"]
        found = killed(files)
    async with engine(found) as running:
        assert await browse(running) == ["0", *texts(3, 51)]


async def test_what_records_say_of_messages(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        await running.bind("amq.topic", "q", "#")
        client = running.client()
        for number in range(3):
            clock.jump(10)
            client.publish(f"k.{number}", "v", exchange="amq.topic", properties=with_headers({"n": number}))
            running.turn()
        end = (await ask(running, "queues.ends"))["end"]
        batches = (await ask(running, "queues.browse", offset=0, before=end))["batches"]
        at, found = 0, []
        while at < len(batches):
            header = parse_header(batches, at)
            found += list(iterate_records(batches[at : at + header.size]))
            at += header.size
        assert [one.key for one in found] == [b"k.0", b"k.1", b"k.2"]
        assert [
            b - a for a, b in zip([one.timestamp_ms for one in found], [one.timestamp_ms for one in found][1:])
        ] == [
            10_000,
            10_000,
        ]
        headers = dict(found[1].headers)
        assert headers["millrace.exchange"] == b"amq.topic"
        assert json.loads(headers["millrace.headers-as-json"] or b"") == {"n": 1}


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_topic_of_a_filter_begins_with_what_is_retained(elsewhere: bool) -> None:
    """Also where another broker has what is retained."""
    files = MemoryFiles()
    async with engine(files) as running:
        client = running.client()
        broker, retained = running.broker, running.broker.retained
        for key in ("plant.1.temp", "plant.2.temp", "plant.2.rain"):
            retained.keep("/", Slab("amq.topic", key, PERSISTENT, [key.encode()]))
        silent = ["nobody has what is retained now"]

        async def pages(vhost: str, pattern: str, exchange: str) -> AsyncGenerator[list[Slab], None]:
            if silent:
                raise StorageUnavailable(silent.pop())
            for piece in retained.pieces(vhost, sorted(retained.matching(vhost, pattern, "mqtt")), exchange):
                yield piece

        if elsewhere:
            here = SimpleNamespace(matching=lambda *_: [], pieces=lambda *_: [])
            there: Any = SimpleNamespace(all_told=trio.lowlevel.checkpoint, pages=pages, retained=here)
            broker.keeping = there
            with pytest.raises(StorageUnavailable):
                await administer(broker, "guest", "topics.of_filter", {"pattern": "plant.+.temp"})
        name = await administer(broker, "guest", "topics.of_filter", {"pattern": "plant.+.temp"})
        broker.keeping = None
        client.publish("plant.3.temp", "new", exchange="amq.topic")
        client.publish("plant.3.rain", "not", exchange="amq.topic")
        running.turn()
        assert await administer(broker, "guest", "topics.of_filter", {"pattern": "plant.+.temp"}) == name
        other = await administer(broker, "guest", "topics.of_filter", {"pattern": "plant.#"})
        assert other != name
        found = []
        log = broker.topology.topic(name).partitions[0].log
        log.request_sync()
        await running.until(lambda: log.committed_offset == log.log_end_offset)
        for batch in log.read(0, 1 << 20) or []:
            found += [(one.key, one.value) for one in iterate_records(batch)]
        assert found == [
            (b"plant.1.temp", b"plant.1.temp"),
            (b"plant.2.temp", b"plant.2.temp"),
            (b"plant.3.temp", b"new"),
        ]


async def are_gone(running: Engine, topics: Collection[str]) -> None:
    """Wait for the threads of the disk."""
    ends = time.monotonic() + 20
    while not running.broker.topology.topics.keys().isdisjoint(topics):
        assert time.monotonic() < ends
        await trio.to_thread.run_sync(lambda: None)


async def test_the_stream_of_a_filter_goes_when_nobody_has_read_it_for_long(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files, filter_stream_expires_ms=HOUR_MS, housekeeping_interval_ms=99 * HOUR_MS) as running:
        broker = running.broker
        await broker.set_vhost("other")
        await broker.rights.set_permission("other", "guest", Permission(".*", ".*", ".*"))
        names = {}
        for vhost in ("/", "other"):
            for pattern in ("a.+", "b.+"):
                said = {"pattern": pattern, "vhost": vhost}
                names[vhost, pattern] = await administer(broker, "guest", "topics.of_filter", said)
        assert broker.topology.topic(names["/", "a.+"]).config["retention.ms"] == str(HOUR_MS)
        await filter_streams.expire(broker)
        read, leased = (broker.topology.topic(names[one]).partitions[0].leases for one in names if one[1] == "a.+")
        for _ in range(4):
            await passing(clock, 1000)
            read.used = True
            leased.renew("r", 0, wall_clock_ms() + 1, wall_clock_ms())
            await filter_streams.expire(broker)
        unread = {name for (_, pattern), name in names.items() if pattern == "b.+"}
        await are_gone(running, unread)
        assert set(names.values()) - unread <= broker.topology.topics.keys()
        for (vhost, pattern), name in names.items():
            assert await administer(broker, "guest", "topics.of_filter", {"pattern": pattern, "vhost": vhost}) == name
        leased.give_back("r")
    # Nobody knows who read before the start, so time begins anew.
    async with engine(files, filter_stream_expires_ms=HOUR_MS, housekeeping_interval_ms=99 * HOUR_MS) as running:
        await filter_streams.expire(running.broker)
        await passing(clock, 3599)
        await filter_streams.expire(running.broker)
        assert set(names.values()) <= running.broker.topology.topics.keys()
        await passing(clock, 1)
        await filter_streams.expire(running.broker)
        await are_gone(running, names.values())
