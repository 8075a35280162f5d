"""Transactional producers over the native protocol: all takes effect or nothing does, whatever breaks."""

from __future__ import annotations

import random
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from core_log.memory_files import MemoryFiles
from millrace import (
    BatchTooLarge,
    BlockingTransactionalProducer,
    Client,
    Consumer,
    LinkConfig,
    MillraceError,
    NotAMember,
    Producer,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    TransactionalProducer,
)
from routing.config import BrokerConfig
from routing.topics.offset_store import Committed
from tests.gateway.relay import relay
from tests.protocols.native.broker import Restartable, Running, native_broker

TIMEOUT_S = 30
QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)


async def read(running: Running, topic: str = "t") -> list[bytes | None]:
    """What there is for readers, up to the end that they are told of."""
    async with Consumer(running.server, auto_offset_reset="earliest", link=QUICK) as consumer:
        async with Client(running.server) as client:
            counts = await client.list_topics()
            keys = [(topic, index) for index in range(counts.get(topic, 0))]
            ends = dict(zip(keys, await client.list_offsets(keys, "latest")))
        if not keys:
            return []
        await consumer.assign(topic)
        found: list[bytes | None] = []
        while any(consumer.position(*key) < (end or 0) for key, end in ends.items()):
            found += [record.value for record in await consumer.poll(20)]
        return found


def numbers(*ranges: tuple[int, int]) -> list[bytes]:
    return [b"%d" % number for start, stop in ranges for number in range(start, stop)]


async def test_committed_is_seen_and_aborted_is_not() -> None:
    async with native_broker() as running, TransactionalProducer(running.server, "x", batch_bytes=200) as producer:
        with trio.fail_after(TIMEOUT_S):
            async with producer.transaction():
                sent = [await producer.send("t", b"%d" % number) for number in range(50)]
                assert await read(running, "t") == []
            assert (await sent[0]).offset == 0
            assert await read(running) == numbers((0, 50))
            await producer.begin()
            for number in range(50, 100):
                await producer.send("t", b"%d" % number)
            await producer.flush()
            await producer.abort()
            await producer.begin()
            late = await producer.send("t", b"never sent", partition=0)
            await producer.abort()
            with pytest.raises(TransactionAborted):
                await late
            async with producer.transaction():
                for number in range(100, 150):
                    await producer.send("t", b"%d" % number)
            async with producer.transaction():
                pass
            assert await read(running) == numbers((0, 50), (100, 150))
            with pytest.raises(ValueError, match="no transaction"):
                await producer.send("t", b"outside")
            await producer.begin()
            with pytest.raises(ValueError, match="under way"):
                await producer.begin()
            await producer.send("t", b"left")
        assert await read(running) == numbers((0, 50), (100, 150))


async def test_several_partitions_and_offsets_together() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("in", partitions=2)
        await running.broker.create_topic("out", partitions=3)
        async with Producer(running.server) as producer:
            for number in range(20):
                await producer.send("in", b"%d" % number, partition=number % 2)
        async with (
            Consumer(running.server, "g", topics="in", auto_offset_reset="earliest", link=QUICK) as consumer,
            TransactionalProducer(running.server, "mover", link=QUICK) as producer,
        ):
            left = 20
            step = 0
            while left:
                records = await consumer.poll(3000, 3)
                offsets = {("in", record.partition): record.offset + 1 for record in records}
                await producer.begin()
                for record in records:
                    await producer.send("out", record.value, partition=int(record.value or b"") % 3)
                await producer.send_offsets(offsets, consumer.group_metadata())
                step += 1
                if step % 3 == 0:
                    await producer.abort()
                    for topic, partition in consumer.assignment:
                        done = await consumer.committed([(topic, partition)])
                        await consumer.seek(topic, partition, done.get((topic, partition), 0))
                else:
                    await producer.commit()
                    left -= len(records)
            assert await consumer.committed() == {("in", 0): 10, ("in", 1): 10}
            stale = consumer.group_metadata()
        assert sorted(map(int, filter(None, await read(running, "out")))) == list(range(20))
        async with TransactionalProducer(running.server, "mover") as producer:
            with pytest.raises(NotAMember):
                async with producer.transaction():
                    await producer.send_offsets({("in", 0): 1}, stale)
            async with producer.transaction():
                await producer.send_offsets({("in", 0): 4}, "g")
        assert (await running.broker.offsets.fetch("g"))[("in", 0)] == Committed(4)


