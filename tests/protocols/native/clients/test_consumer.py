"""The consumer against a real broker in memory: where it begins, what it gets, how it goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from core_log.memory_files import MemoryFiles
from millrace import (
    BlockingClient,
    BlockingConsumer,
    BlockingProducer,
    Client,
    Consumer,
    ConsumerRecord,
    LinkConfig,
    NotFound,
    OffsetOutOfRange,
    PreconditionFailed,
    Producer,
    UnknownTopic,
)
from protocols.native.clients import consumer as consumer_module
from protocols.native.clients.link import Link
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.records import batch_records
from routing.config import BrokerConfig
from routing.groups.errors import CoordinatorUnavailable
from tests.protocols.native.asking import until_parked
from tests.protocols.native.broker import Restartable, Running, batch_of, native_broker

TIMEOUT_S = 20
QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)


async def fill(running: Running, topic: str, *values: bytes, partitions: int = 1, at_ms: int = 1000) -> None:
    """Records in turn over the partitions; record n at `at_ms` + n."""
    if topic not in running.broker.topics:
        await running.broker.create_topic(topic, partitions=partitions)
    async with Producer(running.server, batch_bytes=300) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % partitions, timestamp_ms=at_ms + number)


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    with trio.fail_after(TIMEOUT_S):
        return [(await anext(consumer)).value for _ in range(count)]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


async def nothing_comes(consumer: Consumer) -> bool:
    with trio.move_on_after(0.05):
        await anext(consumer)
        return False
    return True


async def test_it_begins_where_it_is_told() -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 10))
        async with Consumer(running.server, auto_offset_reset="earliest", link=QUICK) as consumer:
            await consumer.assign("t")
            assert consumer.assignment == [("t", 0)]
            assert await take(consumer, 10) == numbers(0, 10)
        async with Consumer(running.server) as consumer:
            await consumer.assign(["t"])
            assert consumer.position("t", 0) == 10
            await fill(running, "t", b"new")
            assert await take(consumer, 1) == [b"new"]
        async with Consumer(running.server, auto_offset_reset="error") as consumer:
            with pytest.raises(OffsetOutOfRange):
                await consumer.assign("t")
            with pytest.raises(UnknownTopic):
                await consumer.assign("nowhere")
            with pytest.raises(KeyError):
                await consumer.seek("t", 0, 5)


async def test_seeking() -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 100), partitions=2)
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign([("t", 1)])
            assert await take(consumer, 3) == [b"1", b"3", b"5"]
            assert consumer.position("t", 1) == 3
            await consumer.seek("t", 1, 40)
            assert consumer.position("t", 1) == 40
            assert await take(consumer, 2) == [b"81", b"83"]
            await consumer.seek_to_beginning()
            assert await take(consumer, 1) == [b"1"]
            await consumer.seek_to_time(1000 + 50)
            assert await take(consumer, 1) == [b"51"]
            await consumer.seek_to_time(9999, [("t", 1)])
            assert consumer.position("t", 1) == 50
            await consumer.seek_to_end()
            assert await nothing_comes(consumer)
            await consumer.seek("t", 1, 49)
            for wrong in (-1, 1 << 63):
                with pytest.raises(ValueError, match="offset"):
                    await consumer.seek("t", 1, wrong)
            assert await take(consumer, 1) == [b"99"]
            await consumer.assign([("t", 0)])
            assert await take(consumer, 50) == [b"%d" % number for number in range(0, 100, 2)]


async def test_all_partitions_of_several_topics_each_in_order() -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 300), partitions=3)
        await fill(running, "u", *numbers(0, 50))
        async with Consumer(running.server, auto_offset_reset="earliest", prefetch_bytes=1000) as consumer:
            await consumer.assign(["t", "u"])
            seen: dict[tuple[str, int], list[ConsumerRecord]] = {}
            with trio.fail_after(TIMEOUT_S):
                for _ in range(350):
                    record = await anext(consumer)
                    seen.setdefault((record.topic, record.partition), []).append(record)
            assert {key: len(records) for key, records in seen.items()} == {
                ("t", 0): 100, ("t", 1): 100, ("t", 2): 100, ("u", 0): 50,
            }  # fmt: skip
            for records in seen.values():
                assert [record.offset for record in records] == list(range(len(records)))


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_lists_of_records(size: int) -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 100))
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            got: list[bytes | None] = []
            while len(got) < 100:
                with trio.fail_after(TIMEOUT_S):
                    records = await consumer.fetch(size)
                assert 1 <= len(records) <= size
                got += [record.value for record in records]
                assert consumer.position("t", 0) == len(got)
            assert got == numbers(0, 100)


async def test_a_group_goes_on_where_it_committed() -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 20), partitions=2)
        async with Consumer(running.server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            await take(consumer, 12)
            await consumer.commit()
            committed = await consumer.committed()
            assert sum(committed.values()) == 12
            await take(consumer, 3)
        async with Consumer(running.server, "g") as consumer:
            await consumer.assign("t")
            assert {key: consumer.position(*key) for key in consumer.assignment} == committed
            assert len(await take(consumer, 8)) == 8
            await consumer.commit({("t", 0): 3})
            assert (await consumer.committed([("t", 0)])) == {("t", 0): 3}
        async with Consumer(running.server, "other", auto_offset_reset="earliest") as consumer:
            await consumer.assign([("t", 0)])
            assert await take(consumer, 1) == [b"0"]
        async with Consumer(running.server) as consumer:
            with pytest.raises(ValueError, match="without a group"):
                await consumer.commit()
            assert await consumer.committed() == {}


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"20"), ("latest", b"new")])
async def test_an_offset_that_is_gone(reset: str, first: bytes) -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 30))
        running.broker.topics["t"].partitions[0].log.delete_prefix(20)
        async with Consumer(running.server, auto_offset_reset=reset) as consumer:  # type: ignore[arg-type]
            await consumer.assign("t")
            await consumer.seek("t", 0, 5)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await fill(running, "t", b"new")
            assert await take(consumer, 1) == [first]


async def test_errors_come_out_of_the_iteration() -> None:
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 3))
        async with Consumer(running.server, auto_offset_reset="error", fetch_max_wait_ms=10) as consumer:
            await consumer.assign([])
            consumer._reset = "earliest"
            await consumer.assign("t")
            consumer._reset = "error"
            await consumer.seek("t", 0, 77)
            with trio.fail_after(TIMEOUT_S), pytest.raises(OffsetOutOfRange):
                await anext(consumer)
            await consumer.seek("t", 0, 0)
            assert await take(consumer, 3) == numbers(0, 3)
            await running.broker.delete_topic("t")
            with trio.fail_after(TIMEOUT_S), pytest.raises(UnknownTopic):
                await anext(consumer)


async def test_cut_connections_and_restarts_are_not_noticed() -> None:
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        await fill(running, "t", *numbers(0, 10))
        async with Consumer(running.server, "g", auto_offset_reset="earliest", link=QUICK) as consumer:
            await consumer.assign("t")
            assert await take(consumer, 5) == numbers(0, 5)
            running.drop_connections()
            await consumer.commit()
            assert await take(consumer, 5) == numbers(5, 10)
            await broker.stop()
            running = await broker.start()
            await fill(running, "t", *numbers(10, 20))
            assert await take(consumer, 10) == numbers(10, 20)
            await consumer.commit()
            assert await consumer.committed() == {("t", 0): 20}
        await broker.stop()


async def test_cancelling_who_waits_leaves_the_consumer_whole() -> None:
    async with native_broker() as running:
        await fill(running, "t", b"0")
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            assert await take(consumer, 1) == [b"0"]
            for _ in range(3):
                assert await nothing_comes(consumer)
            await fill(running, "t", b"1")
            assert await take(consumer, 1) == [b"1"]


def test_control_batches_hold_no_records_for_applications() -> None:
    assert batch_records("t", 0, batch_of(b"x", control=True), 0) == []
    assert [record.offset for record in batch_records("t", 0, batch_of(b"a", b"b", b"c"), 1)] == [1, 2]


async def test_the_control_client() -> None:
    async with native_broker() as running, Client(running.server, client_name="admin") as client:
        await client.create_topic("t", partitions=2, config={"retention.ms": "1000"})
        with pytest.raises(PreconditionFailed):
            await client.create_topic("t")
        await client.bind_topic("t", "amq.topic", "a.#")
        await client.unbind_topic("t", "amq.topic", "a.#")
        with pytest.raises(NotFound):
            await client.bind_topic("t", "nowhere", "a")
        assert await client.list_topics() == {"t": 2}
        described = await client.describe_topic("t")
        assert (described.name, described.config, len(described.partitions)) == ("t", {"retention.ms": "1000"}, 2)
        assert await client.list_offsets([("t", 0), ("t", 1)], "latest") == [0, 0]
        assert await client.list_offsets([("t", 0)], 5) == [None]
        assert client.limits["requests_in_flight_max"] == 1000
        await client.delete_topic("t")
        with pytest.raises(UnknownTopic):
            await client.describe_topic("t")


async def test_what_two_links_answer_is_taken_once() -> None:
    """As when the link that finds leaders is connected to the leader, to which there was another one before."""
    async with native_broker() as running, trio.open_nursery() as nursery:
        await running.broker.create_topic("t")
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            other = Link(running.server, QUICK)
            nursery.start_soon(other.run)
            await other.wait_connected()
            with trio.fail_after(TIMEOUT_S):
                await until_parked(running, "t", 1)
                nursery.start_soon(consumer._fetch_once, other, list(consumer._positions.values()))
                await until_parked(running, "t", 2)
                log = running.broker.topics["t"].partitions[0].log
                for number in range(3):
                    log.append(batch_of(b"%d" % number))
                log.request_sync()
                assert await take(consumer, 3) == numbers(0, 3)
                assert await nothing_comes(consumer)
                await fill(running, "t", b"3")
                assert await take(consumer, 1) == numbers(3, 4)
        nursery.cancel_scope.cancel()


async def test_offsets_may_be_of_any_type_of_whole_numbers() -> None:
    """Those of NumPy are no `int`, and a float of theirs is no whole number."""
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 10))
        async with Consumer(running.server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            await consumer.seek("t", 0, np.int64(7))
            assert await take(consumer, 1) == [b"7"]
            await consumer.seek_to_time(np.int64(1003))
            assert await take(consumer, 1) == [b"3"]
            await consumer.commit({("t", 0): np.int32(4)})
            assert await consumer.committed() == {("t", 0): 4}
            for wrong in (1.5, np.float64(2), "3"):
                with pytest.raises(TypeError):
                    await consumer.seek("t", 0, wrong)  # type: ignore[arg-type]
                with pytest.raises(TypeError):
                    await consumer.commit({("t", 0): wrong})  # type: ignore[dict-item]
            assert await take(consumer, 1) == [b"4"]

        def work() -> None:
            with BlockingClient(running.server) as client:
                client.commit_offsets("g", {("t", 0): np.int64(5)})
                assert client.committed_offsets("g") == {("t", 0): 5}
                assert client.list_offsets("t", 0, np.int64(1003)) == 3

        await trio.to_thread.run_sync(work)


async def test_seeking_to_a_time_passes_nothing_over_that_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async with native_broker() as running:
        await fill(running, "t", b"old")

        async def asked(*about: Any) -> list[int | None]:
            offsets = await list_offsets(*about)
            if about[2] == 5000 and offsets == [None]:
                await fill(running, "t", b"young", at_ms=5000)
            return offsets

        monkeypatch.setattr(consumer_module, "list_offsets", asked)
        async with Consumer(running.server, link=QUICK) as consumer:
            await consumer.assign("t")
            await consumer.seek_to_time(5000)
            assert await take(consumer, 1) == [b"young"]
        async with Consumer(running.server, link=QUICK) as consumer:
            await consumer.assign("t")
            await consumer.seek_to_time(9999)
            assert consumer.position("t", 0) == 2


async def test_seeking_to_a_time_without_an_event_loop_passes_nothing_over_either() -> None:
    def work(server: str) -> None:
        with BlockingConsumer(server) as consumer, BlockingProducer(server) as producer:
            consumer.assign("t")
            ask = consumer.client.list_many_offsets

            def asked(wanted: Any) -> list[int | None]:
                offsets = ask(wanted)
                if offsets == [None]:
                    producer.send("t", b"young", timestamp_ms=5000)
                    producer.flush()
                return offsets

            consumer.client.list_many_offsets = asked  # type: ignore[method-assign]
            consumer.seek_to_time(5000)
            assert [record.value for record in consumer.fetch(timeout_ms=5000)] == [b"young"]

    async with native_broker() as running:
        await fill(running, "t", b"old")
        await trio.to_thread.run_sync(work, running.server)


async def test_partitions_without_records_keep_no_other_waiting_that_was_read_ahead_or_is_resumed() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        async with Producer(running.server, batch_bytes=300) as producer:
            for number in range(10):
                await producer.send("t", b"%250d" % number, partition=0)
        reader = Consumer(
            running.server, auto_offset_reset="earliest", prefetch_bytes=1, partition_max_bytes=600,
            fetch_max_wait_ms=60_000, link=QUICK,
        )  # fmt: skip
        async with reader as consumer:
            await consumer.assign("t")
            assert [int(value or b"") for value in await take(consumer, 5)] == list(range(5))
            consumer.pause([("t", 0)])
            await nothing_comes(consumer)
            consumer.resume([("t", 0)])
            assert [int(value or b"") for value in await take(consumer, 5)] == list(range(5, 10))


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_what_was_read_ahead_is_handed_out_before_reading_goes_on_where_there_are_records(reset: Any) -> None:
    """Retention had overtaken it: what was here already was thrown away, and nothing said so."""
    async with native_broker() as running:
        await fill(running, "t", *numbers(0, 300))
        limits: dict[str, Any] = {"partition_max_bytes": 1000, "prefetch_bytes": 1000, "link": QUICK}
        async with Consumer(running.server, auto_offset_reset=reset, **limits) as consumer:
            await consumer.assign([("t", 0)])
            await consumer.seek("t", 0, 0)
            assert await take(consumer, 2) == numbers(0, 2)
            position = consumer._positions["t", 0]
            await until_idle(consumer)
            read_to = position.fetch_offset
            assert 30 < read_to < 200
            async with Client(running.server) as client:
                await client.delete_records("t", 0, 280)
            got: list[bytes | None] = []
            while position.buffered_bytes >= 1000:
                got += await take(consumer, 1)
            await until_idle(consumer)  # it tries to read on
            got += await take(consumer, read_to - 3 - len(got))
            assert got == numbers(2, read_to - 1)
            await until_idle(consumer)
            assert consumer.position("t", 0) == read_to - 1, "one is not handed out yet"
            consumer._put_back()
            assert await take(consumer, 1) == numbers(read_to - 1, read_to)
            if reset == "earliest":
                assert await take(consumer, 20) == numbers(280, 300)
            assert await nothing_comes(consumer)
            assert consumer.position("t", 0) == 300


async def until_idle(consumer: Consumer) -> None:
    """It has read ahead as far as it may for now, or waits."""
    with trio.move_on_after(0.05):
        await trio.sleep_forever()


ALONE = BrokerConfig(stripes=1, group_initial_delay_ms=0)


async def test_what_was_handed_out_is_committed_before_other_partitions_are_chosen() -> None:
    """What was not committed yet was handed out once more, as nobody did it by the clock's time."""
    async with native_broker(engine=ALONE) as running:
        await fill(running, "t", *numbers(0, 10))
        await fill(running, "u", b"other")
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "link": QUICK, "auto_commit_interval_ms": 60_000}
        async with Consumer(running.server, "g", **settings) as consumer:
            await consumer.assign("t")
            assert await take(consumer, 4) == numbers(0, 4)
            await consumer.assign(["t", "u"])
            assert (consumer.position("t", 0), consumer.position("u", 0)) == (4, 0)
            await consumer.subscribe("t")
            assert await take(consumer, 3) == numbers(4, 7)
            await consumer.assign("t")
            assert consumer.position("t", 0) == 7
            await take(consumer, 1)
            await consumer.unsubscribe()
            assert await consumer.committed() == {("t", 0): 8}


async def test_a_member_leaves_while_nobody_looks_after_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited as long as for a reply, was told that there is none, and was a member as before."""

    def nobody(*_: Any, **named: Any) -> None:
        raise CoordinatorUnavailable("nobody looks after it now")

    async with native_broker(engine=ALONE) as running:
        await fill(running, "t", *numbers(0, 10))
        async with Consumer(running.server, "g", auto_offset_reset="earliest", topics="t", link=QUICK) as consumer:
            assert await take(consumer, 1) == numbers(0, 1)
            with monkeypatch.context() as patch, trio.fail_after(2):
                for asked in ("_require_here", "fetch"):
                    patch.setattr(running.broker.groups, asked, nobody)
                await consumer.unsubscribe()
            assert consumer.assignment == []
