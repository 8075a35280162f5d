"""Consumers that live while a topic is deleted and made again under its name."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Literal

import msgspec
import pytest
import trio
import trio.testing

from millrace import (
    BlockingConsumer,
    BlockingGroupConsumer,
    Client,
    Consumer,
    LinkConfig,
    LogTruncated,
    Producer,
    UnknownPartition,
    UnknownTopic,
)
from protocols.native import wire
from protocols.native.clients.leaders import Leaders
from protocols.native.clients.link import Link
from protocols.native.clients.topic_ids import TopicIds
from protocols.native.errors import ErrorCode, wire_error
from routing.config import BrokerConfig
from tests.protocols.native.broker import Running, native_broker

QUICK = LinkConfig(metadata_max_age_ms=5)
WHATS = ("t", [("t", number) for number in range(4)])
LEADS = [1]


async def fill(running: Running, name: bytes, partitions: int, count: int = 40) -> None:
    async with Producer(running.server) as producer:
        for number in range(count):
            await producer.send("t", b"%s %d" % (name, number), partition=number % partitions)


async def read(consumer: Consumer, count: int) -> set[bytes | None]:
    found: list[bytes | None] = []
    with trio.fail_after(20):
        while len(found) < count:
            found += [record.value for record in await consumer.poll(100)]
    assert len(found) == count
    return set(found)


@pytest.mark.parametrize("what", WHATS, ids=("topic", "partitions"))
async def test_a_consumer_reads_the_new_topic_from_its_beginning(
    what: str | list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=4)
        await fill(running, b"old", 4)
        async with Consumer(running.server, auto_offset_reset="earliest", link=QUICK) as consumer:
            await consumer.assign(what)
            await read(consumer, 40)
            await client.delete_topic("t")
            await client.create_topic("t", partitions=2)
            with trio.fail_after(20), caplog.at_level(logging.WARNING):
                while consumer.position("t", 0):
                    with suppress(UnknownTopic):  # it may be told that there is none, for a moment
                        assert not await consumer.poll(1)
            await fill(running, b"new", 2)
            assert await read(consumer, 40) == {b"new %d" % number for number in range(40)}
            assert sorted(consumer.assignment) == [("t", number) for number in range(2 if what == "t" else 4)]
            await client.create_partitions("t", 4)
            await fill(running, b"newer", 4)
            assert await read(consumer, 40) == {b"newer %d" % number for number in range(40)}
            assert sorted(consumer.assignment) == [("t", number) for number in range(4)]
    assert sum("deleted and made again" in message for message in caplog.messages) == (2 if what == "t" else 4)


async def test_who_resets_nothing_is_told() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        await fill(running, b"old", 1)
        async with Consumer(running.server, "g", auto_offset_reset="error", link=QUICK) as consumer:
            await consumer.commit({("t", 0): 0})
            await consumer.assign("t")
            await read(consumer, 40)
            await client.delete_topic("t")
            await client.create_topic("t")
            with trio.fail_after(20), pytest.raises(LogTruncated, match="deleted and made again") as caught:
                await anext(consumer)
            assert (caught.value.offset, consumer.position("t", 0)) == (0, 0)
            await fill(running, b"new", 1)
            assert await read(consumer, 40) == {b"new %d" % number for number in range(40)}


async def test_that_a_topic_is_gone_is_said_once_and_it_is_read_when_it_is_back() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=3)
        await fill(running, b"old", 3)
        async with Consumer(running.server, auto_offset_reset="earliest", link=QUICK) as consumer:
            await consumer.assign("t")
            await read(consumer, 40)
            await client.delete_topic("t")
            with trio.fail_after(20), pytest.raises(UnknownTopic):
                await anext(consumer)
            for _ in range(10):
                assert not await consumer.poll(5)
            await client.create_topic("t", partitions=3)
            await fill(running, b"new", 3)
            assert await read(consumer, 40) == {b"new %d" % number for number in range(40)}


@pytest.mark.parametrize("what", WHATS, ids=("topic", "partitions"))
async def test_a_blocking_consumer_reads_the_new_topic_from_its_beginning(
    what: str | list[tuple[str, int]],
) -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=4)
        await fill(running, b"old", 4)

        def work() -> None:
            def take(count: int) -> set[bytes | None]:
                found: list[bytes | None] = []
                while len(found) < count:
                    found += [record.value for record in consumer.fetch(timeout_ms=50)]
                assert len(found) == count
                return set(found)

            with BlockingConsumer(running.server, auto_offset_reset="earliest", metadata_max_age_ms=0) as consumer:
                consumer.assign(what)
                take(40)
                trio.from_thread.run(client.delete_topic, "t")
                with pytest.raises(UnknownTopic):
                    consumer.fetch(timeout_ms=1)
                assert not consumer.fetch(timeout_ms=1), "it is said once"
                trio.from_thread.run(lambda: client.create_topic("t", partitions=2))
                trio.from_thread.run(fill, running, b"new", 2)
                assert take(40) == {b"new %d" % number for number in range(40)}
                trio.from_thread.run(client.create_partitions, "t", 4)
                trio.from_thread.run(fill, running, b"newer", 4)
                assert take(40) == {b"newer %d" % number for number in range(40)}

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)


async def test_a_blocking_consumer_that_resets_nothing_is_told() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        await fill(running, b"old", 1)

        def work() -> None:
            with BlockingConsumer(running.server, "g", auto_offset_reset="error") as consumer:
                consumer.client.commit_offsets("g", {("t", 0): 0})
                consumer.assign([("t", 0)])
                assert len(consumer.fetch()) == 40
                trio.from_thread.run(client.delete_topic, "t")
                trio.from_thread.run(client.create_topic, "t")
                with pytest.raises(LogTruncated, match="deleted and made again"):
                    consumer.fetch()
                trio.from_thread.run(fill, running, b"new", 1)
                assert consumer.fetch(1)[0].value == b"new 0"

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("reset", ["earliest", "error"])
async def test_a_blocking_consumer_does_not_believe_a_broker_that_is_behind(
    reset: Literal["earliest", "error"], caplog: pytest.LogCaptureFixture
) -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=2)
        await fill(running, b"old", 2)

        def work() -> None:
            with BlockingConsumer(running.server, "g", auto_offset_reset=reset, metadata_max_age_ms=0) as consumer:
                consumer.client.commit_offsets("g", {("t", 0): 0, ("t", 1): 0})
                consumer.assign("t")
                assert len(consumer.fetch()) == 40
                former = consumer.client.topics_found(["t"])
                trio.from_thread.run(client.delete_topic, "t")
                trio.from_thread.run(lambda: client.create_topic("t", partitions=1))
                with pytest.raises(LogTruncated) if reset == "error" else nullcontext():
                    assert not consumer.fetch(timeout_ms=1)
                trio.from_thread.run(fill, running, b"new", 1)
                assert len(consumer.fetch()) == 40
                caplog.clear()
                for told in (former, None, former, None):
                    with pytest.MonkeyPatch.context() as patch:
                        if told is not None:
                            patch.setattr(consumer.client, "topics_found", lambda _, told=told: told)
                        assert not consumer.fetch(timeout_ms=1)
                trio.from_thread.run(fill, running, b"newer", 1, 1)
                assert [record.value for record in consumer.fetch()] == [b"newer 0"]

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)
    assert not caplog.messages


def told(count: int, topic_id: bytes, epoch: int = 0) -> wire.MetadataReply:
    """What a broker of a cluster says of topic t."""
    partitions = [wire.PartitionMetadata(number, 1, epoch, LEADS, LEADS) for number in range(count)]
    return wire.MetadataReply(0, [(1, "a", 1), (2, "b", 1)], [("t", None, partitions)], [topic_id])


async def test_a_member_of_a_group_commits_nothing_of_partitions_that_the_new_topic_has_not_got() -> None:
    engine = BrokerConfig(stripes=1, group_initial_delay_ms=0)
    async with native_broker(engine=engine) as running, Client(running.server) as client:
        await client.create_topic("t", partitions=4)
        await fill(running, b"old", 4)
        async with Consumer(running.server, "g", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe("t")
            await read(consumer, 40)
            partitions = [wire.PartitionMetadata(number, 0, 1) for number in range(2)]
            again = wire.MetadataReply(0, [], [("t", None, partitions)], [b"another".ljust(16)])
            consumer._leaders._learn(again)
            assert sorted(consumer.assignment) == [("t", 0), ("t", 1)]
            assert (consumer.position("t", 0), consumer.position("t", 1)) == (0, 0)


async def test_what_was_read_of_the_former_topic_is_no_place_in_the_new_one() -> None:
    engine = BrokerConfig(stripes=1, group_initial_delay_ms=0)
    async with native_broker(engine=engine) as running, Client(running.server) as client:
        await client.create_topic("t")
        await fill(running, b"old", 1)

        def work() -> None:
            with BlockingGroupConsumer(running.server, "g", topics="t", auto_offset_reset="earliest") as consumer:
                assert [record.offset for record in islice(consumer, 7)] == list(range(7))
                assert consumer.position("t", 0) == 7
                trio.from_thread.run(client.delete_topic, "t")
                trio.from_thread.run(client.create_topic, "t")
                trio.from_thread.run(fill, running, b"new", 1)
                learn = partial(consumer._consumer._leaders.partitions, create_missing=False)
                consumer._call(learn, "t")
                assert consumer.position("t", 0) == 0
                consumer.commit()
                assert consumer.committed() == {("t", 0): 0}
                assert consumer.poll(2000)[0].value == b"new 0"

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)


async def test_nothing_of_the_former_topic_is_known_any_more() -> None:
    leaders = Leaders(Link("127.0.0.1:1", LinkConfig()))
    again: list[str] = []
    leaders.on_made_again = again.append
    leaders._learn(told(4, b"one", epoch=7))
    leaders._learn(told(2, b"one", epoch=7))
    assert (leaders.counts, len(leaders._leaders)) == ({"t": 4}, 4), "who says less is behind"
    leaders._learn(told(2, b"two"))
    assert (leaders.counts, again) == ({"t": 2}, ["t"])
    assert leaders._leaders.keys() == leaders._epochs.keys() == {("t", 0), ("t", 1)}
    assert {epoch for epoch, _ in leaders._epochs.values()} == {0}, "of the new one, though the former had later ones"
    leaders._learn(told(4, b"one", epoch=7))
    leaders._learn(told(2, b""))
    assert (leaders.counts, len(leaders._leaders), again) == ({"t": 2}, 2, ["t"]), "brokers that are behind, or older"
    gone = wire.MetadataReply(0, [(1, "a", 1), (2, "b", 1)], [("t", wire_error(ErrorCode.UNKNOWN_TOPIC), [])], [b""])
    leaders._stale.clear()
    leaders._learn(gone)
    assert not leaders._doubtful(), "nobody has to be found who leads it"
    leaders._learn(told(2, b"two"))
    assert leaders._doubtful(), "nobody is connected"


async def test_a_broker_that_is_far_behind_is_not_believed_either() -> None:
    """One cut off since before the topic was made again twice was: it was read twice, then nobody else was believed."""
    leaders = Leaders(Link("127.0.0.1:1", LinkConfig()))
    again: list[str] = []
    leaders.on_made_again = again.append
    for count, topic_id in enumerate((b"one", b"two", b"three"), 1):
        leaders._learn(told(count, topic_id))
    for topic_id in (b"one", b"two"):
        leaders._learn(told(7, topic_id))
    assert (leaders.counts, again) == ({"t": 3}, ["t", "t"])
    leaders._learn(told(4, b"three"))
    assert leaders.counts == {"t": 4}


@pytest.mark.parametrize("start", [0, 20])
async def test_records_of_another_topic_than_brokers_tell_of_are_read_once(start: int) -> None:
    """A broker that was cut off told a new consumer of the former topic; the leader read the new one. When it was told
    of that it read all of it again.
    """
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        await fill(running, b"new", 1)
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            leaders = consumer._leaders
            leaders._ids = TopicIds()
            leaders._ids.note("t", b"former")  # as a broker that is behind would have told
            consumer._seek({("t", 0): start})
            assert len(await read(consumer, 40)) == 40
            await leaders._ask()
            assert consumer.position("t", 0) == 40
            assert not await consumer.poll(20)
            assert (leaders.counts, leaders._not_told) == ({"t": 1}, set())


@pytest.mark.parametrize("start", [0, 20])
async def test_a_blocking_consumer_reads_records_of_another_topic_than_brokers_tell_of_once(start: int) -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        await fill(running, b"new", 1)

        def work() -> None:
            with BlockingConsumer(running.server, auto_offset_reset="earliest", metadata_max_age_ms=0) as consumer:
                now = consumer.client.topics_found(["t"])
                former = {"t": msgspec.structs.replace(now["t"], id=b"former".ljust(16))}
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(consumer.client, "topics", lambda _: former)
                    patch.setattr(consumer.client, "topics_found", lambda _: former)
                    consumer.assign("t")
                    consumer.seek("t", 0, start)
                    assert not consumer.fetch(timeout_ms=1)
                    assert len(consumer.fetch()) == 40
                assert not consumer.fetch(timeout_ms=1)

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)


async def test_a_partition_that_a_topic_has_not_got_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    leaders = Leaders(Link("127.0.0.1:1", LinkConfig()))
    leaders._learn(told(2, b"one"))
    leaders._stale.clear()
    began_s = trio.current_time()
    for wrong in (2, -1):
        with pytest.raises(UnknownPartition, match=f"topic 't' has no partition {wrong}, but 2"):
            await leaders.wait_for([("t", wrong)], trio.current_time() + 30)
    assert trio.current_time() - began_s < 5
    assert "t" in leaders._stale, "it may have got more"
