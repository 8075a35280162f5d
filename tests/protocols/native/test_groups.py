"""Members of a group over the native protocol: who reads what, what is committed, and what they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import structs

from millrace import Client, Consumer, LinkConfig, MillraceError, OffsetOutOfRange, Producer, RebalanceListener
from protocols.native import adapter, wire, wire_groups
from protocols.native.adapter_groups import GroupDoor
from protocols.native.clients import coordinators
from protocols.native.clients.group_bytes import Partition
from protocols.native.errors import ConnectionLost, FencedInstance, NotAMember
from routing.config import BrokerConfig
from routing.groups.errors import NotCoordinator
from routing.topics.offset_store import Committed
from tests.protocols.native.broker import Running, native_broker

TIMEOUT_S = 20
QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20, metadata_max_age_ms=30)


@asynccontextmanager
async def group_broker(consumer_heartbeat_ms: int = 5000) -> AsyncIterator[Running]:
    engine = BrokerConfig(
        stripes=1,
        group_initial_delay_ms=0,
        group_session_timeout_ms_min=100,
        consumer_heartbeat_interval_ms=consumer_heartbeat_ms,
    )
    with trio.fail_after(TIMEOUT_S):
        async with native_broker(engine=engine) as running:
            yield running


async def fill(running: Running, topic: str, partitions: int, each: int) -> None:
    if topic not in running.broker.topics:
        await running.broker.create_topic(topic, partitions=partitions)
    async with Producer(running.server) as producer:
        for number in range(each):
            for partition in range(partitions):
                await producer.send(topic, b"%d/%d" % (partition, number), partition=partition)


class Told(RebalanceListener):
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[Partition]]] = []

    def on_assigned(self, partitions: list[Partition]) -> None:
        self.told.append(("assigned", sorted(partitions)))

    async def on_revoked(self, partitions: list[Partition]) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append(("revoked", sorted(partitions)))

    async def on_lost(self, partitions: list[Partition]) -> None:
        self.told.append(("lost", sorted(partitions)))


def member(running: Running, group: str = "g", **more: Any) -> Consumer:
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest", "heartbeat_interval_ms": 20, "session_timeout_ms": 5000, "link": QUICK,
    }  # fmt: skip
    if "pattern" not in more:
        settings["topics"] = "t"
    return Consumer(running.server, group, **(settings | more))


class Reading:
    """A member with a task that reads on, and what it has read."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.values: list[bytes | None] = []
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            try:
                while True:
                    self.values += [record.value for record in await self.consumer.poll(50)]
            except ConnectionLost:
                assert self.scope.cancel_called, "its block has ended before it noticed"


async def read_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(20)


async def until(condition: Any) -> None:
    while not condition():
        await trio.sleep(0.005)


async def test_one_member_reads_all_and_goes_on_where_it_was() -> None:
    async with group_broker() as running:
        await fill(running, "t", 3, 10)
        told = Told()
        async with member(running, listener=told) as consumer:
            assert await consumer.poll(0) == []
            got = [await anext(consumer) for _ in range(30)]
            assert sorted({(record.partition, record.offset) for record in got}) == [
                (partition, offset) for partition in range(3) for offset in range(10)
            ]
            assert sorted(consumer.assignment) == [("t", 0), ("t", 1), ("t", 2)]
            await consumer.commit()
        every = [("t", 0), ("t", 1), ("t", 2)]
        assert told.told == [("assigned", every), ("revoked", every)]
        assert running.broker.groups.groups["g"].members == {}
        await fill(running, "t", 3, 1)
        async with member(running) as consumer:
            assert sorted([(await anext(consumer)).offset for _ in range(3)]) == [10, 10, 10]


@pytest.mark.parametrize("assignors", [("range",), ("cooperative-sticky",), ("range", "cooperative-sticky")])
async def test_members_come_and_go_and_nothing_is_read_twice(assignors: tuple[str, ...]) -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "t", 6, 50)
        async with member(running, assignors=assignors, auto_commit_interval_ms=10_000) as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 300)
            async with member(running, assignors=assignors, auto_commit_interval_ms=10_000) as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(first.assignment) == len(second.assignment) == 3)
                assert not set(first.assignment) & set(second.assignment)
                await fill(running, "t", 6, 10)
                await until(lambda: len(one.values) + len(two.values) >= 360)
                assert len(one.values) == 330
                assert len(two.values) == 30, "it begins where the other has come"
                two.scope.cancel()
            await until(lambda: len(first.assignment) == 6)
            await fill(running, "t", 6, 5)
            await until(lambda: len(one.values) >= 360)
            await trio.sleep(0.05)
            assert len(one.values) == 360
            one.scope.cancel()


