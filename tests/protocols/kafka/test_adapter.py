"""The Kafka door of an engine in memory, request by request."""

from __future__ import annotations

import random
from functools import partial
from struct import pack
from typing import Any

import pytest
import trio
import trio.testing

from core_log.memory_files import MemoryFiles
from core_log.producer_states import ProducerStates
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocols.kafka.messages_records import FETCH, LIST_OFFSETS, METADATA, PRODUCE
from protocols.kafka.messages_transactions import INIT_PRODUCER_ID
from protocols.kafka.registry import SERVED
from routing.access.grants import Permission
from tests.protocols.kafka.door import Peer, batch_of, fetching, idempotent, kafka_broker, records_of

# Versions


@pytest.mark.parametrize("version", range(5))
async def test_what_is_advertised_is_served(version: int) -> None:
    async with kafka_broker() as broker:
        reply = await Peer(broker).ask(API_VERSIONS, version, client_software_name="t", client_software_version="1")
        assert reply.error_code == 0
        advertised = {one.api_key: (one.min_version, one.max_version) for one in reply.api_keys}
        assert advertised == {key: (one.advertised_min, one.version_max) for key, one in SERVED.items()}
        assert advertised[PRODUCE.key][0] == 0, "librdkafka compresses nothing for a broker that says 3"


async def test_a_version_of_api_versions_that_nobody_knows_is_answered_in_the_first() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.receive(pack(">ihhih", 15, API_VERSIONS.key, 99, 7, 5) + b"later")
        size, correlation_id, code = int.from_bytes(peer.pipe.data[:4], "big"), peer.pipe.data[7], peer.pipe.data[9]
        assert (size, correlation_id, code) == (len(peer.pipe.data) - 4, 7, ErrorCode.UNSUPPORTED_VERSION)
        assert not peer.adapter.closed


@pytest.mark.parametrize(
    "request_bytes",
    [
        pack(">hhih", 999, 0, 1, -1),
        pack(">hhih", PRODUCE.key, 2, 1, -1),
        pack(">hhih", METADATA.key, 99, 1, -1),
        pack(">hhih", METADATA.key, 1, 1, 500),
        pack(">hhih", METADATA.key, 9, 1, 0) + b"\xff\xff\xff\xff\xff",
        pack(">hhih", METADATA.key, 1, 1, 2) + b"\xff\xff",
        b"\0\3\0",
    ],
)
async def test_what_is_no_request_ends_the_connection(request_bytes: bytes) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.receive(pack(">i", len(request_bytes)) + request_bytes)
        assert peer.adapter.closed
        assert not peer.pipe.data


@pytest.mark.parametrize("size", [-1, 0, 101])
async def test_a_length_that_cannot_be_ends_the_connection(size: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, request_bytes_max=100)
        await peer.receive(pack(">i", size))
        assert peer.adapter.closed


async def test_garbage_ends_connections_and_nothing_else() -> None:
    dice = random.Random(1)
    async with kafka_broker() as broker:
        for _ in range(300):
            peer = Peer(broker)
            key = dice.choice(list(SERVED))
            body = pack(">hhih", key, dice.randrange(14), 1, -1) + dice.randbytes(dice.randrange(60))
            await peer.receive(pack(">i", len(body)) + body)
            peer.adapter.connection_lost()
        assert (await Peer(broker).produce("t", batch_of([b"x"]))).error_code == 0


# Topics


