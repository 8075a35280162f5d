"""Requests that begin with the same bytes as the one before are answered as they would be on a new connection."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
import trio.testing

from core_log.batch_header import HEADER_BYTES, TIMESTAMP_TYPE_BIT, encode_batch, parse_header
from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.wall_clock import wall_clock_ms
from protocols.kafka.adapter import Waiting
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import PRODUCE
from protocols.kafka.registry import Served
from routing.broker import Broker
from tests.core_log.compaction.helpers import keyed
from tests.protocols.kafka.door import ALL, NOW_MS, Peer, batch_of, idempotent, kafka_broker, records_of

TOPIC = "orders"


def asked(
    batch: bytes, *, index: int = 0, acks: int = ALL, topic: str = TOPIC, timeout_ms: int = 30_000
) -> dict[str, object]:
    entry = Entity(index=index, records=[batch])
    return {"acks": acks, "timeout_ms": timeout_ms, "topic_data": [Entity(name=topic, partition_data=[entry])]}


async def both_ways(broker: Broker, peer: Peer, version: int, batch: bytes, **how: object) -> None:
    """`peer` has produced before; the same request on a new connection is answered alike, but for the offset."""
    again = await peer.ask(PRODUCE, version, **asked(batch, **how))  # type: ignore[arg-type]
    first = await Peer(broker).ask(PRODUCE, version, **asked(batch, **how))  # type: ignore[arg-type]
    one, other = (reply.responses[0].partition_responses[0] for reply in (again, first))
    if one.error_code == ErrorCode.NONE:
        if one.log_append_time_ms != -1:
            assert NOW_MS <= one.log_append_time_ms <= other.log_append_time_ms <= wall_clock_ms()
            one.log_append_time_ms = other.log_append_time_ms
        assert other.base_offset == one.base_offset + 1
        one.base_offset = other.base_offset
    again.node_endpoints, first.node_endpoints = list(again.node_endpoints), list(first.node_endpoints)
    assert again == first


@pytest.mark.parametrize("acks", [ALL, 1])
@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}])
@pytest.mark.parametrize("version", range(3, 12))
async def test_replies_are_the_same(version: int, acks: int, config: dict[str, str]) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC, partitions=2, config=config)
        peer = Peer(broker)
        await peer.ask(PRODUCE, version, **asked(batch_of([b"first"]), acks=acks))
        assert peer.adapter._again is not None
        for index, size in ((0, 5), (1, 5), (0, 30_000), (2, 5), (0, 60)):
            await both_ways(broker, peer, version, batch_of([b"x" * size]), index=index, acks=acks)
        broken = bytearray(batch_of([b"broken"]))
        broken[-1] ^= 1
        await both_ways(broker, peer, version, bytes(broken), acks=acks)
        await both_ways(broker, peer, version, b"", acks=acks)
        await both_ways(broker, peer, version, batch_of([b"last"]))
        found = records_of(await peer.fetch(TOPIC))
        assert [record.offset for record in found] == list(range(9))
        assert found[0].value == b"first"
        assert found[-1].value == b"last"


async def test_several_in_one_read_are_answered_in_their_order() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        for index in range(50):
            await peer.send(PRODUCE, 7, **asked(batch_of([b"%d" % index]), acks=0 if index % 10 == 9 else ALL))
        peer._sent = [one for index, one in enumerate(peer._sent) if index % 10 != 9]
        with trio.fail_after(5):
            replies: list[object] = []
            while len(replies) < 45:
                replies += peer.replies()
                await trio.sleep(0.001)
        offsets = [reply.responses[0].partition_responses[0].base_offset for reply in replies]  # type: ignore[attr-defined]
        assert offsets == [index for index in range(50) if index % 10 != 9]


async def test_a_batch_that_is_there_is_not_appended_again() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        batches = [idempotent(batch_of([b"%d" % index]), 7, 0, index) for index in range(3)]
        offsets = [(await peer.produce(TOPIC, batch)).base_offset for batch in (*batches, batches[1])]
        assert offsets == [0, 1, 2, 1]
        assert (await peer.produce(TOPIC, idempotent(batch_of([b"9"]), 7, 0, 9))).error_code == (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )


async def test_nobody_is_told_before_the_disk_has_it_nor_waits_for_ever(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.autojump_threshold = 0.05
    files = FaultyFiles(MemoryFiles())
    failing = False

    def hook(operation: str, path: str) -> None:
        if failing and operation == "sync" and path.startswith("topics/"):
            raise OSError(errno.EIO, "the disk is gone")

    files.hook = hook
    async with kafka_broker(files) as broker:  # type: ignore[arg-type]
        peer = Peer(broker)
        assert (await peer.produce(TOPIC, batch_of([b"0"]))).error_code == ErrorCode.NONE
        failing = True
        assert (await peer.produce(TOPIC, batch_of([b"1"]))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        failing = False
        with trio.fail_after(60):
            while (await peer.produce(TOPIC, batch_of([b"2"]))).error_code != ErrorCode.NONE:
                await trio.sleep(1)


async def until_answered(peer: Peer, count: int) -> list[Any]:
    """So many replies."""
    replies: list[Any] = []
    with trio.fail_after(5):
        while len(replies) < count:
            replies += peer.replies()
            await trio.sleep(0.001)
    return replies


async def in_one_read(peer: Peer, batches: list[tuple[int, bytes]], version: int = 9) -> list[Any]:
    """What requests are answered that come together: error and base offset of each."""
    await peer.receive(
        b"".join(peer.encoded(PRODUCE, version, **asked(batch, index=index)) for index, batch in batches)
    )
    replies: list[Any] = []
    with trio.fail_after(5):
        while len(replies) < len(batches):
            replies += peer.replies()
            await trio.sleep(0.001)
    found = [reply.responses[0].partition_responses[0] for reply in replies]
    assert [one.index for one in found] == [index for index, _ in batches]
    return [(one.error_code, one.base_offset) for one in found]


@pytest.mark.parametrize("version", [7, 9])
async def test_one_of_a_run_that_is_refused_is_refused_alone(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC, partitions=2, config={"max.message.bytes": "2000"})
        peer = Peer(broker, requests_in_flight_max=100)
        broken = bytearray(batch_of([b"broken"]))
        broken[-1] ^= 1
        late = batch_of([b"late"], timestamp_ms=1 << 50)
        asks = [(0, batch_of([b"%d" % number, b"more"])) for number in range(4)]
        asks[2:2] = [(0, bytes(broken)), (1, batch_of([b"other"])), (0, batch_of([b"x" * 3000])), (0, late)]
        none, bad, big, time = (
            ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP,
        )  # fmt: skip
        assert await in_one_read(peer, asks, version) == [
            (none, 0), (none, 2), (bad, -1), (none, 0), (big, -1), (time, -1), (none, 4), (none, 6),
        ]  # fmt: skip
        values = [record.value for record in records_of(await peer.fetch(TOPIC))]
        assert values == [b"0", b"more", b"1", b"more", b"2", b"more", b"3", b"more"]


async def test_batches_of_a_run_that_are_there_or_come_too_soon_are_found_out() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC)
        peer = Peer(broker)
        batches = [idempotent(batch_of([b"%d" % number]), 7, 0, number) for number in range(8)]
        none, order = ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        sent = [0, 1, 2, 1, 3, 5, 4, 5, 3]
        assert await in_one_read(peer, [(0, batches[number]) for number in sent]) == [
            (none, 0), (none, 1), (none, 2), (none, 1), (none, 3), (order, -1), (none, 4), (none, 5), (none, 3),
        ]  # fmt: skip
        other = [(0, idempotent(batch_of([b"other"]), 8, 0, 0)), (0, batch_of([b"nobody's"])), (0, batches[6])]
        assert await in_one_read(peer, other) == [(none, 6), (none, 7), (none, 8)]
        values = [record.value for record in records_of(await peer.fetch(TOPIC))]
        assert values == [b"0", b"1", b"2", b"3", b"4", b"5", b"other", b"nobody's", b"6"]


async def test_no_more_wait_in_a_run_than_may() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, requests_in_flight_max=3)
        await peer.produce(TOPIC, batch_of([b"first"]), version=7)
        request = asked(batch_of([b"more"]))
        await peer.receive(b"".join(peer.encoded(PRODUCE, 7, **request) for _ in range(3)))
        assert not peer.adapter.closed
        assert len(await until_answered(peer, 3)) == 3
        most = 0
        queued = peer.adapter.queued

        def seen(served: Served, version: int, head: bytes, count: int = 1) -> Waiting:
            nonlocal most
            made = queued(served, version, head, count)
            most = max(most, peer.adapter.waiting)
            return made

        peer.adapter.queued = seen  # type: ignore[method-assign]
        await peer.receive(b"".join(peer.encoded(PRODUCE, 7, **request) for _ in range(20)))
        replies = await until_answered(peer, 20)
        offsets = [reply.responses[0].partition_responses[0].base_offset for reply in replies]
        assert offsets == list(range(4, 24))
        assert most == 3


@pytest.mark.parametrize(
    ("strange", "code"),
    [
        pytest.param({"attributes": 5}, ErrorCode.INVALID_RECORD, id="a compression that nobody knows"),
        pytest.param({"last_offset_delta": 1}, ErrorCode.INVALID_RECORD, id="an offset without a record"),
        pytest.param({"attributes": TIMESTAMP_TYPE_BIT}, ErrorCode.INVALID_TIMESTAMP, id="times of the broker"),
    ],
)
async def test_what_no_producer_may_send_is_refused_alone(strange: dict[str, int], code: ErrorCode) -> None:
    good = batch_of([b"a"])
    bad = encode_batch(parse_header(good)._replace(**strange), good[HEADER_BYTES:])
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC, partitions=1, config={})
        assert (await Peer(broker).produce(TOPIC, bad)).error_code == code
        found = await in_one_read(Peer(broker), [(0, good), (0, good), (0, bad), (0, good)])
        assert found == [(0, 0), (0, 1), (code, -1), (0, 2)]


@pytest.mark.parametrize("version", range(8, 12))
async def test_records_without_a_key_are_named_where_a_topic_is_compacted(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC, config={"cleanup.policy": "compact"})
        peer = Peer(broker)
        assert (await peer.produce(TOPIC, keyed([(b"k", b"v")]), version=version)).error_code == ErrorCode.NONE
        some = keyed([(b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"v")])
        refused = await peer.produce(TOPIC, some, version=version)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [one.batch_index for one in refused.record_errors] == [1, 3]
        assert refused.error_message.startswith("2 records, from record 1 on, have no key")
        await both_ways(broker, peer, version, some)
        refused = await peer.produce(TOPIC, keyed([(None, b"")] * 10_001), version=version)
        assert (refused.error_code, list(refused.record_errors)) == (ErrorCode.INVALID_RECORD, [])
