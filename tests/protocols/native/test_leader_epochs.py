"""Leader epochs in requests (KIP-320): who is behind is told so, and a reader learns that what it had read is gone."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from core_log.memory_files import MemoryFiles
from millrace import BlockingConsumer, ConnectionLost, Consumer, LinkConfig, Producer
from protocols.native import wire
from protocols.native.clients.truncation import LastBatch, cut_at
from protocols.native.errors import ErrorCode, LogTruncated
from tests.protocols.native.asking import fetch
from tests.protocols.native.broker import Restartable, batch_of, connected, native_broker

QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)
FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
LAST = LastBatch(epoch=3, base_offset=45, next_offset=50)


@pytest.mark.parametrize(
    ("epoch", "end_offset", "cut"),
    [
        (3, 50, None),  # all that was read is there
        (3, 70, None),
        (3, 45, 45),
        (3, 10, 10),
        (1, 20, 20),
        (1, 48, 45),  # the batch that was read is of an epoch that is not there
        (1, 60, 45),
        (-1, 50, None),  # what was before is deleted, by retention
        (-1, 60, None),
        (-1, 0, 0),  # or was never there
    ],
)
def test_where_a_log_was_cut(epoch: int, end_offset: int, cut: int | None) -> None:
    assert cut_at(LAST, epoch, end_offset) == cut


async def test_a_request_in_another_epoch_is_refused_and_does_nothing() -> None:
    files = MemoryFiles()
    async with native_broker(files) as running:
        await running.broker.create_topic("t")
        log = running.broker.topics["t"].partitions[0].log
        log.append(batch_of(b"a", b"b"))
        log.request_sync()
        await log.wait_committed(2)
        left = files.crash()
    async with native_broker(left) as running, connected(running) as peer:
        log = running.broker.topics["t"].partitions[0].log
        reply = await peer.ask(wire.Metadata(0, ["t"], False))
        assert isinstance(reply, wire.MetadataReply)
        now = reply.topics[0][2][0].leader_epoch
        assert now == log.leader_epoch == 1
        for turn, (epoch, code) in enumerate(((0, FENCED), (1, None), (2, UNKNOWN), (wire.NO_EPOCH, None))):
            entry = wire.ProduceEntry("t", 0, turn, memoryview(batch_of(b"c")), epoch)
            produced = await peer.ask(wire.Produce(0, -1, 5000, [entry]))
            assert isinstance(produced, wire.ProduceReply)
            fetched = await peer.ask(wire.Fetch(0, 0, 1, 1 << 20, [wire.FetchEntry("t", 0, 0, 1 << 20, epoch)]))
            assert isinstance(fetched, wire.FetchReply)
            listed = await peer.ask(wire.ListOffsets(0, [wire.ListOffsetsEntry("t", 0, wire.LATEST, epoch)]))
            assert isinstance(listed, wire.ListOffsetsReply)
            ends = await peer.ask(wire.OffsetsForEpochs(0, [("t", 0, epoch, 0)]))
            assert isinstance(ends, wire.OffsetsForEpochsReply)
            errors = [produced.entries[0][0], fetched.entries[0].error, listed.entries[0][0], ends.entries[0][0]]
            assert [error and error[0] for error in errors] == [code] * 4
            assert all(error is None or error[1] for error in errors), "retriable"
            assert (len(fetched.entries[0].records) > 0) == (code is None)
        assert log.log_end_offset == 4
        asked = [("t", 0, -1, epoch) for epoch in (0, 1, 7)] + [("t", 9, -1, 0)]
        ends = await peer.ask(wire.OffsetsForEpochs(0, asked))
        assert isinstance(ends, wire.OffsetsForEpochsReply)
        assert ends.entries[:3] == [(None, 0, 2), (None, 1, 4), (None, 1, 4)]
        assert ends.entries[3][0] == (ErrorCode.UNKNOWN_PARTITION, False, "topic 't' has no partition 9, but 1")


async def test_a_fetch_that_waits_is_told_of_another_epoch() -> None:
    async with native_broker() as running, connected(running) as peer:
        await running.broker.create_topic("t")
        log = running.broker.topics["t"].partitions[0].log
        request = fetch(("t", 0, 0), wait_ms=20_000)
        request.entries[0].leader_epoch = 0
        await peer.say(request)
        await trio.testing.wait_all_tasks_blocked(0.01)
        log.leader_epoch = 1  # as a leader of a cluster does that becomes one again
        log.append(batch_of(b"a"))
        with trio.fail_after(10):
            reply = await peer.hear()
        assert isinstance(reply, wire.FetchReply)
        assert reply.entries[0].error is not None
        assert reply.entries[0].error[0] == FENCED


async def read_until(consumer: Consumer, value: bytes) -> list[bytes | None]:
    read: list[bytes | None] = []
    while value not in read:
        read.append((await anext(consumer)).value)
    return read


async def lose_power(restartable: Restartable, files: MemoryFiles) -> None:
    left = files.crash()
    await restartable.stop()
    restartable.use(left)
    await restartable.start()


@pytest.mark.parametrize("reset", ["latest", "error"])
async def test_a_consumer_says_that_what_it_had_read_is_gone(reset: str, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with trio.open_nursery() as nursery:
        restartable = Restartable(nursery, files)
        running = await restartable.start()
        await running.broker.create_topic("t", config={"fsync": "never"})
        async with Consumer(running.server, "g", link=QUICK) as other:
            await other.assign("t")
            await other.commit()
        async with (
            Producer(running.server, link=QUICK, retry_backoff_ms=5) as producer,
            Consumer(running.server, "g", link=QUICK, auto_offset_reset=reset) as consumer,  # type: ignore[arg-type]
        ):
            with trio.fail_after(20):
                await consumer.assign([("t", 0)])
                for number in range(10):
                    await (await producer.send("t", b"old %d" % number))
                assert [(await anext(consumer)).value for _ in range(5)] == [b"old %d" % number for number in range(5)]
                await lose_power(restartable, files)
                for number in range(12):
                    await (await producer.send("t", b"new %d" % number))
                if reset == "error":
                    with pytest.raises(LogTruncated, match="cut at offset 0, and had been read up to") as caught:
                        await read_until(consumer, b"new 11")
                    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
                read = await read_until(consumer, b"new 11")  # maybe some that was fetched ahead before
        assert read[-12:] == [b"new %d" % number for number in range(12)]
        assert ("cut at offset 0" in caplog.text) == (reset == "latest")
        await restartable.stop()


async def test_a_reader_of_what_is_still_there_notices_nothing(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with trio.open_nursery() as nursery:
        restartable = Restartable(nursery, files)
        running = await restartable.start()
        await running.broker.create_topic("t")
        async with (
            Producer(running.server, link=QUICK, retry_backoff_ms=5) as producer,
            Consumer(running.server, link=QUICK) as consumer,
        ):
            with trio.fail_after(20):
                await consumer.assign("t")
                for number in range(4):
                    await (await producer.send("t", b"%d" % number))
                assert (await anext(consumer)).value == b"0"
                await lose_power(restartable, files)
                await (await producer.send("t", b"4"))
                assert [(await anext(consumer)).value for _ in range(4)] == [b"%d" % number for number in range(1, 5)]
        assert "cut at" not in caplog.text
        await restartable.stop()


async def test_a_blocking_consumer_finds_out_too() -> None:
    files = MemoryFiles()
    async with trio.open_nursery() as nursery:
        restartable = Restartable(nursery, files)
        running = await restartable.start()
        await running.broker.create_topic("t", config={"fsync": "never"})
        server = running.server

        async def write(word: bytes, count: int) -> None:
            async with Producer(server, link=QUICK) as producer:
                for number in range(count):
                    await producer.send("t", word + b" %d" % number)

        def work() -> tuple[list[bytes | None], list[bytes | None], str]:
            with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
                consumer.assign("t")
                before: list[bytes | None] = []
                while len(before) < 3:
                    before += [record.value for record in consumer.fetch(3 - len(before))]
                trio.from_thread.run(lose_power, restartable, files)
                trio.from_thread.run(write, b"new", 12)
                after: list[bytes | None] = []
                said = ""
                consumer._reset = "error"
                while b"new 11" not in after:
                    try:
                        after += [record.value for record in consumer.fetch()]
                    except LogTruncated as error:
                        said = str(error)
                    except ConnectionLost:
                        continue
                return before, after, said

        await write(b"old", 10)
        with trio.fail_after(30):
            before, after, said = await trio.to_thread.run_sync(work)
        assert before == [b"old 0", b"old 1", b"old 2"]
        assert [value for value in after if value is not None and value.startswith(b"new")] == [
            b"new %d" % number for number in range(12)
        ]
        assert "partition 0 of topic 't' was cut at offset 0" in said
        await restartable.stop()
