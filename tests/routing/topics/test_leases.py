"""Readers for whom records are kept: for how long, from where on, and that the rest goes all the same."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from core_log.memory_files import MemoryFiles
from core_log.record_batch import BatchBuilder
from millrace import BlockingClient, BlockingProducer
from protocols.native.errors import MillraceError, NotFound
from routing import errors
from routing.administration import administer
from routing.topics.leases import HOLDERS_MAX, LEASES_MAX, Leases
from tests.routing.harness import engine
from tests.support import BrokerProcess, broker_process

HOUR_MS = 3_600_000


def test_the_first_offset_that_anybody_needs() -> None:
    leases = Leases()
    assert leases.needed_from(0, "t-0", 0, 99) is None
    leases.renew("a", 10, 100, 0)
    leases.renew("b", 5, 50, 0)
    assert leases.needed_from(49, "t-0", 0, 99) == 5
    leases.renew("b", 20, 60, 49)
    assert leases.needed_from(49, "t-0", 0, 99) == 10
    leases.give_back("a")
    leases.give_back("nobody")
    assert leases.needed_from(49, "t-0", 0, 99) == 20


def test_a_lease_ends_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    leases.renew("slow", 10, 100, 0)
    leases.renew("done", 3, 100, 0)
    with caplog.at_level(logging.WARNING):
        assert leases.needed_from(100, "t-0", 5, 99) is None
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: reader 'slow' has not been heard of, what it has not read (from offset 10 on) is kept no longer"
    ]


def test_before_a_lease_ends_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    leases.renew("slow", 10, 100_000, 0)
    leases.renew("done", 99, 100_000, 0)
    for now_ms in (74_999, 75_000, 80_000):
        leases.look(now_ms, "t-0", 5, 99)
    leases.renew("slow", 20, 180_000, 80_000)
    leases.look(100_000, "t-0", 5, 99)
    leases.look(170_000, "t-0", 5, 99)
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: reader 'slow' is not heard of, what it has not read (from offset 10 on) is kept for another 25 s",
        "t-0: reader 'done' has not been heard of, what it has not read (from offset 99 on) is kept no longer",
        "t-0: reader 'slow' is not heard of, what it has not read (from offset 20 on) is kept for another 10 s",
    ]


def test_queries_of_one_name_hold_back_what_each_needs(caplog: pytest.LogCaptureFixture) -> None:
    leases = Leases()
    leases.renew("query", 10, 100_000, 0, "slow")
    leases.renew("query", 50, 100_000, 0, "fast")
    leases.renew("query", 90, 160_000, 60_000, "fast")
    assert leases.needed_from(90_000, "t-0", 0, 99) == 10
    assert leases.needed_from(100_000, "t-0", 0, 99) == 90
    assert not caplog.records, "one of that name is heard of"
    leases.look(160_000, "t-0", 0, 99)
    assert "from offset 90 on" in caplog.records[-1].getMessage()
    for number in range(HOLDERS_MAX + 1):
        leases.renew("often started again", number, 200_000, 160_000, str(number))
    assert [(reader, held.offset) for reader, held in leases] == [("often started again", 1)]
    leases.give_back("often started again")
    assert not leases.held


def test_there_is_a_limit() -> None:
    leases = Leases()
    for number in range(LEASES_MAX):
        leases.renew(str(number), 0, 100 + number, 0)
    with pytest.raises(errors.LimitExceeded):
        leases.renew("one more", 0, 200, 99)
    leases.renew("0", 1, 200, 99)
    leases.renew("one more", 0, 200, 101)  # "1" is over


def start_of(client: BlockingClient, topic: str) -> int:
    return client.describe_topic(topic).partitions[0].log_start_offset


def test_retention_waits_for_a_reader(shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    with BlockingClient(server) as client, BlockingProducer(server) as producer:
        client.create_topic("leased", config={"segment.bytes": "65536", "retention.bytes": "200000"})

        def fill(count: int) -> None:
            for _ in range(count):
                producer.send("leased", bytes(10_000))
                producer.flush()

        client.lease("reader", {("leased", 0): 3}, 60_000)
        fill(60)
        held = start_of(client, "leased")
        found = client.administer("topics.readers")
        (row,) = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"] if "leased" in row]
        assert 50_000 < row.pop("ends_in_ms") <= 60_000
        assert row == {
            "topic": "leased", "partition": 0, "reader": "reader", "offset": 3, "lag": 57, "ends_soon": False
        }  # fmt: skip
        assert held <= 3
        client.lease("reader", {("leased", 0): 30}, 60_000)
        fill(10)
        assert held < start_of(client, "leased") <= 30
        client.lease("reader", {("leased", 0): 30}, 0)
        fill(10)
        assert start_of(client, "leased") > 30
        for none in ("7", "9" * 5000):
            with pytest.raises(NotFound):
                client.administer("topics.lease", name="leased", reader="r", offsets={none: 0}, lease_ms=5)
        for number in range(LEASES_MAX):
            client.lease(f"reader {number}", {("leased", 0): 90}, 60_000)
        with pytest.raises(MillraceError, match="64 readers hold a lease"):
            client.lease("one more", {("leased", 0): 90}, 60_000)


def test_what_a_paused_reader_needs_is_kept_until_its_lease_ends_and_that_is_said_before(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[engine]\nhousekeeping_interval_ms = 20\nretention_check_interval_ms = 20\n")
    with broker_process(tmp_path / "data", arguments=["--config", str(config)]) as broker:
        server = f"127.0.0.1:{broker.native_port}"
        with BlockingClient(server) as client, BlockingProducer(server) as producer:
            client.create_topic("paused")
            producer.send("paused", b"unread")
            producer.flush()
            client.lease("query", {("paused", 0): 0}, 1600)
            client.alter_topic("paused", {"retention.ms": "1"})
            while True:
                start, said = start_of(client, "paused"), broker.log_path.read_text()
                if "kept no longer" in said:
                    break
                assert start == 0
            assert said.index("is not heard of, what it has not read (from offset 0 on) is kept for another") > 0
            while start_of(client, "paused") == 0:
                pass
            assert client.administer("topics.readers")["rows"] == []


def test_readers_of_a_deleted_topic_are_gone_with_it(shared_broker: BrokerProcess) -> None:
    with BlockingClient(f"127.0.0.1:{shared_broker.native_port}") as client:
        client.create_topic("leased-and-deleted")
        client.lease("reader", {("leased-and-deleted", 0): 0}, 60_000)
        assert readers_of(client, "leased-and-deleted") == ["reader"]
        client.delete_topic("leased-and-deleted")
        assert readers_of(client, "leased-and-deleted") == []


def readers_of(client: BlockingClient, topic: str) -> list[str]:
    return [reader for name, _, reader, *_ in client.administer("topics.readers")["rows"] if name == topic]


async def test_a_wall_clock_that_jumps_ends_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        topic = await broker.create_topic("t", config={"retention.ms": str(HOUR_MS)})
        (partition,) = topic.partitions
        builder = BatchBuilder(0, 0, time.time_ns() // 1_000_000)
        builder.add(0, None, b"unread", [])
        partition.append(builder.build())
        await partition.log.wait_committed(1)
        said = {"name": "t", "reader": "r", "offsets": {"0": 0}}
        await administer(broker, "guest", "topics.lease", said | {"lease_ms": HOUR_MS})
        now_ns = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now_ns + 5 * HOUR_MS * 1_000_000)
        partition.apply_retention()
        assert partition.log.log_start_offset == 0
        assert (await administer(broker, "guest", "topics.readers", {}))["rows"]
        await administer(broker, "guest", "topics.lease", said | {"lease_ms": 0})
        partition.apply_retention()
        assert partition.log.log_start_offset == 1
