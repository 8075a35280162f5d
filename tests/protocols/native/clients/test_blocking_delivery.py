"""What `send` of the blocking producers returns: where the record went, or why it did not."""

from __future__ import annotations

import pytest
import trio

from core_log.memory_files import MemoryFiles
from millrace import (
    BatchTooLarge,
    BlockingConsumer,
    BlockingDelivery,
    BlockingProducer,
    BlockingTransactionalProducer,
    ConnectionLost,
    MillraceError,
    ProducerInterceptor,
    RecordMetadata,
    TransactionAborted,
)
from tests.protocols.native.broker import Restartable, native_broker
from tests.protocols.native.clients.test_blocking import in_thread

SMALL = {"max.message.bytes": "200"}
TOO_LARGE = bytes(range(256)) * 2


async def test_a_delivery_says_where_its_record_lies() -> None:
    def work(server: str) -> None:
        with BlockingProducer(server, batch_bytes=400) as producer:
            sent = [
                (number, producer.send("t", b"%d" % number, partition=number % 2, timestamp_ms=1000 + number))
                for number in range(30)
            ]
            assert sent[0][1].done, "its batch was full"
            assert not sent[-1][1].done
            for number, delivery in sent:
                assert delivery.result() == RecordMetadata(number % 2, number // 2, 1000 + number)
            assert sent[-1][1].done, "asking sends"
            now = producer.send("t", b"now", partition=0)
            producer.flush()
            assert now.result().offset == 15
        assert now.result().offset == 15, "the producer is not needed any more"

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        await in_thread(work, running.server)


async def test_what_nobody_answers_for_has_no_offset() -> None:
    def work(server: str) -> None:
        with BlockingProducer(server, acks=0) as producer:
            assert producer.send("t", b"x", timestamp_ms=5).result() == RecordMetadata(0, -1, 5)

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


async def test_each_delivery_has_the_error_of_its_own_record() -> None:
    def work(server: str) -> None:
        with BlockingProducer(server) as producer:
            fine = producer.send("t", b"fine")
            refused = producer.send("small", TOO_LARGE)
            assert fine.result().offset == 0, "another topic's error is not its own"
            for _ in range(2):
                with pytest.raises(BatchTooLarge):
                    refused.result()
            later = producer.send("t", b"later")
            with pytest.raises(BatchTooLarge):
                producer.flush()  # whoever asked for `fine` was not told
            assert later.done
            assert later.result().offset == 1
            producer.flush()
            with pytest.raises(BatchTooLarge):
                producer.send("small", TOO_LARGE).result()
            producer.flush()  # this time somebody was

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await running.broker.create_topic("small", config=SMALL)
        await in_thread(work, running.server)


async def test_a_producer_that_is_closed_with_records_tells_who_asks_for_them() -> None:
    class Odd(Exception):
        pass

    def work(server: str) -> None:
        producer = BlockingProducer(server)
        dropped = producer.send("t", b"x")
        producer.__exit__(Odd, Odd(), None)
        with pytest.raises(ConnectionLost, match="the producer was closed"):
            dropped.result()

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


async def test_a_process_that_was_forked_does_not_send_its_parents_records() -> None:
    def work(server: str) -> None:
        with BlockingProducer(server) as producer:
            taken = producer.send("t", b"x")
            producer.forked()  # what the child does
            with pytest.raises(ConnectionLost, match="not this producer's"):
                taken.result()

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


async def test_who_sends_for_the_first_time_waits_for_the_broker_as_well() -> None:
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())

        def work(server: str) -> None:
            producer = BlockingProducer(server)
            delivery = producer.send("t", b"x")
            trio.from_thread.run(broker.stop)
            close = producer.client.close

            def close_and_find_it_again() -> None:
                producer.client.close = close  # type: ignore[method-assign]
                close()
                trio.from_thread.run(broker.start)

            producer.client.close = close_and_find_it_again  # type: ignore[method-assign]
            assert delivery.result().offset == 0
            close()

        await in_thread(work, (await broker.start()).server)
        await broker.stop()


async def test_in_a_transaction() -> None:
    def work(server: str) -> None:
        with BlockingTransactionalProducer(server, "id") as producer:
            producer.begin()
            aborted = producer.send("t", b"aborted")
            producer.abort()
            with pytest.raises(TransactionAborted):
                aborted.result()
            with producer.transaction():
                committed: BlockingDelivery = producer.send("t", b"committed")
            place = committed.result()
        with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            (record,) = consumer.fetch()
            assert (record.partition, record.offset) == (place.partition, place.offset)

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


async def test_with_hooks() -> None:
    told: list[RecordMetadata | None] = []

    class Counting(ProducerInterceptor):
        def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
            told.append(metadata)

    def work(server: str) -> None:
        with BlockingProducer(server, value_serializer=str.encode, interceptors=[Counting()]) as producer:
            delivery = producer.send("t", "1")  # type: ignore[arg-type]
            assert told == [delivery.result()]

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await in_thread(work, running.server)


async def test_interceptors_are_told_of_what_was_taken_when_its_transaction_is_aborted() -> None:
    """Who counts what is under way had it for ever; the other producer tells of it too."""
    told: list[MillraceError | None] = []

    class Noting(ProducerInterceptor):
        def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
            told.append(error)

    def work(server: str) -> None:
        with BlockingTransactionalProducer(server, "id", interceptors=[Noting()]) as producer:
            producer.begin()
            producer.send("t", b"sent")
            producer.flush()
            for number in range(3):
                producer.send("t", b"%d" % number, partition=number % 2)
            producer.abort()
            assert [type(error) for error in told] == [type(None)] + [TransactionAborted] * 3
            producer.begin()
            producer.send("t", b"left open")
        assert [type(error) for error in told[4:]] == [TransactionAborted]

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2)
        await in_thread(work, running.server)