async def test_what_is_sent_while_a_transaction_ends_is_in_none() -> None:
    async with native_broker() as running, TransactionalProducer(running.server, "x") as producer:

        async def send() -> None:
            looks.set()
            with pytest.raises(ValueError, match=r"no transaction|being ended"):
                await producer.send("t", b"late")

        looks = trio.Event()
        await producer.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await looks.wait()
            await producer.abort()
        await producer.begin()
        await producer.send("t", b"kept")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.commit)
            while not producer._ending:
                await trio.lowlevel.checkpoint()
            await send()
        assert await read(running) == [b"kept"]


async def test_the_next_process_fences_the_one_before() -> None:
    async with native_broker() as running, TransactionalProducer(running.server, "x") as first:
        await first.begin()
        await first.send("t", b"lost")
        await first.flush()
        async with TransactionalProducer(running.server, "x") as second:
            async with second.transaction():
                await second.send("t", b"kept")
            with pytest.raises(ProducerFenced):
                await first.commit()
            with pytest.raises(ProducerFenced):
                await first.abort()
        assert await read(running) == [b"kept"]


async def test_after_a_record_that_is_not_stored_only_an_abort_is_left() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("t", config={"max.message.bytes": "1000"})
        async with TransactionalProducer(running.server, "x", batch_bytes=5000) as producer:
            await producer.begin()
            await producer.send("t", b"1")
            await producer.flush()
            bad = await producer.send("t", b"x" * 2000)
            with pytest.raises(BatchTooLarge):
                await bad
            with pytest.raises(BatchTooLarge):
                await producer.send("t", b"2")
            with pytest.raises(BatchTooLarge):
                await producer.commit()
            await producer.abort()
            for number in range(3, 6):
                async with producer.transaction():
                    await producer.send("t", b"%d" % number)
        assert await read(running) == numbers((3, 6))


async def test_a_transaction_that_takes_too_long_is_given_up() -> None:
    async with native_broker() as running:
        async with TransactionalProducer(running.server, "x", transaction_timeout_ms=100) as producer:
            await producer.begin()
            await producer.send("t", b"late")
            await producer.flush()
            await trio.sleep(2)  # it is looked at once a second
            with pytest.raises(MillraceError):
                await producer.commit()
            assert producer.in_transaction
        assert await read(running) == []


@pytest.mark.parametrize("seed", range(3))
async def test_exactly_once_through_cuts_and_restarts(seed: int) -> None:
    dice = random.Random(seed)
    engine = BrokerConfig(stripes=1, group_initial_delay_ms=0)
    assert engine
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        await running.broker.create_topic("in", partitions=2)
        await running.broker.create_topic("out", partitions=2)
        async with Producer(running.server) as filling:
            for number in range(300):
                await filling.send("in", b"%d" % number, partition=number % 2)
        async with relay(running.server) as between:

            async def disturb() -> None:
                nonlocal running
                for _ in range(5):
                    await trio.sleep(dice.uniform(0.1, 0.3))
                    if dice.random() < 0.4:
                        await broker.stop()
                        running = await broker.start()
                        between.cut()
                    else:
                        between.hold_back()
                        await trio.sleep(dice.uniform(0, 0.02))
                        between.cut()
                        between.go_on()
                undisturbed.set()

            undisturbed = trio.Event()
            with trio.fail_after(TIMEOUT_S):
                async with (
                    Consumer(between.address, "g", auto_offset_reset="earliest", link=QUICK) as consumer,
                    TransactionalProducer(between.address, "mover", link=QUICK, retry_backoff_ms=5) as producer,
                ):
                    await consumer.assign("in")
                    nursery.start_soon(disturb)
                    while sum(consumer.position("in", index) for index in range(2)) < 300:
                        before = {key: consumer.position(*key) for key in consumer.assignment}
                        records = await consumer.poll(1000, dice.randint(1, 12))
                        try:
                            async with producer.transaction():
                                for record in records:
                                    await producer.send("out", record.value, partition=record.partition)
                                where = {key: consumer.position(*key) for key in consumer.assignment}
                                await producer.send_offsets(where, "g")
                        except MillraceError:
                            for key, offset in before.items():
                                await consumer.seek(*key, offset)
                await undisturbed.wait()
        found = sorted(map(int, filter(None, await read(running, "out"))))
        assert found == list(range(300))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("late", ["commit", "abort"])