@pytest.mark.parametrize("version", range(14))
async def test_metadata(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=3, config={})
        peer = Peer(broker)
        for topics in ([Entity(name="t")], [] if version == 0 else None):
            reply = await peer.ask(METADATA, version, topics=topics)
            assert [(one.node_id, one.host, one.port) for one in reply.brokers] == [(0, "127.0.0.1", 9092)]
            assert reply.controller_id == (0 if version else -1)
            (topic,) = reply.topics
            assert (topic.error_code, topic.name) == (0, "t")
            found = [(one.partition_index, one.leader_id, one.replica_nodes, one.isr_nodes) for one in topic.partitions]
            assert found == [(index, 0, [0], [0]) for index in range(3)]
        if version:
            assert (await peer.ask(METADATA, version, topics=[])).topics == []


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_a_topic_is_asked_for_by_its_id(version: int) -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t")
        peer = Peer(broker)
        (said,) = (await peer.ask(METADATA, version, topics=None)).topics
        assert said.topic_id == topic.id
        asked = [Entity(name=None, topic_id=one) for one in (topic.id, bytes(15) + b"x", bytes(16))]
        answers = [
            (one.error_code, one.name, one.topic_id) for one in (await peer.ask(METADATA, version, topics=asked)).topics
        ]
        if version < 12:
            assert answers == [(ErrorCode.INVALID_REQUEST, "", one.topic_id) for one in asked]
            return
        unknown = [(ErrorCode.UNKNOWN_TOPIC_ID, None, one.topic_id) for one in asked[1:]]
        assert answers == [(0, "t", topic.id), *unknown]
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        (hidden,) = (await peer.ask(METADATA, version, topics=asked[:1])).topics
        assert (hidden.error_code, hidden.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


async def test_what_a_user_may_do_with_a_topic_is_told_if_it_asks() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        await broker.rights.set_permission("/", "guest", Permission("", "", ".*"))
        peer = Peer(broker)
        found = []
        for asked in (False, True):
            reply = await peer.ask(METADATA, 12, topics=None, include_topic_authorized_operations=asked)
            found.append(reply.topics[0].topic_authorized_operations)
        assert found == [-(1 << 31), 1 << 3 | 1 << 8]


async def test_where_a_broker_is_can_be_configured() -> None:
    async with kafka_broker() as broker:
        reply = await Peer(broker, advertised_host="example.org", advertised_port=7).ask(METADATA, 9, topics=[])
        assert [(one.host, one.port) for one in reply.brokers] == [("example.org", 7)]


async def test_topics_are_made_by_their_use_if_that_is_allowed() -> None:
    async with kafka_broker(auto_create_partitions=2) as broker:
        peer = Peer(broker)
        names = [Entity(name="new"), Entity(name="no/ne")]
        quiet = await peer.ask(METADATA, 9, topics=names, allow_auto_topic_creation=False)
        codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC]
        assert [one.error_code for one in quiet.topics] == codes
        made = await peer.ask(METADATA, 9, topics=names)
        assert [len(one.partitions) for one in made.topics] == [2, 0]
        assert [one.error_code for one in made.topics] == [0, ErrorCode.INVALID_TOPIC]
        assert (await peer.produce("newer", batch_of([b"x"]))).error_code == 0
        assert len(broker.topics["newer"].partitions) == 2
    async with kafka_broker(auto_create_topics=False) as broker:
        peer = Peer(broker)
        none = await peer.ask(METADATA, 9, topics=[Entity(name="new")])
        assert none.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await peer.produce("new", batch_of([b"x"]))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Records