async def test_sticky_members_keep_what_does_not_move() -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "t", 4, 1)
        told = Told()
        async with member(running, assignors=["cooperative-sticky"], listener=told) as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 4)
            async with member(running, assignors=["cooperative-sticky"]) as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(second.assignment) == 2 and len(first.assignment) == 2)
                two.scope.cancel()
            ways = [(way, len(partitions)) for way, partitions in told.told]
            assert ways[:3] == [("assigned", 4), ("revoked", 2), ("assigned", 0)]
            one.scope.cancel()


async def test_a_pattern_takes_up_new_topics_and_partitions() -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "flights", 1, 1)
        await running.broker.create_topic("other", partitions=1)
        async with member(running, pattern="fl.*") as consumer:
            reading = Reading(consumer)
            nursery.start_soon(reading.run)
            await until(lambda: consumer.assignment == [("flights", 0)])
            await fill(running, "flown", 2, 1)
            await until(lambda: len(consumer.assignment) == 3)
            await running.broker.create_partitions("flown", 4)
            await until(lambda: len(consumer.assignment) == 5)
            await until(lambda: set(reading.values) == {b"0/0", b"1/0"})
            await running.broker.delete_topic("flown")
            await until(lambda: consumer.assignment == [("flights", 0)])
            reading.scope.cancel()


async def test_a_pattern_means_names_that_begin_with_underscores_too() -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "__debezium-heartbeat.shop", 1, 1)
        async with member(running, pattern=".*heartbeat.*") as consumer:
            reading = Reading(consumer)
            nursery.start_soon(reading.run)
            await until(lambda: set(reading.values) == {b"0/0"})
            reading.scope.cancel()


async def test_a_static_member_comes_back_as_itself() -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "t", 2, 1)
        async with member(running, group_instance_id="a") as first, member(running, group_instance_id="b") as second:
            one, two = Reading(first), Reading(second)
            nursery.start_soon(one.run)
            nursery.start_soon(two.run)
            await until(lambda: len(first.assignment) == len(second.assignment) == 1)
            group = running.broker.groups.groups["g"]
            generation, had = group.generation, second.assignment
            two.scope.cancel()
            await second.unsubscribe()
            assert len(group.members) == 2, "it says no goodbye"
            async with member(running, group_instance_id="b") as again:
                three = Reading(again)
                nursery.start_soon(three.run)
                await until(lambda: again.assignment == had)
                assert group.generation == generation
                three.scope.cancel()
                async with member(running, group_instance_id="b") as other:
                    four = Reading(other)
                    nursery.start_soon(four.run)
                    await until(lambda: other.assignment == had)
                    with pytest.raises(FencedInstance):
                        await read_on(again)
                    four.scope.cancel()
            one.scope.cancel()


async def test_who_asks_for_nothing_is_out_and_told_that_all_is_lost() -> None:
    async with group_broker() as running, trio.open_nursery() as nursery:
        await fill(running, "t", 2, 5)
        told = Told()
        async with member(running, listener=told, max_poll_interval_ms=150) as first:
            await anext(first)
            async with member(running) as second:
                reading = Reading(second)
                nursery.start_soon(reading.run)
                await until(lambda: len(second.assignment) == 2)
                with pytest.raises(NotAMember):
                    await first.commit()
                await first.poll(500)
                assert told.told[1] == ("lost", [("t", 0), ("t", 1)])
                await until(lambda: len(running.broker.groups.groups["g"].members) == 2)
                reading.scope.cancel()


async def test_a_member_whose_connection_is_lost_goes_on() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 5)
        told = Told()
        async with member(running, listener=told) as consumer:
            await anext(consumer)
            running.drop_connections()
            await trio.sleep(0.1)
            assert [(await anext(consumer)).offset for _ in range(4)] == [1, 2, 3, 4]
            await consumer.commit()
            assert [way for way, _ in told.told] == ["assigned"]


async def test_a_group_whose_coordinator_forgot_it_is_joined_anew() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 5)
        told = Told()
        async with member(running, listener=told) as consumer:
            await anext(consumer)
            await consumer.commit()
            group = running.broker.groups.groups.pop("g")
            group.close(MillraceError())  # type: ignore[arg-type]
            while len(told.told) < 3:
                await consumer.poll(20)
            assert [way for way, _ in told.told] == ["assigned", "lost", "assigned"]