async def test_what_arrives_late_is_no_part_of_the_next_transaction(late: str, blocking: bool) -> None:
    async with native_broker() as running, relay(running.server) as between:
        await running.broker.create_topic("t", partitions=2)

        async def held_up(fails: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
            between.hold()
            with pytest.raises(MillraceError):
                await fails()
            held, said = between.go_on_anew(), len(between.there[0])

            async def arrive() -> None:
                held.set()
                while len(between.there[0]) == said:
                    await trio.sleep(0.01)

            return arrive

        async def work(producer: Any, done: Callable[..., Awaitable[Any]]) -> None:
            async def send(value: bytes, partition: int) -> None:
                await done(producer.send, "t", value, partition=partition)
                await done(producer.flush)

            await done(producer.begin)
            await send(b"lost", 0)
            await done(producer.send_offsets, {("t", 0): 1}, "g")
            arrive = await held_up(partial(done, getattr(producer, late)))
            await done(producer.abort)
            assert producer._epoch == 1
            await done(producer.begin)
            await send(b"1", 0)
            await done(producer.send_offsets, {("t", 0): 3}, "g")
            await arrive()
            assert await read(running) == []
            await send(b"2", 1)
            await done(producer.commit)

        with trio.fail_after(TIMEOUT_S):
            if blocking:
                with BlockingTransactionalProducer(between.address, "x", timeout_s=1) as producer:
                    await work(
                        producer, lambda ask, *args, **named: trio.to_thread.run_sync(partial(ask, *args, **named))
                    )
            else:
                link = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20, request_timeout_ms=1000)
                async with TransactionalProducer(between.address, "x", link=link) as other:
                    await work(other, lambda ask, *args, **named: ask(*args, **named))
        assert sorted(filter(None, await read(running))) == [b"1", b"2"]
        assert (await running.broker.offsets.fetch("g"))[("t", 0)] == Committed(3)


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_abort_whose_last_answer_was_lost_may_be_asked_for_again(blocking: bool) -> None:
    async def work(producer: Any, done: Callable[..., Awaitable[Any]], running: Running) -> None:
        coordinator = running.broker.coordinator
        begin = coordinator.begin

        async def begin_and_answer_nobody(*asked: Any) -> tuple[int, int]:
            coordinator.begin = begin  # type: ignore[method-assign]
            await begin(*asked)
            await trio.sleep_forever()
            raise AssertionError

        await done(producer.begin)
        await done(producer.send, "t", b"lost")
        await done(producer.flush)
        producer._unsure = True  # as after an answer that did not come
        coordinator.begin = begin_and_answer_nobody  # type: ignore[method-assign]
        with pytest.raises(RequestTimedOut):
            await done(producer.abort)
        await done(producer.abort)
        await done(producer.begin)
        await done(producer.send, "t", b"1")
        await done(producer.commit)
        assert await read(running) == [b"1"]

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=1)
        with trio.fail_after(TIMEOUT_S):
            if blocking:
                with BlockingTransactionalProducer(running.server, "x", timeout_s=0.5) as producer:
                    await work(
                        producer,
                        lambda ask, *args, **named: trio.to_thread.run_sync(partial(ask, *args, **named)),
                        running,
                    )
            else:
                link = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20, request_timeout_ms=500)
                async with TransactionalProducer(running.server, "x", link=link) as other:
                    await work(other, lambda ask, *args, **named: ask(*args, **named), running)


