"""Sends that fail at a broker that refuses them: a line each, and a sink; nothing for those that are stored."""

from __future__ import annotations

import gc
import logging
from contextlib import suppress
from typing import Any

import pytest
import trio

from core_log.memory_files import MemoryFiles
from millrace import (
    BatchTooLarge,
    BlockingProducer,
    ConnectionLost,
    DeliveryTimedOut,
    LinkConfig,
    MillraceError,
    Producer,
    ProducerRecord,
    TransactionalProducer,
)
from protocols.native.clients.failed_sends import _LINES_MAX
from tests.protocols.native.broker import Restartable, native_broker

TIMEOUT_S = 20
LOGGER = "protocols.native.clients.producer"
SMALL = {"max.message.bytes": "1000"}
ID = [("message-id", b"id-1")]


class Sink:
    def __init__(self) -> None:
        self.records: list[ProducerRecord] = []
        self.errors: list[type[MillraceError]] = []

    def __call__(self, record: ProducerRecord, error: MillraceError) -> None:
        self.records.append(record)
        self.errors.append(type(error))


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == LOGGER]


@pytest.mark.parametrize("compression", [None, "zstd"])
async def test_a_refused_record_is_one_line_and_given_to_the_sink(
    compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    sink, value = Sink(), bytes(range(256)) * 8
    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2, config={"max.message.bytes": "200"})
        async with Producer(running.server, compression=compression, failed_sink=sink) as producer:
            for _ in range(3):
                assert (await (await producer.send("t", b"fine", b"k", ID, partition=1))).partition == 1
            assert not lines(caplog)
            refused = await producer.send("t", value, b"k\n1", [*ID, ("h", None)], partition=1, timestamp_ms=5)
            with pytest.raises(BatchTooLarge):
                await refused
            await (await producer.send("t", b"fine", partition=1))
    (line,) = lines(caplog)
    told: Any = line
    assert line.levelno == logging.ERROR
    assert (told.topic, told.partition, told.key, told.message_id) == ("t", 1, "k\n1", "id-1")
    assert (told.value_bytes, told.error) == (2048, "BatchTooLarge")
    said = line.getMessage()
    assert said.startswith(r"send failed topic='t' partition=1 key='k\n1' message_id='id-1' value_bytes=2048 error=")
    (record,) = sink.records
    assert record == ProducerRecord("t", value, b"k\n1", [*ID, ("h", None)], 1, 5)
    assert sink.errors == [BatchTooLarge]


async def test_nothing_fails_silently_while_no_broker_is_there(caplog: pytest.LogCaptureFixture) -> None:
    link = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)
    sink = Sink()
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        with trio.fail_after(TIMEOUT_S):
            async with Producer(running.server, delivery_timeout_ms=1000, link=link, failed_sink=sink) as producer:
                await (await producer.send("t", b"stored"))
                await broker.stop()
                count = _LINES_MAX + 20
                sent = [await producer.send("t", b"%d" % number, b"k") for number in range(count)]
                with pytest.raises(DeliveryTimedOut):
                    await sent[-1]
    assert [record.value for record in sink.records] == [b"%d" % number for number in range(count)]
    assert set(sink.errors) == {DeliveryTimedOut}
    assert len(lines(caplog)) == _LINES_MAX + 1
    assert "20 more records of the batch, error=DeliveryTimedOut" in lines(caplog)[-1].getMessage()


async def test_a_sink_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def sink(record: ProducerRecord, error: MillraceError) -> None:
        raise ValueError("full")

    async with native_broker() as running:
        await running.broker.create_topic("t", config=SMALL)
        async with Producer(running.server, failed_sink=sink) as producer:
            with pytest.raises(BatchTooLarge):
                await (await producer.send("t", b"x" * 2000))
            assert (await (await producer.send("t", b"fine"))).offset == 0
    assert [one.getMessage() for one in lines(caplog)][1:] == ["the sink for failed sends failed"]


async def test_what_is_given_up_with_its_producer_is_told_of_and_what_is_taken_back_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink()
    async with native_broker() as running:
        with suppress(ZeroDivisionError):
            async with Producer(running.server, linger_ms=60_000, failed_sink=sink) as producer:
                await producer.send("t", b"never sent")
                raise ZeroDivisionError
        assert [record.value for record in sink.records] == [b"never sent"]
        assert sink.errors == [ConnectionLost]
        async with TransactionalProducer(running.server, "one", linger_ms=60_000, failed_sink=sink) as transactional:
            await transactional.begin()
            await transactional.send("t", b"taken back")
            await transactional.abort()
    assert len(sink.records) == len(lines(caplog)) == 1


async def test_without_an_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()

    def work(server: str) -> None:
        with BlockingProducer(server, failed_sink=sink) as producer:
            producer.send("t", b"fine", partition=1)
            producer.send("t", b"x" * 2000, b"k", ID, partition=0)
            producer.send("t", b"behind", partition=0)
            with pytest.raises(BatchTooLarge):
                producer.flush()
            producer.send("t", b"fine")

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=2, config=SMALL)
        await trio.to_thread.run_sync(work, running.server)
    assert [(record.value, record.partition) for record in sink.records] == [(b"x" * 2000, 0), (b"behind", 0)]
    assert sink.errors == [BatchTooLarge, BatchTooLarge]
    assert [one.__dict__["message_id"] for one in lines(caplog)] == ["id-1", None]


async def test_what_a_block_that_ends_by_an_error_takes_along_is_told_of() -> None:
    sink = Sink()

    def work(server: str) -> None:
        with suppress(KeyError), BlockingProducer(server, failed_sink=sink) as producer:
            producer.send("t", b"stored")
            producer.flush()
            producer.send("t", b"taken", b"k", ID)
            raise KeyError

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await trio.to_thread.run_sync(work, running.server)
    (record,) = sink.records
    assert (record.value, record.key, record.headers, sink.errors) == (b"taken", b"k", ID, [ConnectionLost])


async def test_what_a_producer_that_is_let_go_of_takes_along_is_told_of() -> None:
    sink = Sink()

    def work(server: str) -> None:
        producer = BlockingProducer(server, failed_sink=sink)
        producer.send("t", b"stored")
        producer.flush()
        producer.send("t", b"taken")
        del producer
        gc.collect()

    async with native_broker() as running:
        await running.broker.create_topic("t")
        await trio.to_thread.run_sync(work, running.server)
    assert [(record.value, error) for record, error in zip(sink.records, sink.errors)] == [(b"taken", ConnectionLost)]
