"""Queues that are views of topics: all that a queue does, over records that are written once for all who read them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import NO_HEADERS, BatchBuilder, encode_headers, iterate_records
from routing.errors import InvalidArgument, NotFound, PreconditionFailed
from routing.queues.view_queue import ViewQueue
from routing.session import Outcome
from tests.routing.harness import TRANSIENT, Client, Delivery, Engine, engine, killed, passing, with_headers


def batch(*bodies: Any, headers: bytes = NO_HEADERS, key: bytes | None = None) -> bytes:
    """What a producer of records appends; a pair is a body and its key."""
    builder = BatchBuilder(0, 0, 1_000)
    if isinstance(bodies[0], tuple):
        for offset, (body, own) in enumerate(bodies):
            builder.add_run(offset, own.encode(), [body.encode()], headers)
    else:
        builder.add_run(0, key, [str(body).encode() for body in bodies], headers)
    return builder.build()


async def topic(running: Engine, partitions: int = 1, name: str = "t", **config: str) -> None:
    await running.broker.create_topic(name, partitions=partitions, config=config)


async def append(running: Engine, *bodies: Any, partition: int = 0, name: str = "t", **options: Any) -> None:
    """Records that are committed."""
    there = running.broker.topics[name].partitions[partition]
    there.append(batch(*bodies, **options))
    done: list[object] = []
    running.broker.commits.when_committed([(there.log, there.log.log_end_offset)], done.append)
    running.turn()
    await running.until(lambda: bool(done))


async def view(running: Engine, name: str = "v", of: str = "t", **arguments: Any) -> ViewQueue:
    asked = {"x-queue-type": "view", "x-view-topic": of} | {
        f"x-{key.replace('_', '-')}": value for key, value in arguments.items()
    }
    await running.broker.declare_queue(name, durable=True, arguments=asked)
    found = running.broker.topology.queues[name]
    assert isinstance(found, ViewQueue)
    return found


async def worker(running: Engine, prefetch: int = 0, name: str = "v", **options: Any) -> Client:
    client = running.client()
    client.session.set_prefetch(prefetch, per_session=False)
    await client.consume(name, **options)
    running.turn()
    return client


def records(running: Engine, name: str = "t") -> list[list[str]]:
    """The bodies in each partition, as any reader of the topic has them."""
    found = []
    for partition in running.broker.topics[name].partitions:
        batches = partition.log.read_blocking(partition.log.log_start_offset, 1 << 30) or []
        found.append([bytes(one.value or b"").decode() for each in batches for one in iterate_records(each)])
    return found


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [one.body for one in deliveries]


async def test_more_workers_than_partitions_share_the_records_and_readers_of_the_topic_do_not_notice() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, 3)
        for partition in range(3):
            await append(running, *range(partition * 100, partition * 100 + 100), partition=partition)
        queue = await view(running)
        assert queue.message_count == 300
        workers = [await worker(running, 7) for _ in range(10)]
        got: Counter[str] = Counter()
        while sum(got.values()) < 300:
            for one in workers:
                taken = one.take()
                got.update(bodies(taken))
                if taken:
                    one.ack(taken[0].id, taken[-1].id)
        assert got == Counter(map(str, range(300)))
        assert queue.message_count == queue.outstanding == 0
        assert [len(found) for found in records(running)] == [100] * 3
        await append(running, "later", partition=1)
        assert [one.body for each in workers for one in each.take()] == ["later"]


async def test_nothing_is_remembered_of_a_topic_whose_views_are_gone() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await topic(running)
        for name in ("v", "w"):
            await view(running, name)
        viewed = broker.topology.vhost("/").viewed
        await broker.delete_queue("v")
        assert viewed == {"t": 1}
        assert broker.topics["t"].is_viewed
        await broker.delete_queue("w")
        assert list(viewed) == []
        assert not broker.topics["t"].is_viewed


async def test_two_views_and_a_stream_of_one_topic_have_nothing_to_do_with_each_other() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.declare_queue("t", durable=True, arguments={"x-queue-type": "stream"})
        one, other = await view(running, "one"), await view(running, "other")
        await running.client().publish_safely("t", "a", "b")
        await running.client().publish_safely("one", "c")
        first, second = await worker(running, name="one"), await worker(running, name="other", no_ack=True)
        assert first.take_bodies() == ["a", "b", "c"]
        assert second.take_bodies() == ["a", "b", "c"]
        assert (one.outstanding, other.outstanding, other.message_count) == (3, 0, 0)
        assert records(running) == [["a", "b", "c"]]


async def test_what_is_given_back_comes_again_and_what_is_refused_dies_with_its_history() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await running.queue("dead")
        queue = await view(running, dead_letter_exchange="", dead_letter_routing_key="dead", delivery_limit=2)
        await append(running, *range(5), key=b"k", headers=encode_headers([("h", b"x")]))
        client = await worker(running)
        first = client.take()
        client.ack(first[0].id)
        client.requeue(first[1].id)
        client.session.settle(first[2].id, first[2].id, Outcome.DISCARD)
        again = client.take()
        assert [(one.body, one.redelivered) for one in again] == [("1", True)]
        await running.until(lambda: running.count("dead") == 1 and queue.outstanding == 3)
        client.requeue(again[0].id)
        client.requeue(client.take()[0].id)
        await running.until(lambda: running.count("dead") == 2)
        reader = running.client()
        for reason, body in (("rejected", b"2"), ("delivery_limit", b"1")):
            got = await reader.session.get("dead", no_ack=True)
            assert got is not None
            headers = got.slab.properties_of(got.index).neutral.headers
            assert got.slab.bodies[got.index] == body
            assert (headers["h"], headers["x-first-death-queue"]) == ("x", "v")
            assert headers["x-death"][0]["reason"] == reason
        assert records(running) == [["0", "1", "2", "3", "4"]]


async def test_a_retry_ladder_holds_nobody_up(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await running.queue("dlq")
        queue = await view(running, retry=[1000], retry_then="dlq")
        await append(running, "bad", "good")
        client = await worker(running, 1)
        (bad,) = client.take()
        client.requeue(bad.id)
        (good,) = client.take()
        assert (good.body, queue.rules.delayed_count) == ("good", 1)
        client.ack(good.id)
        assert client.take() == []
        await passing(clock, 1.1)
        (bad,) = client.take()
        client.session.settle(bad.id, bad.id, Outcome.DISCARD)
        running.turn()
        await running.until(lambda: running.count("dlq") == 1 and not queue.outstanding)
        assert queue.message_count == 0


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (None, range(10)), ("first", range(10)), ("next", ()), ("last", range(9, 10)), (4, range(4, 10)),
        (-3, range(7, 10)), (1_000, ()),
    ],
)  # fmt: skip
async def test_where_it_begins_is_settled_when_it_is_declared(offset: Any, expected: Any) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await append(running, *range(10))
        arguments = {} if offset is None else {"stream_offset": offset}
        await view(running, **arguments)
        assert running.count("v") == len(expected)
        await view(running, **arguments)
    async with engine(files) as running:
        await append(running, "new")
        if offset == 1_000:
            expected = [*expected]
            assert running.count("v") == 0
        else:
            assert [body for body, _ in await running.drain("v")] == [*map(str, expected), "new"]


async def test_figures_count_what_nobody_has_waited_for_before_long(clock: MockClock) -> None:
    """Who begins workers when there is something for them never did: the view was empty for good."""
    async with engine(MemoryFiles(), housekeeping_interval_ms=1000, reclaim_interval_ms=10_000) as running:
        await topic(running)
        queue = await view(running)
        running.client().publish("v", *range(3), properties=TRANSIENT)
        running.turn()
        log = running.broker.topics["t"].partitions[0].log
        await running.until(lambda: log.written_offset == 3 and log.job is None)
        assert queue.message_count == 0
        await passing(clock, 12)
        assert log.job is not None or log.high_watermark == 3
        await running.until(lambda: queue.message_count == 3)


async def test_one_that_begins_at_a_time_has_what_nobody_has_waited_for() -> None:
    """It was not committed, so it was not found, and the view began behind it."""
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await view(running, "other")
        running.client().publish("other", *range(3), properties=TRANSIENT)
        running.turn()
        queue = await view(running, stream_offset="1h")
        client = await worker(running, 5)
        await running.until(lambda: len(client.deliveries) == 3)
        assert queue.message_count == 0


async def test_purge_settles_to_the_end_for_good() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running, 2)
        for partition in range(2):
            await append(running, *range(20), partition=partition)
        await view(running)
        client = await worker(running, 3)
        held = client.take()
        assert await running.broker.purge_queue("v") == 37
        assert running.count("v") == 0
        client.ack(held[0].id)
        await running.synced()
        crashed = killed(files)
        client.session.close()
    async with engine(files) as running:
        assert sorted(await running.drain("v")) == [("1", True), ("2", True)]
    async with engine(crashed) as running:
        assert sorted(await running.drain("v")) == [("1", True), ("2", True)]


async def test_over_a_clean_stop_everything_is_known() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await append(running, *range(10))
        await view(running)
        client = await worker(running, 4)
        taken = client.take()
        client.ack(taken[1].id)
        client.ack(taken[3].id)
        client.session.close()
    async with engine(files) as running:
        assert running.count("v") == 8
        found = await running.drain("v")
        assert found == [("0", True), ("2", True), *((str(number), False) for number in range(4, 10))]
    async with engine(files) as running:
        assert running.count("v") == 0
        await append(running, "next")
        assert await running.drain("v") == [("next", False)]


async def test_after_a_crash_what_was_acknowledged_and_written_stays_gone_and_all_else_is_marked() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running, 2)
        for partition in range(2):
            await append(running, *(f"{partition}-{number}" for number in range(1500)), partition=partition)
        await view(running)
        client = await worker(running, 1100)
        taken = client.take()
        client.ack(taken[0].id, taken[299].id)
        client.ack(taken[400].id)
        client.requeue(taken[500].id)
        await running.synced()
        gone = {one.body for one in (*taken[:300], taken[400])}
        crashed = killed(files)
    async with engine(crashed) as running:
        assert running.count("v") == 3000 - 301
        found = await running.drain("v")
        assert Counter(body for body, _ in found) == Counter({f"{p}-{n}" for p in range(2) for n in range(1500)} - gone)
        assert all(redelivered for _, redelivered in found)
        await append(running, "fresh")
        assert await running.drain("v") == [("fresh", False)]


async def test_what_a_new_leader_does_not_know_to_be_committed_yet_is_marked_as_well() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await view(running)
        await append(running, "known")
        await append(running, "given out")
        crashed = killed(files)
    async with engine(crashed) as running:
        log = running.broker.topics["t"].partitions[0].log
        log.high_watermark = 1  # as of a replica that begins to lead
        client = await worker(running)
        await running.until(lambda: client.deliveries)
        assert [(one.body, one.redelivered) for one in client.take()] == [("known", True)]
        await append(running, "fresh")  # with which the watermark comes
        await running.until(lambda: len(client.deliveries) == 2)
        assert [(one.body, one.redelivered) for one in client.take()] == [("given out", True), ("fresh", False)]


async def test_counts_of_returns_and_times_of_tries_outlive_a_crash(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await append(running, *range(3))
        await view(running, retry=[60_000, 60_000])
        client = await worker(running, 1)
        client.requeue(client.take()[0].id)
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        queue = running.broker.topology.queues["v"]
        assert (queue.message_count, queue.rules.delayed_count) == (2, 1)
        client = await worker(running)
        await running.until(lambda: len(client.deliveries) == 2)
        assert client.take_bodies() == ["1", "2"]
        await passing(clock, 61)
        assert client.take_bodies() == ["0"]
        assert queue.returns is not None
        assert [one.failures for one in queue.returns.tries.values()] == [1]


async def test_checkpoints_keep_what_it_holds_when_the_log_that_said_so_is_gone() -> None:
    files = MemoryFiles()
    small = {"stripes": 1, "queue_segment_bytes": 4096, "checkpoint_interval_bytes": 2048}
    async with engine(files, **small) as running:
        await topic(running)
        await view(running)
        await running.queue("other")
        await append(running, *range(20))
        client = await worker(running, 10)
        held = client.take()
        client.ack(held[2].id)
        log = running.home("v").log
        while log.log_start_offset == 0:
            await running.client().publish_safely("other", *("x" * 300 for _ in range(10)))
            await running.drain("other")
            await running.synced()
            running.broker.checkpoints.take(running.home("v"))
            running.home("v").delete_dead_prefix()
        await running.synced()
        crashed = killed(files)
    async with engine(crashed, **small) as running:
        assert running.count("v") == 19
        assert sorted(int(body) for body, _ in await running.drain("v")) == [0, 1, *range(3, 20)]


async def test_records_that_the_topic_does_not_keep_are_dropped_and_counted() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, **{"segment.bytes": "1024"})
        for start in range(0, 60, 10):
            await append(running, *(f"{number:03}{'x' * 100}" for number in range(start, start + 10)))
        queue = await view(running)
        client = await worker(running, 15)
        held = client.take()
        assert len(held) == 15
        log = running.broker.topics["t"].partitions[0].log
        log.delete_prefix(log.segments[3].base_offset)
        start = log.log_start_offset
        assert start == 30
        client.requeue(held[0].id, held[-1].id)
        queue.view._last = None  # nothing of it is in memory
        seen = client.take()
        assert [int(one.body[:3]) for one in seen] == list(range(30, 45))
        assert queue.view.gone == 30
        client.ack(seen[0].id, seen[-1].id)
        assert [int(one.body[:3]) for one in client.take()] == list(range(45, 60))
        assert queue.message_count == 0


async def test_records_that_are_not_known_to_be_committed_yet_are_waited_for() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        for number in range(10):
            await append(running, number)
        queue = await view(running)
        client = await worker(running, 10)
        held = client.take()
        assert len(held) == 10
        log = running.broker.topics["t"].partitions[0].log
        _know(queue, log, 4)
        client.requeue(held[0].id, held[-1].id)
        assert bodies(client.take()) == list("0123")
        client.session.close()
        assert [body for body, _ in [await _got(running) for _ in range(4)]] == list("0123")
        got: list[tuple[str, bool]] = []

        async def get() -> None:
            got.append(await _got(running))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            await wait_all_tasks_blocked()
            assert (got, queue.view.gone) == ([], 0)
            _know(queue, log, 10)
        assert got == [("4", True)]
        rest: list[str] = []
        other = await worker(running)
        await running.until(lambda: bool(rest.extend(bodies(other.take())) or len(rest) == 5))
        assert (rest, queue.view.gone) == (list("56789"), 0)


async def _got(running: Engine) -> tuple[str, bool]:
    found = await running.client().session.get("v", no_ack=True)
    assert found is not None
    return bytes(found.slab.bodies[found.index]).decode(), found.redelivered


def _know(queue: ViewQueue, log: PartitionLog, high_watermark: int) -> None:
    """As a replica that was told of so much: it may have more, and nothing of it is in memory."""
    log.high_watermark = high_watermark
    queue.view._last = None
    for source in queue.view.sources:
        source._chunks.clear()  # type: ignore[attr-defined]
    for listener in tuple(log.listeners):
        listener(log)


async def test_partitions_that_are_added_are_seen_and_a_topic_takes_its_views_along() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await view(running, stream_offset="next")
        client = await worker(running)
        await running.broker.create_partitions("t", 3)
        await append(running, "a", partition=2)
        assert client.take_bodies() == ["a"]
        await running.broker.delete_topic("t")
        assert client.events == [("cancelled", "c")]
        assert "v" not in running.broker.topology.queues
    async with engine(files) as running:
        with pytest.raises(NotFound, match="no topic 't' in vhost '/'"):
            await view(running)


async def test_what_is_published_to_it_goes_to_the_topic_once() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, 2)
        await view(running, "one")
        await view(running, "other")
        await running.broker.declare_exchange("x", "fanout", durable=True)
        await running.bind("x", "one")
        await running.bind("x", "other")
        await running.client().publish_safely("k", "m", exchange="x")
        assert sorted(map(len, records(running))) == [0, 1]
        assert await running.drain("one") == await running.drain("other") == [("m", False)]
        publisher = running.client()
        publisher.publish("one", "n", properties=with_headers({"a": 1}), confirm=True)
        running.turn()
        await running.until(lambda: publisher.confirmed == 1)
        assert [body for body, _ in await running.drain("other")] == ["n"]


async def test_a_get_waits_for_the_disk_and_counts_are_right() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await append(running, *range(30))
        await view(running)
    async with engine(files) as running:  # nothing of it is in memory
        client = running.client()
        for left in range(29, -1, -1):
            got = await client.session.get("v", no_ack=True)
            assert got is not None
            assert (got.message_count, got.slab.bodies[got.index]) == (left, str(29 - left).encode())
        assert await client.session.get("v", no_ack=True) is None


async def test_what_nobody_waits_for_is_there_for_who_gets_counts_or_purges() -> None:
    """Not persistent, and with nobody at the end of the topic, it was not synced: it came to nobody who only asked."""
    async with engine(MemoryFiles()) as running:
        await topic(running, 2)
        await view(running)
        client = running.client()
        for number in range(3):
            client.publish("v", number, properties=TRANSIENT)
            running.turn()
            got = await client.session.get("v", no_ack=True)
            assert got is not None
            assert got.slab.bodies[got.index] == str(number).encode()
        client.publish("v", "one", "two", properties=TRANSIENT)
        assert (await running.broker.check_queue("v")).message_count == 2
        client.publish("v", "three", properties=TRANSIENT)
        assert await running.broker.purge_queue("v") == 3
        client.publish("v", "four", properties=TRANSIENT)
        with pytest.raises(PreconditionFailed):
            await running.broker.delete_queue("v", if_empty=True)
        got = await client.session.get("v", no_ack=True)
        assert got is not None
        assert got.slab.bodies[got.index] == b"four"
        assert await client.session.get("v", no_ack=True) is None


async def test_one_active_consumer_and_priorities_of_consumers() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await view(running, single_active_consumer=True)
        await append(running, *range(4))
        first, second = await worker(running, 2), await worker(running, 2)
        assert (len(first.take()), second.take()) == (2, [])
        first.session.close()
        assert second.take_bodies() == ["0", "1"]


async def test_settlements_in_a_transaction_count_when_it_is_committed() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await running.queue("done")
        await running.queue("done2")
        await append(running, *range(4))
        await view(running)
        client = await worker(running, 2)
        client.session.begin()
        taken = client.take()
        client.publish("done", "0 is done")
        client.publish("v", "again")
        client.ack(taken[0].id)
        await client.session.commit()
        crashed = killed(files)
    async with engine(crashed) as running:
        found: set[str] = set()
        with trio.fail_after(20):
            while len(found) < 4:  # what is applied again is given out when the disk has it
                found |= {body for body, _ in await running.drain("v")}
                await trio.sleep(0.001)
        assert found == {"1", "2", "3", "again"}
        assert set(await running.drain("done")) == {("0 is done", True)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-max-length": 5}, "invalid arg 'x-max-length' for queue 'v' in vhost '/' of queue type rabbit_view_queue"),
        ({"x-message-ttl": 5}, "invalid arg 'x-message-ttl'"),
        ({"x-max-priority": 5}, "invalid arg 'x-max-priority'"),
        ({"x-retain": "1h"}, "invalid arg 'x-retain'"),
        ({"x-stream-offset": "soon"}, "invalid arg 'x-stream-offset' for queue 'v' in vhost '/'"),
        ({"x-view-filter": ""}, "invalid arg 'x-view-filter' for queue 'v' in vhost '/': {not_a_pattern_of_1_to_255"),
        ({"x-view-topic": 5}, "invalid arg 'x-view-topic' for queue 'v' in vhost '/': {unacceptable_type,signedint}"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], text: str) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        asked = {"x-queue-type": "view", "x-view-topic": "t"} | arguments
        with pytest.raises((InvalidArgument, PreconditionFailed)) as refused:
            await running.broker.declare_queue("v", durable=True, arguments=asked)
        assert text in str(refused.value)


async def test_a_view_is_durable_has_a_name_and_stays_what_it_is() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await topic(running, name="u")
        kind = {"x-queue-type": "view", "x-view-topic": "t"}
        declare = running.broker.declare_queue
        with pytest.raises(PreconditionFailed, match="invalid property 'non-durable'"):
            await declare("v", arguments=kind)
        with pytest.raises(PreconditionFailed, match="server-named"):
            await declare("", durable=True, arguments=kind)
        with pytest.raises(InvalidArgument, match="x-view-topic"):
            await declare("v", durable=True, arguments={"x-queue-type": "view"})
        await declare("v", durable=True, arguments=kind)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-view-topic'"):
            await declare("v", durable=True, arguments=kind | {"x-view-topic": "u"})
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-stream-offset'"):
            await declare("v", durable=True, arguments=kind | {"x-stream-offset": "last"})
        assert await declare("v", durable=True) == await declare("v", durable=True, arguments={"x-app": "celery"})
        for wrong in ({"x-queue-type": "classic"}, {"x-view-filter": "a.#"}, {"x-max-priority": 9}):
            with pytest.raises(PreconditionFailed, match="inequivalent arg"):
                await declare("v", durable=True, arguments=wrong)
        for change in ({"x-view-topic": "u"}, {"x-view-filter": "a.#"}):
            with pytest.raises(PreconditionFailed, match="cannot become a view of something else"):
                await running.broker.alter_queue("v", change)
        await running.broker.alter_queue("v", {"x-delivery-limit": 3})
        await declare("v", durable=True)
        await declare("v", durable=True, arguments={"x-delivery-limit": 3})
        await running.broker.set_policy("p", ".*", {"max-length": 1, "delivery-limit": 2})
        queue = running.broker.topology.queues["v"]
        assert (queue.settings.max_length, queue.settings.delivery_limit, queue.settings.view_of) == (None, 2, "t")
        info = await running.broker.check_queue("v")
        assert (info.message_count, info.consumer_count) == (0, 0)
