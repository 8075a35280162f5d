"""The native door of a real engine in memory, spoken to over a socket, byte by byte where it matters."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest
import trio
import trio.testing

from core_log.memory_files import FaultyFiles, MemoryFiles
from protocols.native import wire, wire_topics
from protocols.native.config import NativeConfig
from protocols.native.errors import RETRIABLE, ErrorCode
from routing.access.grants import EVERYTHING
from routing.config import BrokerConfig
from routing.message import NeutralProperties, Properties, Slab, register_decoder
from tests.protocols.native.asking import fetch, fetched, produce, produced, refused, until_parked
from tests.protocols.native.broker import batch_of, connected, native_broker, values_of

TIMEOUT_S = 10


# Connections


async def test_hello_announces_the_limits() -> None:
    config = NativeConfig(request_bytes_max=5000, node_id=7)
    async with native_broker(config=config) as running, connected(running, hello=False) as peer:
        reply = await peer.ask(wire.Hello(0, 1, 9, "c", None))
        assert isinstance(reply, wire.HelloReply)
        assert (reply.version, reply.node_id, reply.limits["request_bytes_max"]) == (wire.VERSION, 7, 5000)
    async with native_broker() as running, connected(running, hello=False) as peer:
        reply = await peer.ask(wire.Hello(0, 1, 1, "of before", None))
        assert isinstance(reply, wire.HelloReply)
        assert reply.version == 1


@pytest.mark.parametrize(
    ("hello", "first", "code"),
    [
        (False, wire.Metadata(0, None, False), ErrorCode.HELLO_REQUIRED),
        (True, wire.Hello(0, 1, 1, "again", None), ErrorCode.HELLO_REQUIRED),
        (False, wire.Hello(0, wire.VERSION + 1, 9, "", None), ErrorCode.UNSUPPORTED_VERSION),
        (False, wire.Hello(0, 0, 0, "", None), ErrorCode.UNSUPPORTED_VERSION),
        (False, wire.Hello(0, 1, 1, "", ("u", "wrong")), ErrorCode.AUTHENTICATION_FAILED),
    ],
)
async def test_a_wrong_first_word_ends_the_connection(hello: bool, first: wire.Request, code: ErrorCode) -> None:
    def authenticate(user: str, password: bytes, peer: str) -> bool:
        return (user, password) == ("u", b"p")

    async with native_broker(authenticate=authenticate) as running, connected(running, hello=hello) as peer:
        assert await refused(peer, first) == code
        assert await peer.ended()


async def test_users_are_let_in_and_strangers_only_from_here_if_allowed() -> None:
    def authenticate(user: str, password: bytes, peer: str) -> bool:
        return (user, password) == ("u", b"p")

    async with native_broker(authenticate=authenticate) as running:
        async with connected(running, hello=False) as peer:
            assert isinstance(await peer.ask(wire.Hello(0, 1, 1, "", ("u", "p"))), wire.HelloReply)
        async with connected(running) as peer:
            assert isinstance(await peer.ask(wire.Metadata(0, None, False)), wire.MetadataReply)
    config = NativeConfig(anonymous_loopback=False)
    async with (
        native_broker(authenticate=authenticate, config=config) as running,
        connected(running, hello=False) as peer,
    ):
        reply = await peer.ask(wire.Hello(0, 1, 1, "", None))
        assert isinstance(reply, wire.ErrorReply)
        failed = (ErrorCode.AUTHENTICATION_FAILED, "a user is needed; the connection closes")
        assert (reply.error[0], reply.error[2]) == failed


@pytest.mark.parametrize("greeted", [False, True])
async def test_little_is_kept_of_who_has_not_said_hello(greeted: bool) -> None:
    config = NativeConfig(hello_bytes_max=2000)
    produced_later = produce(("t", 0, batch_of(bytes(1985))))
    async with native_broker(config=config) as running, connected(running, hello=greeted) as peer:
        if greeted:
            assert isinstance(await peer.ask(produced_later), wire.ProduceReply)
            return
        await peer.stream.send_all(wire.encode(produced_later)[0][:4])
        with trio.fail_after(TIMEOUT_S):
            reply = await peer.hear()
        assert isinstance(reply, wire.ErrorReply)
        assert reply.error[0] == ErrorCode.REQUEST_TOO_LARGE
        assert await peer.ended()


async def test_a_silent_connection_ends() -> None:
    config = NativeConfig(hello_timeout_ms=20)
    async with native_broker(config=config) as running, connected(running, hello=False) as peer:
        with trio.fail_after(TIMEOUT_S):
            assert await peer.ended()


async def test_a_session_byte_by_byte() -> None:
    batch = batch_of(b"a", b"b")
    requests = [wire.Hello(1, 1, 1, "", None), produce(("t", 0, batch)), fetch(("t", 0, 0))]
    async with native_broker() as running, connected(running, hello=False) as peer:
        for number, request in enumerate(requests):
            request.correlation_id = number
            for byte in b"".join(wire.encode(request)):
                await peer.stream.send_all(bytes([byte]))
            reply = await peer.hear()
            assert reply.correlation_id == number
        assert isinstance(reply, wire.FetchReply)
        assert values_of(reply.entries[0].records) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("data", "code", "correlation_id"),
    [
        (b"\0\0\0\0", ErrorCode.MALFORMED_FRAME, None),
        (b"\0\0\0\1\xc1", ErrorCode.MALFORMED_FRAME, None),
        (b"\0\0\0\5\x93\x03\x07\xa1t", ErrorCode.UNKNOWN_TOPIC, 7),
        (b"\0\0\0\6\x93\x03\x07\xa1t\0", ErrorCode.MALFORMED_FRAME, 7),
        (b"\0\0\0\4\x93\x03\x07\xa1", ErrorCode.MALFORMED_FRAME, 7),
        (b"\0\0\x03\xe8", None, None),
        (b"\0\0\x03\xe9", ErrorCode.REQUEST_TOO_LARGE, None),
        (b"\xff\xff\xff\xff", ErrorCode.REQUEST_TOO_LARGE, None),
        (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.REQUEST_TOO_LARGE, None),
        (b"\0\0\0\2\x92\x63", ErrorCode.MALFORMED_FRAME, None),
        (b"\0\0\0\3\x92\x63\x07", ErrorCode.UNKNOWN_API, 7),
        (b"\0\0\0\4\x93\x03\x07\x01", ErrorCode.INVALID_REQUEST, 7),
    ],
)
async def test_framing_errors_close_and_others_do_not(
    data: bytes, code: ErrorCode | None, correlation_id: int | None
) -> None:
    config = NativeConfig(request_bytes_max=1000)
    async with native_broker(config=config) as running, connected(running) as peer:
        await peer.stream.send_all(data)
        if code is None:  # a length at the limit: the rest may come
            with trio.move_on_after(0.05) as scope:
                await peer.hear()
            assert scope.cancelled_caught
            return
        reply = await peer.hear()
        assert isinstance(reply, wire.ErrorReply)
        assert (reply.error[0], reply.correlation_id) == (code, correlation_id)
        if code in (ErrorCode.MALFORMED_FRAME, ErrorCode.REQUEST_TOO_LARGE):
            assert await peer.ended()
        else:
            assert isinstance(await peer.ask(wire.Metadata(0, None, False)), wire.MetadataReply)


# Topics


async def test_topics_are_created_described_and_deleted() -> None:
    async with native_broker() as running, connected(running) as peer:
        create = wire_topics.CreateTopic(0, "t", 3, {"max.message.bytes": "5000"})
        assert isinstance(await peer.ask(create), wire_topics.CreateTopicReply)
        assert await refused(peer, create) == ErrorCode.PRECONDITION_FAILED
        metadata = await peer.ask(wire.Metadata(0, None, False))
        assert isinstance(metadata, wire.MetadataReply)
        assert metadata.topics == [("t", None, [wire.PartitionMetadata(n, 0, 0, [0], [0]) for n in range(3)])]
        assert await produced(peer, ("t", 2, batch_of(b"a", b"b"))) == [(None, 0)]
        described = await peer.ask(wire_topics.DescribeTopic(0, "t"))
        assert isinstance(described, wire_topics.DescribeTopicReply)
        assert described.config == {"max.message.bytes": "5000"}
        assert [(p.high_watermark, p.log_end_offset) for p in described.partitions] == [(0, 0), (0, 0), (2, 2)]
        assert isinstance(await peer.ask(wire_topics.DeleteTopic(0, "t")), wire_topics.DeleteTopicReply)
        for request in (
            wire_topics.DeleteTopic(0, "t"),
            wire_topics.DescribeTopic(0, "t"),
            wire_topics.Bind(0, "t", "amq.topic", "#", {}),
        ):
            assert await refused(peer, request) == ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (wire_topics.CreateTopic(0, "no/slashes", 1, {}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "__queues", 1, {}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "x", 1, {"no.such": "1"}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "x", 5, {}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "x", 1, {"replication.factor": "2"}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "x", 1, {"unclean.leader.election": "yes"}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.CreateTopic(0, "x", 1, {"min.insync.replicas": "4"}), ErrorCode.INVALID_ARGUMENT),
        (wire_topics.Bind(0, "t", "no such exchange", "#", {}), ErrorCode.NOT_FOUND),
        (wire.CommitOffsets(0, "g", [("u", 0, 1, "")]), ErrorCode.UNKNOWN_TOPIC),
        (wire.CommitOffsets(0, "g", [("t", 9, 1, "")]), ErrorCode.UNKNOWN_PARTITION),
    ],
)
async def test_what_cannot_be_is_refused(request_: wire.Request, code: ErrorCode) -> None:
    engine = BrokerConfig(stripes=1, partitions_max=4)
    async with native_broker(engine=engine) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        assert await refused(peer, request_) == code


async def test_metadata_names_what_is_missing_or_makes_it() -> None:
    async with native_broker() as running, connected(running) as peer:
        reply = await peer.ask(wire.Metadata(0, ["t"], False))
        assert isinstance(reply, wire.MetadataReply)
        assert [(name, error and error[0]) for name, error, _ in reply.topics] == [("t", ErrorCode.UNKNOWN_TOPIC)]
        reply = await peer.ask(wire.Metadata(0, ["t", "a/b"], True))
        assert isinstance(reply, wire.MetadataReply)
        assert [(name, error and error[0]) for name, error, _ in reply.topics] == [
            ("t", None),
            ("a/b", ErrorCode.INVALID_ARGUMENT),
        ]


async def test_what_an_exchange_routes_reaches_a_bound_topic() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        assert isinstance(await peer.ask(wire_topics.Bind(0, "t", "amq.topic", "a.#", {})), wire_topics.BindReply)
        await peer.say(fetch(("t", 0, 0), wait_ms=5000))
        await until_parked(running, "t")
        register_decoder("test-native", lambda raw: NeutralProperties())
        session = running.broker.session(_NoSink(), protocol="test", owner=peer)
        properties = Properties("test-native", b"", persistent=True)
        session.publish(Slab("amq.topic", "a.b", properties, [b"one", b"two"]))
        running.broker.end_turn()
        reply = await peer.hear()
        assert isinstance(reply, wire.FetchReply)
        assert values_of(reply.entries[0].records) == [b"one", b"two"]
        assert isinstance(await peer.ask(wire_topics.Unbind(0, "t", "amq.topic", "a.#", {})), wire_topics.UnbindReply)
        session.publish(Slab("amq.topic", "a.b", properties, [b"three"]))
        running.broker.end_turn()
        assert await fetched(peer, fetch(("t", 0, 2))) == [(None, [])]
        session.close()


class _NoSink:
    """A session that only publishes needs none."""

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None


# Produce


@pytest.mark.parametrize("acks", [1, -1])
async def test_produced_bytes_come_back_as_they_were(acks: int) -> None:
    batches = [batch_of(b"a", b"b"), batch_of(b"c"), batch_of(b"x" * 500_000)]
    async with native_broker() as running, connected(running) as peer:
        offsets = [await produced(peer, ("t", 0, batch), acks=acks) for batch in batches]
        assert offsets == [[(None, 0)], [(None, 2)], [(None, 3)]]
        # With acks=1 nobody has asked for the sync: the fetch that waits does.
        reply = await peer.ask(fetch(("t", 0, 1), wait_ms=10_000, bytes_min=sum(map(len, batches))))
        assert isinstance(reply, wire.FetchReply)
        (entry,) = reply.entries
        assert (entry.log_start_offset, entry.high_watermark) == (0, 4)
        # the same bytes but for base offset and leader epoch
        expected = [offset.to_bytes(8, "big") + b[8:12] + b"\0\0\0\0" + b[16:] for offset, b in zip((0, 2, 3), batches)]
        assert bytes(entry.records) == b"".join(expected)


async def test_nobody_answers_acks_0() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.say(produce(("t", 0, batch_of(b"a")), acks=0))
        await peer.say(produce(("t", 9, batch_of(b"lost")), acks=0))
        await peer.say(produce(("t", 0, b"garbage"), acks=0))
        assert await produced(peer, ("t", 0, batch_of(b"b"))) == [(None, 1)]


async def test_each_entry_has_its_own_outcome() -> None:
    good = batch_of(b"a")
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 2, {"max.message.bytes": "1000"}))
        assert await produced(
            peer,
            ("t", 0, good),
            ("t", 2, good),
            ("a/b", 0, good),
            ("t", 1, damaged),
            ("t", 1, b""),
            ("t", 1, good + b"\0"),
            ("t", 1, good + good),
            ("t", 1, batch_of(b"x", control=True)),
            ("t", 1, batch_of(b"x" * 1000)),
            ("t", 1, good),
        ) == [
            (None, 0),
            (ErrorCode.UNKNOWN_PARTITION, -1),
            (ErrorCode.INVALID_ARGUMENT, -1),
            (ErrorCode.CORRUPT_BATCH, -1),
            (ErrorCode.CORRUPT_BATCH, -1),
            (ErrorCode.CORRUPT_BATCH, -1),
            (ErrorCode.CORRUPT_BATCH, -1),
            (ErrorCode.CORRUPT_BATCH, -1),
            (ErrorCode.BATCH_TOO_LARGE, -1),
            (None, 0),
        ]


async def test_the_largest_batch_of_a_topic() -> None:
    batch = batch_of(b"x" * 1000)
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "at", 1, {"max.message.bytes": str(len(batch))}))
        await peer.ask(wire_topics.CreateTopic(0, "below", 1, {"max.message.bytes": str(len(batch) - 1)}))
        outcome = await produced(peer, ("at", 0, batch), ("below", 0, batch))
        assert outcome == [(None, 0), (ErrorCode.BATCH_TOO_LARGE, -1)]


async def test_operations_on_topics_go_by_the_permissions_of_the_doors_virtual_host() -> None:
    def authenticate(user: str, password: bytes, peer: str) -> bool:
        return True

    asked: list[tuple[str, dict[str, Any]]] = [
        ("topics.settings", {}),
        ("topics.alter", {"config": {"retention.ms": "1000"}}),
        ("topics.delete_records", {"partition": 0}),
        ("topics.lease", {"reader": "r", "offsets": {"0": 0}, "lease_ms": 1000}),
    ]
    native = NativeConfig(virtual_host="apps")
    async with native_broker(config=native, authenticate=authenticate) as running:
        broker = running.broker
        await broker.set_vhost("apps")
        await broker.create_topic("t")
        for user, vhost in (("of-apps", "apps"), ("of-others", "/")):
            await broker.rights.add_user(user, b"p")
            await broker.rights.set_permission(vhost, user, EVERYTHING)
            async with connected(running, hello=False) as peer:
                await peer.ask(wire.Hello(0, 1, 9, "", (user, "p")))
                for operation, more in asked:
                    request = wire.Administer(1, operation, {"name": "t", **more})
                    if vhost == "apps":
                        assert isinstance(await peer.ask(request), wire.AdministerReply)
                    else:
                        assert await refused(peer, request) == ErrorCode.ACCESS_REFUSED


async def test_topics_are_not_made_where_that_is_off() -> None:
    engine = BrokerConfig(stripes=1, auto_create_topics=False)
    async with native_broker(engine=engine) as running, connected(running) as peer:
        assert await produced(peer, ("t", 0, batch_of(b"a"))) == [(ErrorCode.UNKNOWN_TOPIC, -1)]


async def test_after_a_refusal_the_rest_of_the_round_is_refused() -> None:
    files = FaultyFiles(MemoryFiles())
    engine = BrokerConfig(stripes=1, flush_retry_interval_ms=10)
    async with native_broker(files, engine=engine) as running, connected(running) as peer:
        assert await produced(peer, ("t", 0, batch_of(b"0"))) == [(None, 0)]
        await peer.ask(wire_topics.CreateTopic(0, "u", 1, {}))
        log = running.broker.topics["t"].partitions[0].log
        files.failing["write"] = errno.ENOSPC
        assert await produced(peer, ("t", 0, batch_of(b"1"))) == [(ErrorCode.STORAGE_UNAVAILABLE, -1)] or log.error
        files.failing.clear()
        while log.error is not None:
            await trio.sleep(0.005)
        # Pipelined before the refusal was seen:
        assert await produced(peer, ("t", 0, batch_of(b"2"))) == [(ErrorCode.OUT_OF_ORDER, -1)]
        assert await produced(peer, ("u", 0, batch_of(b"other"))) == [(None, 0)]
        for value in (b"1 again", b"2 again"):
            reply = await peer.ask(produce(("t", 0, batch_of(value)), turn=1))
            assert isinstance(reply, wire.ProduceReply)
            assert reply.entries[0][0] is None
        ((_, values),) = await fetched(peer, fetch(("t", 0, 0)))
        assert values in ([b"0", b"1 again", b"2 again"], [b"0", b"1", b"1 again", b"2 again"])


async def test_a_produce_that_is_not_committed_in_time() -> None:
    files = FaultyFiles(MemoryFiles())
    gate = _Gate()
    async with native_broker(files) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        files.hook = gate
        try:
            reply = await peer.ask(produce(("t", 0, batch_of(b"a")), timeout_ms=20))
        finally:
            gate.open()
        assert isinstance(reply, wire.ProduceReply)
        error, _ = reply.entries[0]
        assert error is not None
        assert error[:2] == (ErrorCode.REQUEST_TIMED_OUT, True)


async def test_a_disk_that_one_floods_holds_up_who_floods_it_and_nobody_else() -> None:
    files, gate = FaultyFiles(MemoryFiles()), _Gate("write")
    engine = BrokerConfig(stripes=1, unflushed_bytes_max=200_000)
    async with native_broker(files, engine=engine) as running, connected(running) as flood, connected(running) as other:
        await flood.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        files.hook = gate
        try:
            for _ in range(4):
                await flood.say(produce(("t", 0, batch_of(bytes(90_000))), acks=0))
            await trio.testing.wait_all_tasks_blocked(0.01)  # or one read of the broker's has all of it
            await flood.say(wire.Metadata(0, None, False))
            assert isinstance(await other.ask(wire.Metadata(0, None, False)), wire.MetadataReply)
            await other.say(produce(("t", 0, batch_of(b"little"))))
            await other.say(wire.Metadata(0, None, False))
            assert isinstance(await other.hear(), wire.MetadataReply), "it is confirmed later"
            with trio.move_on_after(0.05) as scope:
                await flood.hear()
            assert scope.cancelled_caught, "what comes behind too much is not read yet"
        finally:
            gate.open()
        assert isinstance(await flood.hear(), wire.MetadataReply)
        assert isinstance(await other.hear(), wire.ProduceReply)


class _Gate:
    """Holds back the flusher's syncs, or other operations, until it is opened."""

    def __init__(self, operation: str = "sync") -> None:
        self._operation = operation
        self._opened = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if operation == self._operation:
            self._opened.wait(TIMEOUT_S)

    def open(self) -> None:
        self._opened.set()