async def test_a_commit_that_was_sent_twice_ends_one_transaction() -> None:
    async with (
        native_broker() as running,
        relay(running.server) as between,
        TransactionalProducer(between.address, "x", link=QUICK) as producer,
    ):
        await running.broker.create_topic("t", partitions=1)
        with trio.fail_after(TIMEOUT_S):
            await producer.begin()
            await producer.send("t", b"1")
            await producer.flush()
            between.hold()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.commit)
                while not between.is_holding:
                    await trio.sleep(0.01)
                held, said = between.go_on_anew(), len(between.there[0])
                stream = producer._link._stream
                assert stream is not None
                await trio.aclose_forcefully(stream)  # what was said is still on its way
            await producer.begin()
            await producer.send("t", b"2")
            await producer.flush()
            held.set()
            while len(between.there[0]) == said:
                await trio.sleep(0.01)
            assert await read(running) == [b"1"]
            await producer.abort()
            assert await read(running) == [b"1"]


async def test_a_commit_that_was_sent_twice_ends_one_transaction_without_an_event_loop_as_well() -> None:
    async with native_broker() as running, relay(running.server) as between:
        await running.broker.create_topic("t", partitions=1)
        producer = BlockingTransactionalProducer(between.address, "x")
        asker = producer.client._asker
        at = asker._at

        def hold_what_comes_next(*node: Any) -> Any:
            trio.from_thread.run_sync(between.hold)
            asker._at = at  # type: ignore[method-assign]
            return at(*node)

        def send(body: bytes) -> None:
            producer.begin()
            producer.send("t", body)
            producer.flush()

        with trio.fail_after(TIMEOUT_S), producer:
            await trio.to_thread.run_sync(send, b"1")
            asker._at = hold_what_comes_next  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, producer.commit)
                while not between.is_holding:
                    await trio.sleep(0.01)
                held, said = between.go_on_anew(), len(between.there[0])
                lost = asker._link._socket
                assert lost is not None
                lost.shutdown(socket.SHUT_RD)  # what was said is still on its way
            await trio.to_thread.run_sync(send, b"2")
            held.set()
            while len(between.there[0]) == said:
                await trio.sleep(0.01)
            assert await read(running) == [b"1"]
            await trio.to_thread.run_sync(producer.abort)
            assert await read(running) == [b"1"]


async def test_without_an_event_loop() -> None:
    def work(server: str) -> None:
        with BlockingTransactionalProducer(server, "x", batch_bytes=300) as producer:
            with producer.transaction():
                for number in range(50):
                    producer.send("t", b"%d" % number, partition=number % 2)
                producer.send_offsets({("in", 0): 3}, "g")
            producer.begin()
            for number in range(50, 100):
                producer.send("t", b"%d" % number, partition=0)
            producer.flush()
            producer.abort()
            with pytest.raises(KeyError), producer.transaction():  # noqa: PT012
                producer.send("t", b"never")
                producer.send_offsets({("in", 0): 7}, "g")
                raise KeyError
            with pytest.raises(BatchTooLarge), producer.transaction():
                producer.send("t", b"x" * 2000)
            assert not producer.in_transaction
            with producer.transaction():
                producer.send("t", b"100", partition=1)
            with pytest.raises(ValueError, match="no transaction"):
                producer.send("t", b"outside")
            with BlockingTransactionalProducer(server, "x") as second:
                producer.begin()
                producer.send("t", b"fenced")
                second.begin()
                with pytest.raises(ProducerFenced):
                    producer.commit()
                second.abort()

    async with native_broker() as running:
        await running.broker.create_topic("in", partitions=1)
        async with Producer(running.server) as filling:
            for number in range(9):
                await filling.send("in", b"%d" % number)
        await running.broker.create_topic("t", partitions=2, config={"max.message.bytes": "1000"})
        with trio.fail_after(TIMEOUT_S):
            await trio.to_thread.run_sync(work, running.server)
        assert sorted(map(int, filter(None, await read(running)))) == [*range(50), 100]
        assert (await running.broker.offsets.fetch("g"))[("in", 0)] == Committed(3)
