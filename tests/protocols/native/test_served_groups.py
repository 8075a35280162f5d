"""Members of groups that the broker divides (KIP-848), over the native protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from millrace import Client, Consumer, MillraceError, NotAMember
from protocols.native.clients.group_bytes import Partition
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import Beat, Beaten
from routing.groups.group import Group
from tests.protocols.native.broker import Running
from tests.protocols.native.test_groups import QUICK, Reading, Told, fill, group_broker, until


def member(running: Running, **more: Any) -> Consumer:
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "link": QUICK, "auto_commit_interval_ms": 10_000}
    if "pattern" not in more:
        settings["topics"] = "t"
    return Consumer(running.server, "g", **({"group_protocol": "consumer"} | settings | more))


async def test_one_member_reads_all_and_goes_on_where_it_was() -> None:
    async with group_broker() as running:
        await fill(running, "t", 3, 10)
        told = Told()
        async with member(running, listener=told) as consumer:
            got = [await anext(consumer) for _ in range(30)]
            assert len({(record.partition, record.offset) for record in got}) == 30
            async with Client(running.server) as client:
                described = await client.describe_group("g")
                assert (described.state, described.protocol) == ("Stable", "uniform")
                assert described.members[0].assignment == [("t", 0), ("t", 1), ("t", 2)]
        every = [("t", 0), ("t", 1), ("t", 2)]
        assert told.told == [("assigned", every), ("revoked", every)]
        assert isinstance(running.broker.groups.groups["g"], ConsumerGroup)
        assert running.broker.groups.groups["g"].members == {}
        await fill(running, "t", 3, 1)
        async with member(running) as consumer:
            assert sorted([(await anext(consumer)).offset for _ in range(3)]) == [10, 10, 10]


@pytest.mark.parametrize("assignor", ["uniform", "range", None])
async def test_members_come_and_go_and_nothing_is_read_twice(assignor: str | None) -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 6, 50)
        told = Told()
        async with member(running, server_assignor=assignor, listener=told) as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 300)
            async with member(running, server_assignor=assignor) as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(first.assignment) == len(second.assignment) == 3)
                assert not set(first.assignment) & set(second.assignment)
                assert [(way, len(what)) for way, what in told.told] == [("assigned", 6), ("revoked", 3)]
                await fill(running, "t", 6, 10)
                await until(lambda: len(one.values) + len(two.values) >= 360)
                assert (len(one.values), len(two.values)) == (330, 30)
                two.scope.cancel()
            await until(lambda: len(first.assignment) == 6)
            await fill(running, "t", 6, 5)
            await until(lambda: len(one.values) >= 360)
            assert len(one.values) == 360
            one.scope.cancel()


@pytest.mark.parametrize("way", ["range", "cooperative-sticky"])
async def test_members_of_both_protocols_share_a_group(way: str) -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 6, 50)
        async with member(
            running, group_protocol="classic", assignors=[way], heartbeat_interval_ms=20, session_timeout_ms=1000
        ) as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 300)
            async with member(running) as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(first.assignment) == len(second.assignment) == 3)
                assert not set(first.assignment) & set(second.assignment)
                assert isinstance(running.broker.groups.groups["g"], ConsumerGroup)
                await fill(running, "t", 6, 10)
                await until(lambda: len(one.values) + len(two.values) >= 360)
                assert (len(one.values), len(two.values)) == (330, 30)
                two.scope.cancel()
            await until(lambda: len(first.assignment) == 6)
            assert isinstance(running.broker.groups.groups["g"], Group)
            await fill(running, "t", 6, 5)
            await until(lambda: len(one.values) >= 360)
            assert len(one.values) == 360
            one.scope.cancel()


async def test_a_pattern_is_the_brokers_to_match() -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "flights", 1, 1)
        await fill(running, "other", 1, 1)
        async with member(running, pattern="fl.*") as consumer:
            reading = Reading(consumer)
            nursery.start_soon(reading.run)
            await until(lambda: consumer.assignment == [("flights", 0)])
            await fill(running, "flown", 2, 1)
            await until(lambda: len(consumer.assignment) == 3)
            await running.broker.create_partitions("flown", 4)
            await until(lambda: len(consumer.assignment) == 5)
            reading.scope.cancel()


async def test_members_get_what_they_are_to_read_though_each_answer_that_says_so_is_lost_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 6, 50)
        groups, lost = running.broker.groups, set()
        beat_of = groups.beat

        def beat(group: str, beat: Beat, answer: Callable[[Beaten], None]) -> None:
            def lose(beaten: Beaten) -> None:
                if beaten.assignment is not None and (beat.member_id, beaten.assignment) not in lost:
                    lost.add((beat.member_id, beaten.assignment))
                    running.drop_connections()
                answer(beaten)

            beat_of(group, beat, lose)

        monkeypatch.setattr(groups, "beat", beat)
        told = Told()
        async with member(running, listener=told) as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            await until(lambda: len(one.values) == 300)
            async with member(running) as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(first.assignment) == len(second.assignment) == 3)
                assert [(way, len(what)) for way, what in told.told] == [("assigned", 6), ("revoked", 3)]
                two.scope.cancel()
            await until(lambda: len(first.assignment) == 6)
            assert [(way, len(what)) for way, what in told.told[2:]] == [("assigned", 3)]
            one.scope.cancel()
        assert len(lost) >= 4


async def test_a_static_member_comes_back_as_itself() -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
        await fill(running, "t", 2, 1)
        async with member(running, group_instance_id="a") as first:
            one = Reading(first)
            nursery.start_soon(one.run)
            async with member(running, group_instance_id="b") as second:
                two = Reading(second)
                nursery.start_soon(two.run)
                await until(lambda: len(first.assignment) == len(second.assignment) == 1)
                had = second.assignment
                two.scope.cancel()
            assert len(running.broker.groups.groups["g"].members) == 2
            async with member(running, group_instance_id="b") as again:
                three = Reading(again)
                nursery.start_soon(three.run)
                await until(lambda: again.assignment == had)
                three.scope.cancel()
            one.scope.cancel()


async def test_who_asks_for_nothing_is_out_and_told_that_all_is_lost() -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running, trio.open_nursery() as nursery:
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
                gone: list[Partition] = []
                while len(gone) < 2:
                    await first.poll(20)
                    gone = sorted(key for way, what in told.told if way != "assigned" for key in what)
                # What it was asked for in time is revoked, unless it has heard by then that it is out.
                assert gone[:2] == [("t", 0), ("t", 1)]
                assert "lost" in [way for way, _ in told.told]
                await until(lambda: len(running.broker.groups.groups["g"].members) == 2)
                reading.scope.cancel()


async def test_lost_connections_and_forgotten_members() -> None:
    async with group_broker(consumer_heartbeat_ms=50) as running:
        await fill(running, "t", 1, 5)
        told = Told()
        async with member(running, listener=told) as consumer:
            await anext(consumer)
            running.drop_connections()
            await trio.sleep(0.1)
            assert [(await anext(consumer)).offset for _ in range(4)] == [1, 2, 3, 4]
            await consumer.commit()
            running.broker.groups.groups["g"].leave(consumer.group_metadata().member_id, None)
            while len(told.told) < 3:
                await consumer.poll(20)
            assert [way for way, _ in told.told] == ["assigned", "lost", "assigned"]


async def test_what_is_refused_comes_out() -> None:
    async with group_broker() as running, member(running, server_assignor="nonsense") as consumer:
        with pytest.raises(MillraceError, match="nonsense"):
            await consumer.fetch()
    with pytest.raises(ValueError, match="group_protocol"):
        Consumer("h:1", "g", group_protocol="other")  # type: ignore[arg-type]