# Offsets


async def test_offsets_by_end_and_time() -> None:
    async with native_broker() as running, connected(running) as peer:
        for number in range(3):
            await produced(peer, ("t", 0, batch_of(b"a", b"b", timestamp_ms=1000 * (number + 1))))
        asked = [-2, -1, 0, 1000, 1001, 2000, 3000, 3001]
        reply = await peer.ask(
            wire.ListOffsets(
                0,
                [
                    wire.ListOffsetsEntry(*one)
                    for one in [*[("t", 0, which) for which in asked], ("u", 0, -1), ("t", 1, -1)]
                ],
            )
        )
        assert isinstance(reply, wire.ListOffsetsReply)
        assert [offset for _, offset, _ in reply.entries] == [0, 6, 0, 0, 2, 2, 4, None, None, None]
        assert [error and error[0] for error, _, _ in reply.entries[-2:]] == [
            ErrorCode.UNKNOWN_TOPIC,
            ErrorCode.UNKNOWN_PARTITION,
        ]


async def test_group_offsets_outlive_the_broker() -> None:
    files = MemoryFiles()
    async with native_broker(files) as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 2, {}))
        commit = wire.CommitOffsets(0, "g", [("t", 0, 5, "note"), ("t", 1, 6, "")])
        assert isinstance(await peer.ask(commit), wire.CommitOffsetsReply)
        assert isinstance(await peer.ask(wire.CommitOffsets(0, "g", [("t", 0, 7, "")])), wire.CommitOffsetsReply)
    async with native_broker(files) as running, connected(running) as peer:
        for partitions, expected in [
            (None, [("t", 0, 7, ""), ("t", 1, 6, "")]),
            ([("t", 1), ("t", 9)], [("t", 1, 6, "")]),
            ([], []),
        ]:
            reply = await peer.ask(wire.FetchOffsets(0, "g", partitions))
            assert isinstance(reply, wire.FetchOffsetsReply)
            assert sorted(reply.entries) == expected
        reply = await peer.ask(wire.FetchOffsets(0, "nobody", None))
        assert isinstance(reply, wire.FetchOffsetsReply)
        assert reply.entries == []