async def test_positions_are_committed_when_they_are_done() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 10)
        async with member(running, auto_commit_interval_ms=0) as consumer:
            assert len(await consumer.poll(1000, 4)) == 4
            assert (await consumer.committed()).get(("t", 0), 0) == 0, "they may be under way"
            await consumer.poll(20, 100)
            while (await consumer.committed())[("t", 0)] < 10:
                await consumer.poll(10)
        async with Client(running.server) as client:
            reply = await client.list_offsets([("t", 0)], "latest")
            assert reply == [10]
        async with member(running) as consumer:
            while not consumer.assignment:
                assert await consumer.poll(100) == []
            assert await consumer.poll(100) == []
            assert consumer.position("t", 0) == 10


async def test_positions_within_a_batch_are_committed_when_it_is_time() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 10)
        async with member(running, auto_commit_interval_ms=100) as consumer:
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]
            assert await consumer.committed() == {}, "the last may be under way"
            await until(lambda: consumer._current is None)  # the time is up
            assert (await anext(consumer)).offset == 3
            while await consumer.committed() != {("t", 0): 3}:
                await trio.sleep(0.005)
            assert [record.offset for record in await consumer.poll(0)] == [4, 5, 6, 7, 8, 9]


async def test_paused_partitions_give_nothing() -> None:
    async with group_broker() as running:
        await fill(running, "t", 2, 10)
        async with Consumer(running.server, auto_offset_reset="earliest", topics="t") as consumer:
            first = await anext(consumer)
            here, there = ("t", first.partition), ("t", 1 - first.partition)
            consumer.pause([here])
            assert consumer.paused == [here]
            assert {(await anext(consumer)).partition for _ in range(10)} == {there[1]}
            assert await consumer.poll(30) == []
            assert consumer.position(*here) == 1
            consumer.resume([here])
            assert [(await anext(consumer)).offset for _ in range(9)] == list(range(1, 10))
            with pytest.raises(KeyError):
                consumer.pause([("t", 7)])


async def test_a_listener_may_seek_and_commit() -> None:
    async with group_broker() as running:
        await fill(running, "t", 2, 10)

        class Seeking(RebalanceListener):
            async def on_assigned(self, partitions: list[Partition]) -> None:
                for topic, partition in partitions:
                    await consumer.seek(topic, partition, 8)

            async def on_revoked(self, partitions: list[Partition]) -> None:
                await consumer.commit({("t", 0): 3})

        async with member(running, listener=Seeking()) as consumer:
            assert sorted([(await anext(consumer)).offset for _ in range(4)]) == [8, 8, 9, 9]
        assert (await running.broker.offsets.fetch("g"))[("t", 0)] == Committed(3)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_who_is_to_be_told_where_to_begin_says_so_in_the_listener_or_afterwards(protocol: str) -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running:
        await fill(running, "t", 2, 10)

        class Seeking(RebalanceListener):
            async def on_assigned(self, partitions: list[Partition]) -> None:
                await consumer.seek("t", 0, 8)

        settings: dict[str, Any] = {"auto_offset_reset": "error", "group_protocol": protocol}
        async with member(running, listener=Seeking(), **settings) as consumer:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange, match=r"no committed offset for partition 1 of topic 't'$"):
                    await anext(consumer)
            await consumer.commit()
            assert await running.broker.offsets.fetch("g") == {("t", 0): Committed(8)}
            await consumer.seek("t", 1, 9)
            assert sorted([(await anext(consumer)).offset for _ in range(3)]) == [8, 9, 9]
            await consumer.commit()
        await fill(running, "t", 2, 1)
        async with member(running, **settings) as consumer:
            assert [(await anext(consumer)).offset for _ in range(2)] == [10, 10]


@pytest.mark.parametrize("assignors", [("range",), ("cooperative-sticky",), None])
async def test_a_topic_that_is_deleted_and_there_again_is_read(assignors: tuple[str, ...] | None) -> None:
    more: dict[str, Any] = {"assignors": assignors} if assignors else {"group_protocol": "consumer"}
    more |= {"auto_commit_interval_ms": 10_000, "link": structs.replace(QUICK, metadata_max_age_ms=500)}
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 2, 10)
        await fill(running, "other", 1, 1)
        async with member(running, topics=["t", "other"], **more) as consumer:
            one = Reading(consumer)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 21)
            await running.broker.delete_topic("t")
            await until(lambda: consumer.assignment == [("other", 0)])
            await fill(running, "t", 2, 5)
            await until(lambda: len(one.values) == 31)
            told = running.broker.topics["t"].id
            await until(lambda: consumer._leaders._ids.get("t") == told)
            await fill(running, "other", 1, 1)
            await until(lambda: len(one.values) == 32)
            assert one.values[31:] == [b"0/0"], "what was read of it is not read again when its id is told"
            one.scope.cancel()


