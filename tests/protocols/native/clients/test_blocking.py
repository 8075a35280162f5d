"""The blocking clients, in threads of their own, against a real broker in memory."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.record_batch import iterate_records
from millrace import (
    BatchTooLarge,
    BlockingClient,
    BlockingConsumer,
    BlockingProducer,
    Client,
    ConnectionLost,
    MillraceError,
    NotFound,
    OffsetOutOfRange,
    PreconditionFailed,
    ProducerInterceptor,
    ProtocolError,
    RecordMetadata,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
)
from protocols.native import wire
from protocols.native.clients.blocking_link import BlockingLink
from protocols.native.clients.partitioner import partition_of_key
from protocols.native.config import NativeConfig
from protocols.native.connection import addresses_of
from routing.config import BrokerConfig
from tests.protocols.native.broker import Restartable, batch_of, native_broker

TIMEOUT_S = 20


async def in_thread(work: Callable[[str], None], server: str) -> None:
    with trio.fail_after(TIMEOUT_S):
        await trio.to_thread.run_sync(work, server)


async def test_every_request() -> None:
    def work(server: str) -> None:
        with BlockingClient(server) as client:
            assert client.metadata() == {}
            assert client.metadata([]) == {}
            with pytest.raises(UnknownTopic):
                client.metadata(["t"])
            client.create_topic("t", partitions=2, config={"retention.ms": "5000"})
            with pytest.raises(PreconditionFailed):
                client.create_topic("t")
            assert client.metadata(None) == client.metadata(["t"]) == {"t": [0, 1]}
            assert client.metadata(["made"], create_missing=True) == {"made": [0]}
            first = client.topics()
            assert {name: (one.partitions, len(one.id)) for name, one in first.items()} == {
                "made": ([0], 16),
                "t": ([0, 1], 16),
            }
            client.delete_topic("made")
            client.create_topic("made")
            assert client.topics(["made"])["made"].id not in {one.id for one in first.values()}
            assert client.describe_topic("t").config == {"retention.ms": "5000"}
            client.bind_topic("t", "amq.topic", "a.*", {})
            client.unbind_topic("t", "amq.topic", "a.*")
            with pytest.raises(NotFound):
                client.bind_topic("t", "nowhere", "a")

            assert client.produce("t", 0, batch_of(b"a", b"b", timestamp_ms=1000)) == 0
            assert client.produce("t", 0, batch_of(b"c", timestamp_ms=2000), acks=1) == 2
            assert client.produce("t", 0, batch_of(b"d", timestamp_ms=3000), acks=0) is None
            late = batch_of(b"e", timestamp_ms=1000)
            assert client.produce_batches([("t", 0, late), ("t", 1, late)]) == [4, 0]
            with pytest.raises(UnknownPartition):
                client.produce("t", 7, batch_of(b"x"))

            assert client.list_offsets("t", 0, "earliest") == 0
            assert client.list_offsets("t", 0, "latest") == 5
            assert client.list_offsets("t", 0, 1500) == 2
            assert client.list_offsets("t", 0, 9000) is None
            for wrong in ("newest", -5):
                with pytest.raises(ValueError, match=r"."):
                    client.list_offsets("t", 0, wrong)  # type: ignore[arg-type]
            with pytest.raises(UnknownTopic):
                client.list_offsets("nowhere", 0, "latest")

            fetched = client.fetch("t", 0, 1)
            assert (fetched.high_watermark, fetched.log_start_offset, len(fetched.batches)) == (5, 0, 4)
            values = [record.value for batch in fetched.batches for record in iterate_records(batch)]
            assert values == [b"a", b"b", b"c", b"d", b"e"]
            assert len(client.fetch("t", 0, 0, 1).batches) == 1
            assert client.fetch("t", 0, 5, max_wait_ms=1).batches == []
            with pytest.raises(OffsetOutOfRange):
                client.fetch("t", 0, 6)

            client.commit_offsets("g", {("t", 0): 3, ("t", 1): 1})
            client.commit_offsets("g", {})
            assert client.committed_offsets("g") == {("t", 0): 3, ("t", 1): 1}
            assert client.committed_offsets("g", [("t", 1)]) == {("t", 1): 1}
            assert client.limits["request_bytes_max"] == 32 << 20
            client.delete_topic("t")
            with pytest.raises(UnknownTopic):
                client.delete_topic("t")

    async with native_broker() as running:
        await in_thread(work, running.server)


async def test_records_in_and_out() -> None:
    def work(server: str) -> None:
        with BlockingClient(server) as client:
            client.create_topic("t", partitions=3)
        keys = [b"k%d" % number for number in range(30)]
        with BlockingProducer(server, batch_bytes=500, compression="lz4") as producer:
            for number, key in enumerate(keys):
                producer.send("t", b"%d" % number, key=key, headers=[("h", b"x")], timestamp_ms=number)
            producer.send("t", b"chosen", partition=2)
            for _ in range(20):
                producer.send("t", b"any" * 20)
            with pytest.raises(UnknownPartition):
                producer.send("t", b"x", partition=3)
            producer.send("u", b"another topic")
        with BlockingConsumer(server, "g", auto_offset_reset="earliest") as consumer:
            consumer.assign(["t", ("u", 0)])
            records = []
            while batch := consumer.fetch(7, timeout_ms=10):
                assert len(batch) <= 7
                records += batch
            assert len(records) == 52
            keyed = {record.key: record for record in records if record.key is not None}
            for number, key in enumerate(keys):
                assert keyed[key].partition == partition_of_key(key, 3)
                assert (keyed[key].value, keyed[key].timestamp_ms, keyed[key].headers) == (
                    b"%d" % number, number, [("h", b"x")],
                )  # fmt: skip
            consumer.commit()
            consumer.seek("u", 0, 0)
            assert [record.value for record in consumer.fetch(timeout_ms=1000)] == [b"another topic"]
            with pytest.raises(KeyError):
                consumer.seek("u", 1, 0)
        with BlockingConsumer(server, "g") as consumer:
            consumer.assign(["t", "u"])
            assert consumer.fetch(timeout_ms=1) == []
            with BlockingProducer(server) as producer:
                producer.send("u", b"more")
            assert next(iter(consumer)).value == b"more"
        with BlockingConsumer(server, auto_offset_reset="error") as consumer:
            with pytest.raises(ValueError, match="nothing is assigned"):
                next(iter(consumer))
            with pytest.raises(OffsetOutOfRange):
                consumer.assign("t")
            with pytest.raises(ValueError, match="without a group"):
                consumer.commit()

    async with native_broker() as running:
        await in_thread(work, running.server)


async def test_seeking() -> None:
    def work(server: str) -> None:
        with BlockingProducer(server) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number, timestamp_ms=1000 + number)
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")

            def next_values(count: int) -> list[bytes | None]:
                return [record.value for record in consumer.fetch(count, timeout_ms=1000)]

            assert next_values(2) == [b"0", b"1"]
            consumer.seek_to_time(1015)
            assert next_values(2) == [b"15", b"16"]
            consumer.seek_to_beginning()
            assert next_values(1) == [b"0"]
            for to_the_end in (consumer.seek_to_end, lambda: consumer.seek_to_time(9999, [("t", 0)])):
                consumer.seek("t", 0, 5)
                to_the_end()
                assert consumer.fetch(timeout_ms=1) == []
            with pytest.raises(KeyError):
                consumer.seek_to_time(1000, [("t", 0), ("t", 1)])
            with pytest.raises(ValueError, match="-5"):
                consumer.seek_to_time(-5)
            for wrong in (-1, 1 << 63):
                with pytest.raises(ValueError, match="offset"):
                    consumer.seek("t", 0, wrong)
            assert consumer.fetch(timeout_ms=1) == []

    async with native_broker() as running:
        await in_thread(work, running.server)


class Interrupted:
    """A connection in which a signal comes while a request is sent, or behind it."""

    def __init__(self, connection: Any, raised: type[BaseException], *, halfway: bool) -> None:
        self._connection = connection
        self._raised = raised
        self._halfway = halfway

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data[: len(data) // 2] if self._halfway else data)
        raise self._raised

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("halfway", [True, False])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, RuntimeError])
async def test_who_goes_on_after_an_interrupted_request_has_a_new_connection(
    halfway: bool, raised: type[BaseException]
) -> None:
    def work(server: str) -> None:
        with BlockingClient(server) as client:
            client.create_topic("t", partitions=3)
            link = client._any
            link._socket = Interrupted(link.connected(), raised, halfway=halfway)  # type: ignore[assignment]
            with pytest.raises(raised):
                client.describe_topic("t")
            assert client.metadata(["t"]) == {"t": [0, 1, 2]}
            assert len(client.describe_topic("t").partitions) == 3

    async with native_broker() as running:
        await in_thread(work, running.server)


@pytest.mark.parametrize("halfway", [True, False])
async def test_what_an_interrupted_flush_had_taken_is_sent_by_the_next_once(halfway: bool) -> None:
    def work(server: str) -> None:
        told: list[int | None] = []
        with BlockingProducer(server, interceptors=[Told(told)]) as producer:
            producer.send("t", b"before", partition=0)
            producer.flush()
            link = producer.client._any
            for number in range(2):
                producer.send("t", b"%d" % number, partition=number)
            link._socket = Interrupted(link.connected(), KeyboardInterrupt, halfway=halfway)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                producer.flush()
            assert told == [0]
            producer.send("t", b"behind", partition=0)
            producer.flush()
            assert told == [0, 1, 0, 2]
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            found = sorted((record.partition, record.offset, record.value) for record in consumer.fetch())
        assert found == [(0, 0, b"before"), (0, 1, b"0"), (0, 2, b"behind"), (1, 0, b"1")]

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        await in_thread(work, running.server)


class Told(ProducerInterceptor):
    """Notes the offsets of what was stored."""

    def __init__(self, offsets: list[int | None]) -> None:
        self._offsets = offsets

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
        self._offsets.append(None if metadata is None else metadata.offset)


@pytest.mark.parametrize("says", [b"AMQP\0\0\x09\1", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_another_door_is_told_from_a_broker_that_is_broken(says: bytes) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(says)

    def ask(server: str) -> None:
        with BlockingClient(server) as client, pytest.raises(ProtocolError, match=wrong):
            client.metadata()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        server = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        wrong = f"{server} is no native door: what it says begins with {says[:4]!r}"
        await in_thread(ask, server)
        with pytest.raises(ProtocolError, match=wrong):
            async with Client(server):
                pass
        nursery.cancel_scope.cancel()


async def test_a_second_thread_is_refused_and_disturbs_nobody() -> None:
    def work(server: str) -> None:
        with BlockingClient(server) as client:
            client.create_topic("t")
            client.fetch("t", 0, 0, max_wait_ms=0)  # who leads is known from here on
            found: list[int] = []
            first = threading.Thread(
                target=lambda: found.append(client.fetch("t", 0, 0, max_wait_ms=60_000).high_watermark)
            )
            first.start()
            while not client._any._busy:
                pass
            for _ in range(2):
                with pytest.raises(RuntimeError, match="one thread"):
                    client.metadata()
            with BlockingProducer(server) as producer:
                producer.send("t", b"what it waits for")
            first.join()
            assert (found, client.metadata()) == ([1], {"t": [0]})

    async with native_broker() as running:
        await in_thread(work, running.server)


class StandingStill:
    """A broker that says hello, if it is told to, and nothing more."""

    def __init__(self, *, says_hello: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.server = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._says_hello = says_hello
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            if self._says_hello:
                asked = wire.decode_request(client.recv(4_096)[wire.LENGTH_BYTES :])
                hello = wire.HelloReply(asked.correlation_id, wire.VERSION, "", 7, {})
                client.sendall(b"".join(wire.encode(hello)))

    def close(self) -> None:
        for one in (self._listener, *self._clients):
            one.close()


@pytest.mark.parametrize("says_hello", [True, False])
async def test_a_broker_that_stands_still_is_left_for_others(
    monkeypatch: pytest.MonkeyPatch, *, says_hello: bool
) -> None:
    monkeypatch.setattr("protocols.native.clients.blocking_link._LOOK_S", 0.25)

    def work(server: str) -> None:
        with closing(StandingStill(says_hello=says_hello)) as gone, BlockingClient([gone.server, server]) as client:
            if says_hello:
                client._any.connected()
            assert client.metadata(["t"], create_missing=True) == {"t": [0]}
            link = BlockingLink(addresses_of(gone.server), client._terms, client._any)
            with pytest.raises(ConnectionLost, match="others say that it is gone") as lost:
                link.call(wire.Metadata(0, [], False), wire.MetadataReply) if says_hello else link.connected()
            assert lost.value.retriable

    async with native_broker() as running:
        await in_thread(work, running.server)


async def test_a_broker_that_the_others_know_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.native.clients.blocking_link._LOOK_S", 0.25)
    connect, made = socket.create_connection, list[Any]()

    def counting(address: Any, *arguments: Any) -> socket.socket:
        made.append(address)
        return connect(address, *arguments)

    def work(server: str) -> None:
        with closing(StandingStill(says_hello=True)) as slow, BlockingClient([slow.server, server]) as client:
            client._any.terms = msgspec.structs.replace(client._terms, timeout_s=0.9)
            client._any._timeout_s = 0.9
            client._any.connected()
            client._any.node_id = 0
            monkeypatch.setattr(socket, "create_connection", counting)
            with pytest.raises(RequestTimedOut, match=r"no reply within 0\.9 s"):
                client._any._exchange(wire.Metadata(0, [], False), wire.MetadataReply, 0)
            assert made == addresses_of(server), "who is asked again and again has one connection"

    async with native_broker() as running:
        await in_thread(work, running.server)


@pytest.mark.parametrize("acks", ["all", 0])
async def test_a_flush_is_in_as_many_requests_as_the_broker_takes(acks: Any) -> None:
    def work(server: str) -> None:
        with BlockingProducer(server, acks=acks) as producer:
            producer.client.create_topic("t", partitions=7)
            for partition in range(7):
                producer.send("t", bytes([partition]) * 6000, partition=partition)
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            found: dict[int, Any] = {}
            while len(found) < 7:
                found |= {record.partition: record.value for record in consumer.fetch()}
        assert found == {partition: bytes([partition]) * 6000 for partition in range(7)}

    async with native_broker(config=NativeConfig(request_bytes_max=20_000)) as running:
        await in_thread(work, running.server)


async def test_what_cannot_be_stored_is_raised() -> None:
    def work(server: str) -> None:
        producer = BlockingProducer(server, batch_bytes=8 << 20)
        with producer:
            producer.send("t", b"x" * (2 << 20))
            with pytest.raises(BatchTooLarge):
                producer.flush()
            producer.send("t", b"fine")
        with BlockingClient(server) as client:
            assert client.list_offsets("t", 0, "latest") == 1

    async with native_broker() as running:
        await in_thread(work, running.server)


async def test_who_has_patience_waits_for_a_broker_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    async def told() -> None:
        with trio.fail_after(TIMEOUT_S):
            while "it is tried again for" not in caplog.text:
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        client = BlockingClient(running.server, patience_s=TIMEOUT_S)
        await in_thread(lambda _: client.create_topic("t"), running.server)
        await broker.stop()
        for ask in (
            lambda _: client.list_offsets("t", 0, "latest"),  # by a connection that is lost
            lambda _: BlockingClient(running.server, patience_s=TIMEOUT_S).create_topic("u"),  # by none, and once
        ):
            caplog.clear()
            async with trio.open_nursery() as asking:
                asking.start_soon(in_thread, ask, running.server)
                await told()
                await broker.start()
            await broker.stop()
        client.close()


async def test_a_restarted_broker_is_found_again() -> None:
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        client = BlockingClient(running.server, timeout_s=5)
        producer = BlockingProducer(running.server, timeout_s=5)
        await in_thread(lambda _: client.create_topic("t"), running.server)
        await in_thread(lambda _: producer.send("t", b"kept"), running.server)
        await broker.stop()
        running = await broker.start()
        await in_thread(lambda _: producer.flush(), running.server)

        def check(server: str) -> None:
            assert client.metadata() == {"t": [0]}
            assert client.list_offsets("t", 0, "latest") == 1

        await in_thread(check, running.server)
        await broker.stop()

        def fails(server: str) -> None:
            with pytest.raises(ConnectionLost):
                client.metadata()

        await in_thread(fails, running.server)
        client.close()
        producer.client.close()


async def test_a_commit_waits_for_whoever_is_to_have_the_offsets() -> None:
    files = FaultyFiles(MemoryFiles())
    refused = threading.Event()

    def work(server: str) -> None:
        with BlockingClient(server) as client:
            client.create_topic("t")
            client.commit_offsets("g", {("t", 0): 1})
            files.failing["write"] = errno.ENOSPC
            refused.set()
            client.commit_offsets("g", {("t", 0): 2})
            assert client.committed_offsets("g") == {("t", 0): 2}
        with BlockingClient(server, timeout_s=0.2) as client:
            files.failing["write"] = errno.ENOSPC
            with pytest.raises(MillraceError) as raised:
                client.commit_offsets("g", {("t", 0): 3})
            assert raised.value.retriable

    async with native_broker(files, engine=BrokerConfig(stripes=1, flush_retry_interval_ms=10)) as running:

        async def mend() -> None:
            await trio.to_thread.run_sync(refused.wait)
            await trio.sleep(0.5)
            files.failing.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mend)
            await in_thread(work, running.server)
        files.failing.clear()
