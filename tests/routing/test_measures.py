"""Figures for monitoring, of an engine in memory: what they count, how many series, and that others have their turn."""

from __future__ import annotations

import pytest
import trio

from core_log.batch_header import parse_header
from core_log.expiry import unexpired
from core_log.files import MemoryFiles
from core_log.record_batch import BatchBuilder
from core_log.wall_clock import wall_clock_ms
from routing.administration.measures import Family, Measures
from routing.broker import Broker
from routing.queues.death_history import REASONS
from routing.session import Outcome
from routing.topics.offset_store import Committed
from tests.routing.harness import PROTOCOL, Engine, engine
from tests.support.metrics import Figures, series
from tests.support.turns import Turns


async def measured(broker: Broker, series_max: int = 1000) -> Figures:
    return series(await Measures(broker, series_max).families())


async def test_queues_and_what_came_and_went() -> None:
    async with engine(MemoryFiles()) as broker:
        for name in ("a", "b"):
            await broker.queue(name)
        client = broker.client()
        await client.publish_safely("a", *range(5))
        consumer = await client.consume("a", prefetch=2)
        await client.publish_safely("b", 1)
        found = await measured(broker.broker)
        assert [found[f"millrace_queue_messages_{what}", "/", "a"] for what in ("ready", "unacknowledged")] == [3, 2]
        assert found["millrace_queue_messages_ready", "/", "b"] == 1
        assert found["millrace_queue_consumers", "/", "a"] == 1
        assert found["millrace_partitions_single_copy",] == len(broker.broker.topology.stripes) + 1
        totals = ("queues", "messages_ready", "messages_unacknowledged", "consumers", "sessions")
        assert [found[f"millrace_{name}",] for name in totals] == [2, 4, 2, 1, 1]
        assert found["millrace_messages_received", PROTOCOL] == 6
        assert found["millrace_messages_delivered", PROTOCOL] == 2
        client.session.cancel(consumer)
        client.session.close()
        broker.turn()
        await broker.drain("a")
        found = await measured(broker.broker)
        assert found["millrace_messages_received", PROTOCOL] == 6
        assert found["millrace_messages_delivered", PROTOCOL] == 2 + 5  # of sessions that are over, too


async def test_messages_that_died_are_counted_by_why_and_records_whose_time_is_up() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        for name, arguments in {"ttl": {"x-message-ttl": 0}, "two": {"x-max-length": 2}, "some": {}}.items():
            await running.queue(name, arguments=arguments)
        client = running.client()
        await client.publish_safely("ttl", 1, 2, 3)
        await client.publish_safely("two", *range(6))
        await client.publish_safely("some", *range(5))
        await client.consume("some", prefetch=1)
        (first,) = client.take()
        client.session.settle(first.id, first.id, Outcome.DISCARD)
        running.turn()
        await broker.create_topic("plain")
        await broker.create_topic("mortal", config={"millrace.expiry.enable": "true"})
        log = broker.topics["mortal"].partitions[0].log
        batch = BatchBuilder(0, 0, wall_clock_ms())
        batch.add(0, b"k", b"v", [("x-ttl", b"0")])
        log.append(batch.build())
        log.request_sync()
        await log.wait_committed(1)
        assert not parse_header(unexpired(log, log.read_blocking(0, 1 << 20))[0]).record_count
        found = await measured(broker)
        died = {reason: found["millrace_messages_died", reason] for reason in REASONS}
        assert died == {"expired": 3, "maxlen": 4, "rejected": 1, "delivery_limit": 0}
        assert found["millrace_topic_expired", "mortal", "0"] == 1
        assert ("millrace_topic_expired", "plain", "0") not in found