async def test_a_stopping_broker_answers_polls_and_says_goodbye() -> None:
    async with native_broker() as running, connected(running) as peer:
        await peer.ask(wire_topics.CreateTopic(0, "t", 1, {}))
        fetch_id = await peer.say(fetch(("t", 0, 0), wait_ms=60_000))
        await until_parked(running, "t")
        for connection in list(running.shell.connections):
            connection.shut_down("maintenance")
        running.shell.end_turn()
        assert (await peer.hear()).correlation_id == fetch_id
        goodbye = await peer.hear()
        assert isinstance(goodbye, wire.ErrorReply)
        assert (goodbye.correlation_id, *goodbye.error) == (None, ErrorCode.SHUTTING_DOWN, True, "maintenance")
        assert await peer.ended()


async def test_producers_are_refused_while_they_are_blocked_and_consumers_are_not() -> None:
    async with native_broker() as running, connected(running) as peer:
        assert await produced(peer, ("t", 0, batch_of(b"a"))) == [(None, 0)]
        alarms = running.broker.alarms
        alarms.memory_bytes, alarms.memory_bytes_max = 2, 1
        alarms.check()
        assert await produced(peer, ("t", 0, batch_of(b"b"))) == [(ErrorCode.BLOCKED, -1)]
        assert ErrorCode.BLOCKED in RETRIABLE
        reply = await peer.ask(fetch(("t", 0, 0)))
        assert isinstance(reply, wire.FetchReply)
        assert values_of(reply.entries[0].records) == [b"a"]
        alarms.memory_bytes_max = 0
        alarms.check()
        assert await produced(peer, ("t", 0, batch_of(b"b"))) == [(ErrorCode.OUT_OF_ORDER, -1)]
        reply = await peer.ask(produce(("t", 0, batch_of(b"b")), turn=1))
        assert isinstance(reply, wire.ProduceReply)
        assert reply.entries == [(None, 1)]
