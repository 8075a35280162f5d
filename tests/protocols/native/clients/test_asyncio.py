"""The clients in asyncio programs: the same classes, on asyncio's loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from millrace import (
    BatchTooLarge,
    Client,
    ConnectionLost,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    MillraceError,
    PreconditionFailed,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RebalanceListener,
    RecordMetadata,
    TransactionalProducer,
    UnknownTopic,
    process_in_parallel,
)
from tests.protocols.native.broker import native_broker
from tests.protocols.native.clients.test_blocking import in_thread

Program = Callable[[str], Awaitable[None]]


async def run(program: Program, **topics: int) -> None:
    """An asyncio program, in a thread of its own, beside a broker that has these topics."""

    def thread(server: str) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await program(server)

        asyncio.run(main())
        trio.run(trio.sleep, 0)  # nothing of trio's is left in the thread

    async with native_broker() as running:
        for name, partitions in topics.items():
            await running.broker.create_topic(name, partitions=partitions)
        await in_thread(thread, running.server)


async def values_of(consumer: Consumer, count: int) -> list[bytes | None]:
    """The next records' values."""
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in await consumer.fetch(count - len(found))]
    return found


async def test_records_go_there_and_back() -> None:
    async def program(server: str) -> None:
        async with Producer(server) as producer, Consumer(server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            sent = [await producer.send("t", b"%d" % number, key=b"k", timestamp_ms=number) for number in range(2000)]
            assert [await delivery for delivery in sent] == [RecordMetadata(0, at, at) for at in range(2000)]
            assert all(delivery.done for delivery in sent)
            await producer.flush()
            found = []
            async for record in consumer:
                found.append(record)
                if len(found) == 2000:
                    break
            assert [(record.key, record.value, record.offset) for record in found] == [
                (b"k", b"%d" % number, number) for number in range(2000)
            ]
            assert await consumer.poll(10) == []
            await consumer.seek("t", 0, 1990)
            assert len(await consumer.fetch()) == 10
            await consumer.seek_to_time(1995)
            assert len(await consumer.fetch()) == 5

    await run(program, t=1)


async def test_what_does_not_wait_runs_without_either_loop() -> None:
    async def program(server: str) -> None:
        async with Producer(server) as producer, Consumer(server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            for number in range(10):
                await producer.send("t", b"%d" % number)
            await producer.flush()
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            assert await anext(consumer)
            counting = asyncio.create_task(count_turns())
            for _ in range(9):
                await anext(consumer)
                await producer.send("t", b"more")
            assert turns == 0
            await producer.flush()
            assert turns > 0
            counting.cancel()

    await run(program, t=1)


async def test_the_four_hooks() -> None:
    told: list[object] = []

    class Outgoing(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            record.value = f"{record.value}!"
            return record

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
            told.append(metadata and (metadata.partition, metadata.offset))

    class Incoming(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            told.append(len(records))
            return records

    async def program(server: str) -> None:
        writer = Producer(
            server,
            partitioner=lambda *_: 1,
            key_serializer=str.encode,
            value_serializer=str.encode,
            interceptors=[Outgoing()],
        )
        reader = Consumer(
            server, auto_offset_reset="earliest", value_deserializer=bytes.decode, interceptors=[Incoming()]
        )
        async with writer as producer, reader as consumer:
            await consumer.assign("t")
            assert (await (await producer.send("t", "a", key="k"))).partition == 1
            record = await anext(consumer)
            assert (record.key, record.value, record.partition) == (b"k", "a!", 1)
        assert told == [(1, 0), 1]

    await run(program, t=2)


async def test_errors_come_out_as_they_are() -> None:
    async def program(server: str) -> None:
        with pytest.raises(ConnectionLost):
            async with Client("127.0.0.1:1"):
                pass
        with pytest.raises(UnknownTopic):
            async with Consumer(server, topics="nowhere"):
                pass
        async with Client(server) as client:
            await client.create_topic("small", config={"max.message.bytes": "200"})
            with pytest.raises(PreconditionFailed):
                await client.create_topic("small")
        with pytest.raises(BatchTooLarge):
            async with Producer(server) as producer:
                delivery = await producer.send("small", bytes(1000))
        with pytest.raises(BatchTooLarge):
            await delivery
        with suppress(ZeroDivisionError):
            async with Producer(server, linger_ms=60_000) as producer:
                delivery = await producer.send("small", b"dropped")
                raise ZeroDivisionError
        with pytest.raises(ConnectionLost):
            await delivery
        with pytest.raises(RuntimeError, match="closed"):
            await producer.flush()

    await run(program)


async def test_who_is_cancelled_loses_nothing() -> None:
    async def program(server: str) -> None:
        async with Producer(server) as producer, Consumer(server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            found: list[ConsumerRecord] = []

            async def read() -> None:
                while True:
                    found.extend(await consumer.fetch(1))

            for number in range(60):
                await producer.send("t", b"%d" % number)
                await producer.flush()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.0005 * (number % 10)):
                        await read()
            while len(found) < 60:
                found += await consumer.fetch()
            assert [record.offset for record in found] == list(range(60))

    await run(program, t=1)


async def test_a_full_buffer_makes_senders_wait_and_others_run() -> None:
    async def program(server: str) -> None:
        async with Producer(server, buffer_bytes_max=20_000, batch_bytes=5_000) as producer:

            async def send(name: int) -> list[RecordMetadata]:
                return [await delivery for delivery in [await producer.send("t", bytes(900)) for _ in range(100)]]

            found = await asyncio.gather(*[send(name) for name in range(5)])
            assert sorted(place.offset for places in found for place in places) == list(range(500))

    await run(program, t=1)


async def test_a_group_divides_and_its_listeners_are_awaited_in_asyncio() -> None:
    class Listener(RebalanceListener):
        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        async def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
            await asyncio.sleep(0.001)
            self.told.append(("assigned", len(partitions)))

        async def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
            await asyncio.sleep(0.001)
            await consumers[self].commit()
            self.told.append(("revoked", len(partitions)))

    consumers: dict[Listener, Consumer] = {}

    async def program(server: str) -> None:
        first, second = Listener(), Listener()
        found: list[bytes | None] = []

        async def read(listener: Listener, stop: asyncio.Event) -> None:
            async with Consumer(
                server, "g", topics="t", listener=listener, auto_offset_reset="earliest", heartbeat_interval_ms=50
            ) as consumer:
                consumers[listener] = consumer
                while not stop.is_set():
                    found.extend(record.value for record in await consumer.poll(20))

        async def until(true: Callable[[], bool]) -> None:
            while not true():
                await asyncio.sleep(0.01)

        first_stop, second_stop = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks, Producer(server) as producer:
            tasks.create_task(read(first, first_stop))
            await until(lambda: first.told == [("assigned", 4)])
            for number in range(100):
                await producer.send("t", b"%d" % number)
            await until(lambda: len(found) == 100)
            tasks.create_task(read(second, second_stop))
            await until(lambda: second.told == [("assigned", 2)])
            assert ("revoked", 4) in first.told
            first_stop.set()
            await until(lambda: ("assigned", 4) in second.told)
            for number in range(100, 200):
                await producer.send("t", b"%d" % number)
            await until(lambda: len(found) == 200)
            second_stop.set()
        assert sorted(map(int, filter(None, found))) == list(range(200))

    await run(program, t=4)


async def test_transactions_that_are_committed_failed_and_cancelled() -> None:
    async def program(server: str) -> None:
        async with (
            TransactionalProducer(server, "id") as producer,
            Consumer(server, "g", auto_offset_reset="earliest") as consumer,
        ):
            async with producer.transaction():
                await producer.send("t", b"yes")
                await producer.send_offsets({("t", 0): 5}, "another")
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("t", b"no")
                    raise ZeroDivisionError
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05), producer.transaction():
                    await (await producer.send("t", b"neither"))
                    await asyncio.sleep(60)
            assert not producer.in_transaction
            async with producer.transaction():
                await producer.send("t", b"again")
            await consumer.assign("t")
            assert await values_of(consumer, 2) == [b"yes", b"again"]
            await consumer.commit()
            assert await consumer.committed() == {("t", 0): consumer.position("t", 0)}
        async with Client(server) as client:
            assert sorted(group.group for group in await client.list_groups()) == ["another", "g"]

    await run(program, t=1)


async def test_work_in_parallel() -> None:
    async def program(server: str) -> None:
        at_work = most = 0
        done: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.001)
            at_work -= 1
            done.append(record.offset)

        async with Producer(server) as producer:
            for number in range(50):
                await producer.send("t", b"%d" % number)
        async with Consumer(server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            working = asyncio.create_task(process_in_parallel(consumer, handle, workers=5))
            while len(done) < 50:
                await asyncio.sleep(0.005)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert sorted(done) == list(range(50))
            assert most == 5
            assert await consumer.committed() == {("t", 0): 50}

            async def fail(record: ConsumerRecord) -> None:
                raise ValueError(record.offset)

            await consumer.seek("t", 0, 7)
            with pytest.raises(ValueError, match="7"):
                await process_in_parallel(consumer, fail, workers=1)
            assert consumer.position("t", 0) == 7

    await run(program, t=1)


async def test_a_call_under_way_when_its_client_is_closed_ends_with_an_error() -> None:
    async def program(server: str) -> None:
        async with Consumer(server) as consumer:
            await consumer.assign("t")
            reading = asyncio.create_task(consumer.fetch())
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="closed"):
            await reading
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.commit({("t", 0): 1})

    await run(program, t=1)


async def test_cancelling_the_end_of_a_block_gives_up_what_was_not_sent() -> None:
    async def program(server: str) -> None:
        producer = Producer(server, linger_ms=60_000)
        await producer.__aenter__()
        delivery = await producer.send("t", b"x")
        producer._leaders.link_to = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.__aexit__(None, None, None)
        with pytest.raises(ConnectionLost):
            await delivery

    await run(program, t=1)


async def test_clients_come_and_go_and_leave_nothing() -> None:
    async def program(server: str) -> None:
        async def one(name: int) -> None:
            for _ in range(5):
                async with Producer(server) as producer:
                    await (await producer.send("t", b"%d" % name))
                await asyncio.sleep(0)

        threads = threading.active_count()
        await asyncio.gather(*[one(name) for name in range(5)])
        async with Client(server) as client:
            ((end,),) = [await client.list_offsets([("t", 0)], "latest")]
            assert end == 25
        assert threading.active_count() <= threads + 3
        gc.collect()

    await run(program, t=1)


async def test_a_transaction_that_is_cancelled_at_its_begin_is_none() -> None:
    async def program(server: str) -> None:
        async with TransactionalProducer(server, "id") as producer:

            async def work() -> None:
                async with producer.transaction():
                    await producer.send("t", b"x")

            for turns in range(12):
                working = asyncio.create_task(work())
                for _ in range(turns):
                    await asyncio.sleep(0)
                working.cancel()
                with suppress(asyncio.CancelledError):
                    await working
                assert not producer.in_transaction

    await run(program, t=1)


async def test_what_came_and_is_put_back_before_the_reader_goes_on_comes_again() -> None:
    async def program(server: str) -> None:
        async with Producer(server) as producer, Consumer(server, auto_offset_reset="earliest") as consumer:
            await producer.send("t", b"x")
            await producer.flush()
            await consumer.assign("t")

            async def one() -> list[ConsumerRecord]:
                return [await anext(consumer)]

            for read in (one, consumer.fetch):
                reading = asyncio.create_task(read())
                while not consumer._records:
                    await asyncio.sleep(0)
                consumer.pause([("t", 0)])  # as a step of its group would
                consumer.resume([("t", 0)])
                assert [record.value for record in await reading] == [b"x"]
                await consumer.seek("t", 0, 0)

    await run(program, t=1)


async def test_who_still_waits_gets_records_after_another_has_given_up() -> None:
    async def program(server: str) -> None:
        async with Producer(server) as producer, Consumer(server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            waiting = asyncio.create_task(consumer.fetch())
            await asyncio.sleep(0.01)
            assert await consumer.poll(10) == []
            await producer.send("t", b"x")
            await producer.flush()
            assert [record.value for record in await waiting] == [b"x"]

    await run(program, t=1)


async def test_what_is_sent_after_the_end_is_refused() -> None:
    async def program(server: str) -> None:
        async with Client(server):  # trio goes on
            async with Producer(server) as producer:
                await producer.send("t", b"x")
            with pytest.raises(RuntimeError, match="closed"):
                await producer.send("t", b"y")

    await run(program, t=1)


async def test_a_client_is_of_the_loop_on_which_it_was_opened() -> None:
    def thread(server: str) -> None:
        with asyncio.Runner() as own, asyncio.Runner() as another:
            client = own.run(Client(server).__aenter__())
            for call in (client.list_topics, lambda: client.__aexit__(None, None, None)):
                with pytest.raises(RuntimeError, match="belongs to another asyncio loop"):
                    another.run(call())  # type: ignore[arg-type]
            assert own.run(client.list_topics()) == {}
            own.run(client.__aexit__(None, None, None))

    async with native_broker() as running:
        await in_thread(thread, running.server)


async def test_a_handler_that_was_cancelled_is_an_error_as_any_other() -> None:
    async def program(server: str) -> None:
        async def handle(record: ConsumerRecord) -> None:
            raise asyncio.CancelledError

        async with Producer(server) as producer:
            await producer.send("t", b"x")
        async with Consumer(server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            with pytest.raises(asyncio.CancelledError):
                await process_in_parallel(consumer, handle)
            assert [record.value for record in await consumer.fetch()] == [b"x"]

    await run(program, t=1)
