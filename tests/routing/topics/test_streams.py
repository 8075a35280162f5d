"""Streams within the engine: positions, cursors that do not hinder each other, what is kept and what is dropped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.record_batch import BatchBuilder, encode_headers, iterate_records
from routing.errors import BrokerError, NotFound, NotImplementedYet, PreconditionFailed
from routing.message import Slab
from routing.session import Consumer, Outcome
from routing.topics.stream import Stream
from routing.topics.stream_records import StreamSlab
from tests.routing.harness import PERSISTENT, Client, Engine, engine, killed, with_headers

STREAM = {"x-queue-type": "stream"}


class Reader(Client):
    """A client of streams: what it got is `got`, (offset, key, body) in their order."""

    def __init__(self, running: Engine, prefetch: int = 100) -> None:
        super().__init__(running, object())
        self.got: list[tuple[int, str, str]] = []
        self.slabs: list[Slab] = []
        self.session.set_prefetch(prefetch, per_session=False)

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        assert isinstance(slab, StreamSlab)
        assert not redelivered
        self.last_id = first_id + stop - start - 1
        self.slabs.append(slab)
        for index in range(start, stop):
            self.got.append((slab.first_offset + index, slab.key_of(index), slab.bodies[index].decode()))

    async def read(self, stream: str, offset: Any = "first", *, tag: str = "c", **arguments: Any) -> Consumer:
        asked = arguments if offset is None else {"x-stream-offset": offset} | arguments
        return await self.session.consume(stream, tag=tag, no_ack=False, arguments=asked)

    async def until(self, count: int) -> list[tuple[int, str, str]]:
        """Wait for deliveries, acknowledging all; what there is."""
        while True:
            self.session.settle_up_to(0, Outcome.ACK)
            self.engine.turn()
            if len(self.got) >= count:
                break
            if not self.session.outstanding:
                await self.engine.until(lambda: bool(self.session.outstanding))
        return self.got

    @property
    def bodies(self) -> list[str]:
        return [body for _, _, body in self.got]


async def declare(running: Engine, name: str = "s", **arguments: Any) -> Stream:
    await running.broker.declare_queue(name, durable=True, arguments=STREAM | arguments)
    return running.broker.topology.vhosts["/"].streams[name]


async def publish(running: Engine, *bodies: object, key: str = "s", exchange: str = "") -> None:
    client = running.client()
    await client.publish_safely(key, *bodies, exchange=exchange)
    client.session.close()


async def filled(running: Engine, count: int = 10, **arguments: Any) -> Stream:
    stream = await declare(running, **arguments)
    await publish(running, *range(count))
    return stream


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", range(10)),
        (0, range(10)),
        (7, range(7, 10)),
        ("last", [9]),
        (-3, [7, 8, 9]),
        (-30, range(10)),
        ("1h", range(10)),
        ("next", []),
        (None, []),
        (10, []),
    ],
)
async def test_every_position(offset: Any, expected: Any) -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running)
        reader = Reader(running)
        await reader.read("s", offset)
        await reader.until(len(expected))
        assert reader.got == [(at, "s", str(at)) for at in expected]
        await publish(running, "more")
        await reader.until(len(expected) + 1)
        assert reader.got[-1] == (10, "s", "more")


async def test_a_position_beyond_the_end_is_waited_for() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running)
        reader = Reader(running)
        await reader.read("s", 12)
        await publish(running, 10, 11, 12, 13)
        await reader.until(2)
        assert reader.bodies == ["12", "13"]


async def test_a_time_finds_the_first_record_at_or_after_it() -> None:
    async with engine(MemoryFiles()) as running:
        stream = await declare(running)
        for number in range(5):
            builder = BatchBuilder(0, 0, 1000 * number)
            builder.add(0, None, str(number).encode())
            stream.topic.partitions[0].append(builder.build())
        stream.topic.partitions[0].log.request_sync()
        await running.until(lambda: stream.topic.partitions[0].log.high_watermark == 5)
        for asked_s, expected in [(0.0, 0), (2.0, 2), (2.001, 3), (99.0, 5)]:
            reader = Reader(running)
            await reader.read("s", datetime.fromtimestamp(asked_s, UTC))
            await reader.until(5 - expected)
            assert [at for at, _, _ in reader.got] == list(range(expected, 5)), asked_s
            reader.session.close()


async def test_consumers_have_cursors_of_their_own_and_a_slow_one_hinders_nobody() -> None:
    async with engine(MemoryFiles()) as running:
        stream = await filled(running, 1000)
        slow, fast, stopped = Reader(running, 1), Reader(running, 50), Reader(running)
        stopped.open = False
        for reader in (slow, fast, stopped):
            await reader.read("s")
        await fast.until(1000)
        assert fast.bodies == [str(number) for number in range(1000)]
        assert slow.bodies == ["0"]
        assert stopped.got == []
        assert stream.message_count == 1000
        assert slow.slabs[0] in fast.slabs, "decoded once for both"
        stopped.open = True
        stopped.session.resume()
        await stopped.until(1000)
        assert stopped.bodies == fast.bodies


async def test_acknowledging_gives_credit_and_nothing_can_be_returned() -> None:
    async with engine(MemoryFiles()) as running:
        await filled(running)
        reader = Reader(running, 3)
        await reader.read("s")
        running.turn()
        assert reader.bodies == ["0", "1", "2"]
        reader.ack(2)
        running.turn()
        assert reader.bodies[3:] == ["3"]
        for refused in (Outcome.REQUEUE, Outcome.DISCARD):
            with pytest.raises(NotImplementedYet, match=r"basic\.nack and basic.reject not supported by stream queues"):
                reader.session.settle(1, 1, refused)
            with pytest.raises(NotImplementedYet, match=r"basic\.nack and basic.reject not supported by stream queues"):
                reader.session.settle_up_to(3, refused)
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
            reader.ack(2)
        reader.session.settle_up_to(0, Outcome.ACK)
        running.turn()
        assert reader.bodies[4:] == ["4", "5", "6"]


async def test_what_streams_refuse() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await filled(running)
        client = running.client()
        with pytest.raises(PreconditionFailed) as caught:
            await client.consume("s")
        assert str(caught.value) == "consumer prefetch count is not set for 'queue 's' in vhost '/''"
        client.session.set_prefetch(5, per_session=False)
        refusals: list[tuple[Any, str]] = [
            (lambda: client.consume("s", no_ack=True), "automatic acknowledgement"),
            (lambda: client.session.get("s", no_ack=True), "basic.get"),
            (lambda: broker.purge_queue("s"), "queue.purge"),
        ]
        for act, operation in refusals:
            with pytest.raises(NotImplementedYet) as refused:
                await act()
            assert str(refused.value) == f"{operation} not supported by stream queues queue 's' in vhost '/'"
        for options, text in [
            ({"arguments": {}}, "inequivalent arg 'x-queue-type' for queue 's'"),
            ({"arguments": STREAM | {"x-max-age": "1h"}}, "inequivalent arg 'x-max-age' for queue 's'"),
            ({"arguments": STREAM, "durable": False}, "inequivalent arg 'durable' for queue 's'"),
            ({"arguments": STREAM, "exclusive": True}, "cannot obtain exclusive access to locked queue 's'"),
        ]:
            with pytest.raises(BrokerError, match=text):
                await broker.declare_queue("s", **({"durable": True} | options))
        await broker.declare_queue("classic", durable=True)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type' for queue 'classic'"):
            await broker.declare_queue("classic", durable=True, arguments=STREAM)
        with pytest.raises(BrokerError, match=r"contains reserved prefix 'amq.\*'"):
            await broker.declare_queue("amq.s", durable=True, arguments=STREAM)
        assert list(broker.topology.vhosts["/"].streams) == ["s"]
        info = await broker.declare_queue("s", durable=True, arguments=STREAM)
        assert (info.message_count, info.consumer_count) == (10, 0)


async def test_bindings_lead_to_streams_and_the_records_say_where_they_came_from() -> None:
    async with engine(MemoryFiles()) as running:
        stream = await declare(running)
        await running.bind("amq.topic", "s", "plant.#")
        client = running.client()
        properties = with_headers({"a": 1, "b": "text"})
        slab = Slab("amq.topic", "plant.1", properties, [b"one", b"two"])
        client.session.publish(slab, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 2)
        reader = Reader(running)
        await reader.read("s")
        await reader.until(2)
        assert reader.got == [(0, "plant.1", "one"), (1, "plant.1", "two")]
        got = reader.slabs[0]
        assert (got.exchange, got.properties_of(0).raw) == ("amq.topic", properties.raw)
        (batch,) = stream.topic.partitions[0].log.read(0, 1 << 20) or []
        record = next(iterate_records(batch))
        assert (record.key, record.value) == (b"plant.1", b"one")
        assert record.headers == [
            ("millrace.exchange", b"amq.topic"),
            ("millrace.headers-as-json", properties.raw),
            ("a", b"1"),
            ("b", b"text"),
        ]


async def test_what_others_append_is_read_as_it_is() -> None:
    async with engine(MemoryFiles()) as running:
        stream = await declare(running)
        builder = BatchBuilder(0, 0, 1000)
        block = encode_headers([("a", b"x"), ("millrace.message-id", b"m1"), ("raw", b"\xff"), ("none", None)])
        builder.add_run(0, b"k" * 300, [b"v", None], block)
        stream.topic.partitions[0].append(builder.build())
        reader = Reader(running)
        await reader.read("s")
        await reader.until(2)
        assert reader.got == [(0, "k" * 255, "v"), (1, "k" * 255, "")]
        neutral = reader.slabs[0].properties_of(0).neutral
        assert neutral.headers == {"a": "x", "raw": b"\xff", "none": None}
        assert neutral.message_id == "m1"


async def test_a_topic_becomes_a_stream_and_keeps_its_records() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t", partitions=1)
        builder = BatchBuilder(0, 0, 1000)
        builder.add(0, b"k", b"before")
        topic.partitions[0].append(builder.build())
        stream = await declare(running, "t")
        assert stream.topic is topic
        await publish(running, "after", key="t")
        reader = Reader(running)
        await reader.read("t")
        await reader.until(2)
        assert reader.bodies == ["before", "after"]
        await running.broker.create_topic("three", partitions=3)
        with pytest.raises(PreconditionFailed, match="has 3 partitions"):
            await declare(running, "three")


async def test_deleting_a_stream_deletes_the_topic_and_tells_its_consumers() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await filled(running)
        await running.bind("amq.topic", "s", "#")
        reader = Reader(running)
        await reader.read("s", tag="mine")
        for options, text in [({"if_unused": True}, "in use"), ({"if_empty": True}, "is not empty")]:
            with pytest.raises(PreconditionFailed, match=text):
                await broker.delete_queue("s", **options)
        assert await broker.delete_queue("s") == 10
        assert reader.events == [("cancelled", "mine")]
        assert (list(broker.topics), list(broker.topology.vhosts["/"].streams)) == ([], [])
        with pytest.raises(NotFound):
            await reader.read("s")
        assert not files.exists("topics/s-0")
        running.client().publish("anything", "lost", exchange="amq.topic")
        await filled(running)
        again = Reader(running)
        await again.read("s", "first")
        await broker.delete_topic("s")
        assert again.events == [("cancelled", "c")]
        assert await broker.delete_queue("s") == 0


async def test_streams_survive_a_kill_with_all_that_was_confirmed() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await filled(running, 100, **{"x-max-age": "7D"})
        await running.broker.declare_queue("odd name/1", durable=True, arguments=STREAM)
        await publish(running, "odd", key="odd name/1")
        await running.bind("amq.topic", "s", "plant.#")
        found = killed(files)
    async with engine(found) as running:
        info = await running.broker.declare_queue("s", durable=True, arguments=STREAM | {"x-max-age": "7D"})
        assert info.message_count == 100
        await publish(running, "via topic", key="plant.1", exchange="amq.topic")
        for name, expected in [("s", [*map(str, range(100)), "via topic"]), ("odd name/1", ["odd"])]:
            reader = Reader(running)
            await reader.read(name)
            await reader.until(len(expected))
            assert reader.bodies == expected


async def test_old_messages_are_read_from_the_disk_once_for_all() -> None:
    async with engine(MemoryFiles(), stream_read_bytes=16 << 10) as running:
        stream = await declare(running)
        log = stream.topic.partitions[0].log
        for first in range(0, 4000, 200):
            await publish(running, *(f"{number:0100}" for number in range(first, first + 200)))
        log._tail = type(log._tail)(0, log.log_end_offset, log._tail._budget)  # all but what comes now is on disk alone
        reads: list[int] = []
        read_cold = log.read_cold

        async def counted(offset: int, *arguments: Any, **options: Any) -> Any:
            reads.append(offset)
            return await read_cold(offset, *arguments, **options)

        log.read_cold = counted  # type: ignore[method-assign]
        readers = [Reader(running, 1000) for _ in range(5)]
        for reader in readers:
            await reader.read("s")
        for reader in readers:
            await reader.until(4000)
            assert [int(body) for body in reader.bodies] == list(range(4000))
        assert len(reads) == len(set(reads))


async def test_the_cache_is_bounded_and_far_apart_readers_still_get_everything() -> None:
    async with engine(MemoryFiles(), stream_cache_bytes=64 << 10, stream_read_bytes=16 << 10) as running:
        stream = await declare(running)
        for first in range(0, 2000, 20):
            await publish(running, *(f"{number:0100}" for number in range(first, first + 20)))
        cache = running.broker.topology.stream_host.cache
        readers = [Reader(running, 7) for _ in range(6)]
        for place, reader in enumerate(readers):
            await reader.read("s", 300 * place)
        for place, reader in enumerate(readers):
            await reader.until(2000 - 300 * place)
            assert [int(body) for body in reader.bodies] == list(range(300 * place, 2000))
            assert cache.bytes <= 2 * (64 << 10)
        await running.broker.delete_queue(stream.name)
        assert cache.bytes == 0


async def test_a_reader_that_retention_overtakes_goes_on_where_the_log_begins() -> None:
    segments = {"x-stream-max-segment-size-bytes": 4096, "x-max-length-bytes": 8192}
    async with engine(MemoryFiles()) as running:
        stream = await declare(running, **segments)
        reader = Reader(running, 2)
        await reader.read("s")
        for first in range(0, 1000, 20):
            await publish(running, *(f"{number:0100}" for number in range(first, first + 20)))
        assert [int(body) for body in reader.bodies] == [0, 1]
        log = stream.topic.partitions[0].log
        start = log.log_start_offset
        assert start > 850
        assert log.size_bytes < 8192 + 2 * 4096
        assert stream.message_count == 1000 - start
        reader.session.settle_up_to(0, Outcome.ACK)
        await reader.until(2 + 1000 - start)
        assert [int(body) for body in reader.bodies[2:]] == list(range(start, 1000))


async def test_a_consumer_of_damaged_records_is_told_instead_of_led_past_them() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        stream = await filled(running)
        log = stream.topic.partitions[0].log
        log._tail = type(log._tail)(0, log.log_end_offset, log._tail._budget)
        file = files.open(log.segments[0].log_path)
        file.pwritev([b"\xff\xff"], 100)
        reader = Reader(running)
        await reader.read("s", tag="mine")
        running.turn()
        await running.until(lambda: bool(reader.events))
        assert (reader.events, reader.got) == ([("cancelled", "mine")], [])
        assert not stream.consumers


async def test_a_disk_that_refuses_reads_is_asked_again() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        stream = await filled(running)
        log = stream.topic.partitions[0].log
        log._tail = type(log._tail)(0, log.log_end_offset, log._tail._budget)
        read_cold, failures = log.read_cold, [OSError("not now"), OSError("not now")]

        async def failing(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await read_cold(*arguments, **options)

        log.read_cold = failing  # type: ignore[method-assign]
        reader = Reader(running)
        await reader.read("s")
        await reader.until(10)
        assert (len(reader.got), failures) == (10, [])


async def test_streams_of_virtual_hosts_are_told_apart() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await filled(running)
        await broker.set_vhost("other")
        await broker.declare_queue("s", durable=True, arguments=STREAM, vhost="other")
        assert sorted(broker.topics) == ["_v.other.s", "s"]
        assert (await broker.check_queue("s", vhost="other")).message_count == 0
        found = killed(files)
    async with engine(found) as running:
        broker = running.broker
        assert [list(vhost.streams) for vhost in broker.topology.vhosts.values()] == [["s"], ["s"]]
        assert (await broker.check_queue("s", vhost="other")).message_count == 0
        session = broker.session(running.client(), protocol="p", owner=object(), vhost="other")
        with pytest.raises(PreconditionFailed, match="for 'queue 's' in vhost 'other''"):
            await session.consume("s", tag="c", no_ack=False)
        session.close()
        await broker.delete_vhost("other")
        assert list(broker.topics) == ["s"]


async def test_a_stream_that_is_made_anew_while_it_is_asked_whether_it_is_empty_stays() -> None:
    """What was looked at was the former one."""
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await declare(running)
        stream = broker.topology.vhosts["/"].streams["s"]

        async def anew() -> None:
            await broker.delete_queue("s")
            await filled(running)

        stream.refresh = anew  # type: ignore[method-assign]
        with pytest.raises(PreconditionFailed, match="not empty"):
            await broker.delete_queue("s", if_empty=True)
        assert (await broker.check_queue("s")).message_count == 10


async def test_a_virtual_host_is_deleted_though_others_delete_a_stream_of_it_meanwhile() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.set_vhost("other")
        for name in "ab":
            await broker.declare_queue(name, durable=True, arguments=STREAM, vhost="other")
        control, delete = broker.delete_topic.__self__, broker.delete_topic  # type: ignore[attr-defined]

        async def delete_with_other(name: str) -> None:
            control.delete_topic = delete
            await broker.delete_queue("b", vhost="other")
            await delete(name)

        control.delete_topic = delete_with_other
        await broker.delete_vhost("other")
        assert not broker.topics
        assert list(broker.topology.vhosts) == ["/"]


async def test_a_message_as_large_as_a_queue_takes_goes_into_a_stream() -> None:
    async with engine(MemoryFiles(), message_bytes_max=3 << 20) as running:
        await declare(running)
        await publish(running, "x" * (3 << 20))
        client = running.client()
        with pytest.raises(BrokerError, match="is larger than configured max size"):
            client.session.publish(Slab("", "s", PERSISTENT, [b"x" * ((3 << 20) + 1)]))
        reader = Reader(running)
        await reader.read("s")
        await reader.until(1)
        assert len(reader.got[0][2]) == 3 << 20