async def test_for_how_long_the_oldest_message_has_waited() -> None:
    async with engine(MemoryFiles()) as broker:
        for name in ("waits", "empty"):
            await broker.queue(name)
        await broker.queue("transient", durable=False)
        client = broker.client()
        await client.publish_safely("waits", 1)
        client.publish("transient", 1)
        broker.turn()
        then_ms = broker.broker.clock.now_ms() + 60_000
        broker.broker.clock.now_ms = lambda: then_ms  # type: ignore[method-assign]
        measures = Measures(broker.broker, 1000)
        for _ in range(2):  # the second knows the time of the first message
            found = series(await measures.families())
            assert 59 < found["millrace_queue_oldest_seconds", "/", "waits"] <= 61
            assert found["millrace_queue_oldest_seconds", "/", "empty"] == 0
            assert ("millrace_queue_oldest_seconds", "/", "transient") not in found
        consumer = await client.consume("waits", prefetch=1)
        await broker.drain("waits")
        assert consumer
        found = series(await measures.families())
        assert found["millrace_queue_oldest_seconds", "/", "waits"] == 0  # a consumer holds it


async def test_a_family_has_no_more_series_than_it_may() -> None:
    async with engine(MemoryFiles()) as broker:
        for number in range(7):
            await broker.queue(f"q{number}")
        families = {one.name: one for one in await Measures(broker.broker, 5).families()}
        ready = families["millrace_queue_messages_ready"]
        assert ready.series == [("/", f"q{number}") for number in range(5)]
        assert ready.left_off == 2
        assert families["millrace_queues"].values == [7]


async def test_others_have_their_turn_while_many_queues_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.bites.BITE_S", 0)
    async with engine(MemoryFiles()) as broker:
        for number in range(1000):
            await broker.queue(f"q{number}", durable=False)
        others = Turns()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others.take)
            await trio.lowlevel.checkpoint()
            others.count = 0
            await measured(broker.broker)
            assert others.count >= 900
            nursery.cancel_scope.cancel()


async def topic_of(broker: Engine, name: str, times_ms: list[int]) -> None:
    """A topic with a record of each of these times, in batches of their own."""
    await broker.broker.create_topic(name, partitions=1, config={})
    partition = broker.broker.topics[name].partitions[0]
    for offset, time_ms in enumerate(times_ms):
        builder = BatchBuilder(offset, 0, time_ms)
        builder.add(offset, None, b"x", [])
        partition.append(builder.build())
    partition.log.request_sync()
    await partition.log.wait_committed(partition.log.log_end_offset)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_how_far_groups_are_behind(in_memory: bool) -> None:
    files, now_ms = MemoryFiles(), wall_clock_ms()
    async with engine(files) as broker:
        await topic_of(broker, "t", [now_ms - 90_000, now_ms - 60_000, now_ms - 30_000])
        await broker.broker.offsets.commit("one", {("t", 0): Committed(1)})
        await broker.broker.offsets.commit("done", {("t", 0): Committed(3), ("gone", 0): Committed(7)})
        if in_memory:
            await look_at_lag(broker.broker, now_ms)
    if not in_memory:
        async with engine(files) as broker:
            await look_at_lag(broker.broker, now_ms)


async def look_at_lag(broker: Broker, now_ms: int) -> None:
    broker.clock.wall_ms = lambda: now_ms  # type: ignore[method-assign]
    broker.clock.now_ms = lambda: now_ms + 10**12  # type: ignore[method-assign]  # the wall clock was set back
    measures = Measures(broker, 1000)
    for _ in range(2):  # the second knows the time of the first record that was not read
        found = series(await measures.families())
        assert found["millrace_topic_end_offset", "t", "0"] == 3
        assert found["millrace_group_committed_offset", "one", "t", "0"] == 1
        assert found["millrace_group_lag_records", "one", "t", "0"] == 2
        assert found["millrace_group_lag_seconds", "one", "t", "0"] == 60
        assert found["millrace_group_lag_records", "done", "t", "0"] == 0
        assert found["millrace_group_lag_seconds", "done", "t", "0"] == 0
        assert not [key for key in found if "gone" in key]
        assert found["millrace_group_members", "one"] == 0
    assert found["millrace_group_commit_timestamp_seconds", "one"] > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.topics["t"].partitions[0].log, "read", None)
        again = series(await measures.families())
    assert again["millrace_group_lag_seconds", "one", "t", "0"] == 60  # nothing is read again


def test_a_family_without_a_limit_takes_all() -> None:
    family = Family("f", "gauge", "")
    for number in range(3):
        family.add(number)
    assert (family.values, family.left_off) == ([0, 1, 2], 0)