@pytest.mark.parametrize("version", range(3, 10))
async def test_a_batch_is_kept_as_it_came(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        first, second = batch_of([b"a", b"b"], b"k"), batch_of([b"c"])
        found = await peer.produce("t", first, second, version=version)
        assert (found.error_code, found.base_offset) == (0, 0)
        assert (await peer.produce("t", batch_of([b"d"]), version=version)).base_offset == 3
        for fetch_version in range(4, 12):
            got = await peer.fetch("t", version=fetch_version)
            assert (got.error_code, got.high_watermark, got.last_stable_offset) == (0, 4, 4)
            assert bytes(got.records[17 : len(first)]) == first[17:], "from the CRC on"
            assert [(one.offset, one.key, one.value) for one in records_of(got)] == [
                (0, b"k", b"a"), (1, b"k", b"b"), (2, None, b"c"), (3, None, b"d"),
            ]  # fmt: skip


def corrupt() -> bytes:
    batch = bytearray(batch_of([b"a"]))
    batch[-1] ^= 1
    return bytes(batch)


@pytest.mark.parametrize(
    ("batches", "acks", "partition", "code"),
    [
        ([corrupt()], -1, 0, ErrorCode.CORRUPT_MESSAGE),
        ([batch_of([b"a"]), corrupt()], -1, 0, ErrorCode.CORRUPT_MESSAGE),
        ([b"x" * 100], -1, 0, ErrorCode.INVALID_RECORD),
        ([batch_of([b"a"])[:-1]], -1, 0, ErrorCode.INVALID_RECORD),
        ([], -1, 0, ErrorCode.INVALID_RECORD),
        ([batch_of([b"a"], control=True)], -1, 0, ErrorCode.INVALID_RECORD),
        ([batch_of([bytes(2 << 20)])], -1, 0, ErrorCode.MESSAGE_TOO_LARGE),
        ([batch_of([b"a"])], 2, 0, ErrorCode.INVALID_REQUIRED_ACKS),
        ([batch_of([b"a"])], -1, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([batch_of([b"a"])], -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_what_cannot_be_produced(batches: list[bytes], acks: int, partition: int, code: ErrorCode) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        found = await peer.produce("t", *batches, acks=acks, partition=partition)
        assert (found.error_code, found.base_offset) == (code, -1)
        assert broker.topics["t"].partitions[0].next_offset == 0 if "t" in broker.topics else True
        assert not peer.adapter.closed


async def test_who_wants_no_answer_gets_none() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        topics = [Entity(name="t", partition_data=[Entity(index=0, records=[batch_of([b"a"])])])]
        await peer.send(PRODUCE, 9, acks=0, topic_data=topics)
        peer._sent.clear()
        assert (await peer.produce("t", batch_of([b"b"]), acks=1)).base_offset == 1


async def test_replies_come_in_the_order_of_requests() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        peer, other = Peer(broker), Peer(broker)
        await peer.send(FETCH, 11, **fetching("t", wait_ms=60_000))
        await peer.send(METADATA, 9, topics=[])
        assert peer.replies() == []
        assert (await other.produce("t", batch_of([b"a"]))).error_code == 0
        with trio.fail_after(5):
            while not (found := peer.replies()):
                await trio.sleep(0.001)
        assert [one.value for one in records_of(found[0].responses[0].partitions[0])] == [b"a"]
        assert found[1].topics == []


async def test_a_fetch_waits_for_as_much_as_it_asks_for(autojump_clock: trio.testing.MockClock) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await broker.create_topic("t", partitions=1, config={})
        await peer.send(FETCH, 11, **fetching("t", wait_ms=500))
        await trio.sleep(0.4)
        assert peer.replies() == []
        await trio.sleep(0.2)
        (reply,) = peer.replies()
        assert reply.responses[0].partitions[0].records == b""


async def test_what_cannot_be_fetched() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a"]))
        assert (await peer.fetch("t", 5, wait_ms=60_000)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await peer.fetch("none", wait_ms=60_000)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        epoch = broker.topics["t"].partitions[0].log.leader_epoch
        for told, code in (
            (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH), (epoch, 0), (-1, 0),
            *([(epoch - 1, ErrorCode.FENCED_LEADER_EPOCH)] if epoch else []),
        ):  # fmt: skip
            assert (await peer.fetch("t", current_leader_epoch=told)).error_code == code


async def test_a_batch_that_is_larger_than_allowed_is_fetched_all_the_same() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([bytes(100_000)]))
        await peer.produce("t", batch_of([b"b"]))
        assert [len(one.value or b"") for one in records_of(await peer.fetch("t", max_bytes=10))] == [100_000]


@pytest.mark.parametrize("version", range(12))
async def test_offsets_of_the_ends_and_of_times(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a", b"b"], timestamp_ms=1_000_000))

        async def ask(topic: str, timestamp: int) -> Any:
            asked = Entity(partition_index=0, timestamp=timestamp)
            reply = await peer.ask(LIST_OFFSETS, version, topics=[Entity(name=topic, partitions=[asked])])
            found = reply.topics[0].partitions[0]
            if version == 0:
                return found.error_code, *found.old_style_offsets
            return found.error_code, found.offset, found.timestamp

        times = {-1: (2, -1), -2: (0, -1), 1_000_000: (0, 1_000_000), 1_000_001: (-1, -1)}
        if version == 0:
            times[1_000_001] = (2, -1)
        for timestamp, found in times.items():
            assert await ask("t", timestamp) == (0, *found)[: 2 if version == 0 else 3]
        assert (await ask("none", -1))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_whose_offsets_are_asked_for_twice_is_refused_once_and_others_are_told() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=2)
        twice, other = [Entity(partition_index=number, timestamp=-1) for number in (0, 1)]
        topics = [Entity(name="t", partitions=[twice, other, twice]), Entity(name="t", partitions=[twice])]
        for version in range(1, 12):
            reply = await Peer(broker).ask(LIST_OFFSETS, version, topics=topics)
            found = [(one.partition_index, one.error_code) for topic in reply.topics for one in topic.partitions]
            assert found == [(0, ErrorCode.INVALID_REQUEST), (1, 0)]
        reply = await Peer(broker).ask(LIST_OFFSETS, 0, topics=topics)
        assert [one.error_code for topic in reply.topics for one in topic.partitions] == [0] * 4


# Users


async def authenticate(user: str, password: bytes | None, peer: str) -> bool:
    return (user, password) == ("u", b"p")


async def log_in(peer: Peer, token: bytes, mechanism: str = "PLAIN", version: int = 2) -> Any:
    reply = await peer.ask(SASL_HANDSHAKE, 1, mechanism=mechanism)
    assert reply.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    return await peer.ask(SASL_AUTHENTICATE, version, auth_bytes=token)


@pytest.mark.parametrize("version", range(3))
async def test_a_user_logs_in(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        assert (await peer.ask(API_VERSIONS, 3)).error_code == 0
        assert (await log_in(peer, b"\0u\0p", version=version)).error_code == 0
        assert [client.user for client in broker.clients] == ["u"]
        peer.adapter.connection_lost()
        assert broker.clients == []


@pytest.mark.parametrize("token", [b"\0u\0wrong", b"\0nobody\0p", b"other\0u\0p", b"u", b"\0\xff\0p", b"\0u\0p\0"])
async def test_who_is_not_welcome_is_told_and_ends(token: bytes) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        reply = await log_in(peer, token)
        assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert peer.adapter.closed


async def test_strangers_may_only_ask_for_versions_and_not_for_long() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        assert (await peer.ask(SASL_HANDSHAKE, 1, mechanism="GSSAPI")).error_code == 33
        assert (await peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=b"\0u\0p")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert peer.adapter.closed
        late = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        late.adapter.handle_timer(late.adapter.next_timer_at())
        assert late.adapter.closed
        eager = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        await eager.send(METADATA, 9, topics=[])
        assert eager.adapter.closed


async def test_rights_are_those_of_all_doors() -> None:
    async with kafka_broker() as broker:
        await Peer(broker).produce("secret", batch_of([b"a"]))
        await Peer(broker).produce("mine", batch_of([b"a"]))
        await broker.rights.set_permission("/", "u", Permission("", "^mine$", "^mine$"))
        peer = Peer(broker, address="192.0.2.1:5000", authenticate=authenticate)
        await log_in(peer, b"\0u\0p")
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [one.name for one in (await peer.ask(METADATA, 9, topics=None)).topics] == ["mine"]
        found = await peer.ask(METADATA, 9, topics=[Entity(name="secret"), Entity(name="new")])
        assert [one.error_code for one in found.topics] == [refused, refused]
        assert (await peer.produce("secret", batch_of([b"b"]))).error_code == refused
        assert (await peer.produce("new", batch_of([b"b"]))).error_code == refused
        assert (await peer.fetch("secret")).error_code == refused
        assert (await peer.produce("mine", batch_of([b"b"]))).error_code == 0
        assert [one.value for one in records_of(await peer.fetch("mine"))] == [b"a", b"b"]
        assert (await peer.fetch("mine", 2, wait_ms=10)).error_code == 0


async def test_behind_requests_that_wait_no_more_are_read() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", partitions=1, config={})
        peer = Peer(broker, requests_in_flight_max=2)
        for _ in range(2):
            await peer.send(FETCH, 11, **fetching("t", wait_ms=60_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(peer.send, FETCH, 11, **fetching("t", 1, wait_ms=1)))
            await trio.testing.wait_all_tasks_blocked()
            assert (peer.adapter.waiting, peer.replies()) == (2, [])
            await Peer(broker).produce("t", batch_of([b"a"]))
        with trio.fail_after(5):
            replies = peer.replies()
            while len(replies) < 3:
                await trio.sleep(0.001)
                replies += peer.replies()
        found = [records_of(reply.responses[0].partitions[0]) for reply in replies]
        assert [[record.value for record in one] for one in found] == [[b"a"], [b"a"], []]


# Idempotent producers


@pytest.mark.parametrize("version", range(5))
async def test_producers_are_given_ids(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
        found = [await peer.ask(INIT_PRODUCER_ID, version, **asked) for _ in range(3)]
        assert {one.error_code for one in found} == {0}
        assert len({one.producer_id for one in found}) == 3
        assert {one.producer_epoch for one in found} == {0}
        if version >= 3:
            more = await peer.ask(INIT_PRODUCER_ID, version, producer_id=5, producer_epoch=7, **asked)
            assert (more.producer_id, more.producer_epoch) == (5, 8)
            for half in ({"producer_id": 5}, {"producer_epoch": 7}):
                refused = await peer.ask(INIT_PRODUCER_ID, version, **half, **asked)
                assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


async def test_a_batch_that_is_sent_again_is_there_once() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        first, second = (idempotent(batch_of([b"a", b"b"]), 9, 0, sequence) for sequence in (0, 2))
        for batch, offset in ((first, 0), (second, 2), (first, 0), (second, 2)):
            found = await peer.produce("t", batch)
            assert (found.error_code, found.base_offset) == (0, offset)
        gap, old = idempotent(batch_of([b"x"]), 9, 0, 7), idempotent(batch_of([b"x"]), 9, 1, 0)
        assert (await peer.produce("t", gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await peer.produce("t", old)).base_offset == 4
        late = idempotent(batch_of([b"x"]), 9, 0, 4)
        assert (await peer.produce("t", late)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await peer.produce("t", batch_of([b"plain"]))).base_offset == 5


@pytest.mark.parametrize("crash", [False, True])
async def test_what_is_known_of_producers_survives_a_stop_and_a_crash(crash: bool) -> None:
    files = MemoryFiles()
    batches = [idempotent(batch_of([b"%d" % number]), 9, 0, number) for number in range(8)]
    for round_ in range(3):
        async with kafka_broker(files, topic_segment_bytes=200) as broker:
            peer = Peer(broker)
            for number in range(2 * round_ - 2 if round_ else 0, 2 * round_ + 2):
                assert (await peer.produce("t", batches[number])).base_offset == number, (round_, number)
            gap = await peer.produce("t", batches[2 * round_ + 4] if round_ < 2 else batches[7])
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            kept = files.crash() if crash else files
        files = kept


async def test_a_file_that_speaks_of_what_was_cut_is_not_believed() -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        peer = Peer(broker)
        for number in range(4):
            await peer.produce("t", idempotent(batch_of([b"x"]), 9, 0, number))
        partition = broker.topics["t"].partitions[0]
        await partition.producers.save()
        partition.log.epochs.entries[:] = [(5, 2)]
        assert partition.producers._believed(ProducerStates(4).encode(5)) is not None
        assert partition.producers._believed(ProducerStates(4).encode(4)) is None
        assert partition.producers._believed(ProducerStates(9).encode(5)) is None