async def test_offsets_of_a_group_with_members_are_theirs() -> None:
    async with group_broker() as running:
        await fill(running, "t", 1, 10)
        async with member(running) as consumer:
            await anext(consumer)
            async with Consumer(running.server, "g", auto_offset_reset="earliest") as other:
                await other.assign("t")
                with pytest.raises(NotAMember, match="group 'g' has members"):
                    await other.commit()
            async with Client(running.server) as client:
                with pytest.raises(NotAMember, match="group 'g' has members"):
                    await client.set_offsets("g", {("t", 0): 3})


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="need a group"):
        Consumer("h:1", pattern="x")
    with pytest.raises(ValueError, match="assignors"):
        Consumer("h:1", "g", assignors=["nonsense"])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_what_a_cancelled_call_did_not_finish_is_done_by_the_next(protocol: str) -> None:
    """An application that waits for records for so long only, and a listener that takes longer."""

    class Slow(Told):
        begun = 0

        async def on_revoked(self, partitions: list[Partition]) -> None:
            self.begun += 1
            if self.begun < 3:
                await trio.sleep_forever()
            await consumer.commit({("t", 0): 4, ("t", 1): 4})
            await super().on_revoked(partitions)

    async with group_broker(consumer_heartbeat_ms=20) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 2, 10)
        told = Slow()
        other = Reading(member(running, group_protocol=protocol))

        async def come() -> None:
            async with other.consumer:
                await other.run()

        async with member(running, listener=told, group_protocol=protocol) as consumer:
            for _ in range(8):
                await anext(consumer)
            nursery.start_soon(come)
            patience_s = 0.05
            while len(told.told) < 2:
                with trio.move_on_after(patience_s):
                    await consumer.poll(50)
                patience_s *= 1.2  # a broker takes its time on a busy machine
                if told.begun in (1, 2):
                    assert len(consumer.assignment) == 2, "it reads what it has not given up"
            assert [way for way, _ in told.told[:2]] == ["assigned", "revoked"]
            await until(lambda: len(other.values) > 0)
            assert b"/4" in (other.values[0] or b"")
            nursery.cancel_scope.cancel()


def group_looked_after(
    monkeypatch: pytest.MonkeyPatch, by: Callable[[], Running], moved_from: Running | None = None
) -> None:
    """Brokers say that this one looks after groups; where these have `moved_from` offsets are refused."""

    async def find(door: GroupDoor, request: wire_groups.FindCoordinator) -> wire.Reply:
        host, _, port = by().server.rpartition(":")
        return wire_groups.FindCoordinatorReply(request.correlation_id, 7, host, int(port))

    async def offsets(door: GroupDoor, request: wire_groups.FetchGroupOffsets) -> wire.Reply:
        if moved_from is not None and door.broker is moved_from.broker:
            raise NotCoordinator("it has moved")
        return wire_groups.FetchGroupOffsetsReply(request.correlation_id, [])

    monkeypatch.setitem(adapter._GROUP_HANDLERS, wire_groups.FindCoordinator, find)
    monkeypatch.setitem(adapter._GROUP_HANDLERS, wire_groups.FetchGroupOffsets, offsets)


async def test_a_member_does_not_wait_for_a_broker_that_stands_still_while_another_has_taken_the_group_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with group_broker() as asked, group_broker() as first, group_broker() as second:
        await fill(asked, "t", 1, 3)
        looks_after = first
        group_looked_after(monkeypatch, lambda: looks_after)
        monkeypatch.setattr(first.broker.groups, "join", lambda group, joining, answer: None)
        monkeypatch.setattr(coordinators, "_LOOK_S", 0.01)
        async with member(asked) as consumer:
            assert await consumer.poll(100) == []
            looks_after = second
            assert [record.offset for record in await consumer.poll(10_000)] == [0, 1, 2]


async def test_a_member_that_waits_for_its_generation_goes_on_when_another_request_finds_the_next_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with group_broker() as asked, group_broker() as first, group_broker() as second:
        await fill(asked, "t", 1, 3)
        looks_after = first
        group_looked_after(monkeypatch, lambda: looks_after, moved_from=first)
        monkeypatch.setattr(first.broker.groups, "join", lambda group, joining, answer: None)  # it waits for others
        async with member(asked) as consumer:
            assert await consumer.poll(100) == []
            looks_after = second
            assert await consumer.committed([("t", 0)]) == {}
            assert [record.offset for record in await consumer.poll(10_000)] == [0, 1, 2]
