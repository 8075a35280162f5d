"""What is kept of groups: who looks after them after a crash goes on where they were."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from core_log.keyed_store import GARBAGE_BYTES_MIN
from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.wall_clock import wall_clock_ms
from protocols.native.clients.group_bytes import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.groups.assignors import NOWHERE
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import JOINING, LEAVING, LEAVING_FOR_NOW, Beat, Beaten
from routing.groups.errors import (
    CoordinatorUnavailable,
    FencedInstance,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    NeedsEpochs,
    RebalanceInProgress,
    StaleEpoch,
    UnknownGroup,
    UnknownMember,
)
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, State, Synced
from routing.groups.mixed_group import MixedGroup
from routing.topics.offset_store import Committed
from tests.support.turns import Turns

DAY_MS = 86_400_000
shift_ms = 0


@asynccontextmanager
async def engine(files: Any = None, **settings: Any) -> AsyncIterator[Broker]:
    config = BrokerConfig(stripes=1, group_initial_delay_ms=0, housekeeping_interval_ms=3_600_000, **settings)
    clock = lambda: wall_clock_ms() + shift_ms  # noqa: E731
    async with open_broker(files or MemoryFiles(), config, wall_clock_ms=clock) as broker:
        yield broker


async def answered(broker: Broker, ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """What is asked with a callback, and the end of its turn."""
    found: list[Any] = []
    ask(found.append)
    broker.end_turn()
    with trio.fail_after(5):
        while not found:
            await trio.sleep(0.001)
    return found[0]


async def beat(broker: Broker, member: str, epoch: int = JOINING, **said: Any) -> Beaten:
    if epoch == JOINING:
        said = {"rebalance_timeout_ms": 10_000, "topics": frozenset({"t"}), "owned": NOWHERE, **said}
    found: Beaten = await answered(broker, lambda answer: broker.groups.beat("g", Beat(member, epoch, **said), answer))
    assert found.error is None
    return found


async def join(broker: Broker, member: str = "", instance: str | None = None, *, wants: bytes = b"wants") -> Joined:
    joining = Joining(member, instance, "c", "/h", 10_000, 20_000, "consumer", [("range", wants)])
    found: Joined = await answered(broker, lambda answer: broker.groups.join("g", joining, answer))
    assert found.error is None
    return found


async def sync(broker: Broker, member: str, generation: int, assignments: dict[str, bytes]) -> Synced:
    found: Synced = await answered(
        broker,
        lambda answer: broker.groups.sync("g", member, None, generation, "consumer", "range", assignments, answer),
    )
    return found


async def test_members_of_both_kinds_go_on_after_a_crash() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=4, config={})
        await beat(broker, "a", instance_id="one")
        before = await beat(broker, "b")
        after = files.crash()  # what is answered is safe
    async with engine(after) as broker:
        group = broker.groups.groups["g"]
        assert isinstance(group, ConsumerGroup)
        assert (group.epoch, group.assignment_epoch, sorted(group.members)) == (2, 2, ["a", "b"])
        told = await beat(broker, "a", 1, instance_id="one")
        assert told.epoch == 1
        assert [number for _, number in sorted(told.assignment or ())] == [0, 1]
        assert (await beat(broker, "a", 1, instance_id="one", owned=told.assignment)).epoch == 2
        second = await beat(broker, "b", before.epoch)
        assert [number for _, number in sorted(second.assignment or ())] == [2, 3]
        await beat(broker, "a", LEAVING_FOR_NOW, instance_id="one")
        after = files_of(broker).crash()
    async with engine(after) as broker:
        assert (await beat(broker, "b", 2)).epoch == 2, "nobody's partitions move"
        assert (await beat(broker, "c", instance_id="one")).epoch == 2
        await broker.groups.commit("g", "c", "one", 2, {("t", 0): Committed(5)})
        for member, epoch, wrong in (("c", 1, StaleEpoch), ("b", 1, StaleEpoch)):
            with pytest.raises(wrong):
                await broker.groups.commit("g", member, None, epoch, {("t", 0): Committed(6)})
        with pytest.raises(NeedsEpochs):
            await broker.groups.commit("g", "b", None, 2, {("t", 0): Committed(6)}, knows_epochs=False)
        with pytest.raises(StaleEpoch):
            await broker.groups.fetch("g", member_id="b", epoch=1)
        assert await broker.groups.fetch("g", member_id="b", epoch=2) == {("t", 0): Committed(5)}


def files_of(broker: Broker) -> MemoryFiles:
    assert isinstance(broker.files, MemoryFiles)
    return broker.files


async def test_a_generation_survives_a_crash() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        me = await join(broker)
        await sync(broker, me.member_id, 1, {me.member_id: b"all"})
        after = files.crash()
    async with engine(after) as broker:
        group = broker.groups.groups["g"]
        assert isinstance(group, Group)
        broker.groups.heartbeat("g", me.member_id, None, 1)
        assert (await sync(broker, me.member_id, 1, {})).assignment == b"all"
        await broker.groups.commit("g", me.member_id, None, 1, {("t", 0): Committed(5)})
        assert (await join(broker, me.member_id)).generation == 2
        await sync(broker, me.member_id, 2, {me.member_id: b"more"})
        broker.groups.leave("g", me.member_id, None)
        broker.end_turn()
        await trio.sleep(0.05)
        after = files_of(broker).crash()
    async with engine(after) as broker:
        group = broker.groups.groups["g"]
        assert isinstance(group, Group)
        assert (group.state, group.generation, list(group.members)) == (State.EMPTY, 3, [])
        assert (await join(broker)).generation == 4


async def test_a_static_member_of_a_classic_group_survives_a_crash_and_is_replaced() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        me = await join(broker, instance="one")
        await sync(broker, me.member_id, 1, {me.member_id: b"all"})
        after = files.crash()
    async with engine(after) as broker:
        again = await join(broker, instance="one")
        assert (again.generation, again.member_id != me.member_id) == (1, True)
        after = files_of(broker).crash()
    async with engine(after) as broker:
        assert list(broker.groups.groups["g"].members) == [again.member_id]
        assert (await sync(broker, again.member_id, 1, {})).assignment == b"all"


async def test_a_static_member_whose_id_was_not_kept_when_its_coordinator_died_is_not_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        first = await join(broker, instance="one")
        await sync(broker, first.member_id, 1, {first.member_id: b"all"})
        broker.groups.leave("g", first.member_id, None)  # as when its session is over
        again = await join(broker, instance="one")
        wants_more = await join(broker, instance="one", wants=b"more")
        broker.groups.heartbeat("g", wants_more.member_id, "one", wants_more.generation)
        with pytest.raises(FencedInstance):
            broker.groups.heartbeat("g", again.member_id, "one", again.generation)
        after = files.crash()
    async with engine(after) as broker:
        assert list(broker.groups.groups["g"].members) == [first.member_id]
        with pytest.raises(UnknownMember):
            broker.groups.heartbeat("g", wants_more.member_id, "one", wants_more.generation)
        monkeypatch.setitem(globals(), "shift_ms", 1000)
        last = await join(broker, instance="one", wants=b"more")
        for fenced in (first, again, wants_more):
            with pytest.raises(FencedInstance):
                broker.groups.heartbeat("g", fenced.member_id, "one", last.generation)


async def test_a_group_whose_members_say_what_nobody_knows_changes_its_kind_only_without_them() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=1, config={})
        me = await join(broker)
        await sync(broker, me.member_id, 1, {})
        with pytest.raises(UnknownGroup):
            await beat(broker, "a")
        broker.groups.leave("g", me.member_id, None)
        with pytest.raises(UnknownGroup):
            await beat(broker, "a", 1)
        await beat(broker, "a")
        with pytest.raises(InconsistentProtocol):
            await join(broker)
        after = files.crash()
    async with engine(after) as broker:
        assert isinstance(broker.groups.groups["g"], ConsumerGroup)
        assert list(broker.groups.groups["g"].members) == ["a"]
        await beat(broker, "a", LEAVING)
        me = await join(broker)
        await sync(broker, me.member_id, 1, {})
        after = files_of(broker).crash()
    async with engine(after) as broker:
        assert list(broker.groups.groups["g"].members) == [me.member_id]


async def test_a_group_of_both_kinds_survives_a_crash_and_goes_back_to_its_members() -> None:
    files = MemoryFiles()
    wants = encode_subscription(Subscription(["t"]))
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=2, config={})
        me = await join(broker, wants=wants)
        await sync(broker, me.member_id, 1, {me.member_id: encode_assignment([("t", 0), ("t", 1)])})
        await broker.groups.commit("g", me.member_id, None, 1, {("t", 0): Committed(5)})
        assert (await beat(broker, "a")).epoch == 2
        with pytest.raises(RebalanceInProgress):
            broker.groups.heartbeat("g", me.member_id, None, 1)
        after = files.crash()
    async with engine(after) as broker:
        assert isinstance(broker.groups.groups["g"], MixedGroup)
        with pytest.raises(RebalanceInProgress):
            broker.groups.heartbeat("g", me.member_id, None, 1)
        assert (await join(broker, me.member_id, wants=wants)).generation == 2
        share = decode_assignment((await sync(broker, me.member_id, 2, {})).assignment)
        assert len(share) == 1
        await broker.groups.commit("g", me.member_id, None, 1, {share[0]: Committed(6)}, knows_epochs=False)
        with pytest.raises(IllegalGeneration):
            await broker.groups.commit("g", me.member_id, None, 1, {("t", 0): Committed(7), ("t", 1): Committed(7)})
        assert len((await beat(broker, "a", 2)).assignment or ()) == 1
        with pytest.raises(InconsistentProtocol):
            broker.groups.sync("g", me.member_id, None, 2, "consumer", "sticky", {}, lambda synced: None)
        after = files_of(broker).crash()
    async with engine(after) as broker:
        assert (await sync(broker, me.member_id, 2, {})).assignment == encode_assignment(share)
        await beat(broker, "a", LEAVING)
        group = broker.groups.groups["g"]
        assert isinstance(group, Group)
        assert (group.state, group.generation, list(group.members)) == (State.PREPARING, 2, [me.member_id])
        assert (await join(broker, me.member_id, wants=wants)).leader == me.member_id
        await sync(broker, me.member_id, 3, {me.member_id: encode_assignment(share)})
        after = files_of(broker).crash()
    async with engine(after) as broker:
        broker.groups.heartbeat("g", me.member_id, None, 3)
        assert list(broker.groups.groups["g"].members) == [me.member_id]


async def test_who_commits_with_a_generation_needs_a_group() -> None:
    async with engine() as broker:
        with pytest.raises(IllegalGeneration):
            await broker.groups.commit("g", "a", None, 1, {}, knows_epochs=False)
        with pytest.raises(UnknownGroup):
            await broker.groups.commit("g", "a", None, 1, {})
        await broker.groups.commit("g", "", None, -1, {("t", 0): Committed(1)})
        with pytest.raises(UnknownMember):
            await broker.groups.commit("g", "a", None, 1, {})


async def test_what_is_deleted_is_gone_after_a_crash_too() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=1, config={})
        await beat(broker, "a")
        await broker.groups.commit("g", "a", None, 1, {("t", 0): Committed(5)})
        with pytest.raises(GroupNotEmpty):
            await broker.groups.delete("g")
        await beat(broker, "a", LEAVING)
        await broker.groups.delete("g")
        assert broker.groups.names() == []
        after = files.crash()
    async with engine(after) as broker:
        assert (broker.groups.names(), broker.groups.groups) == ([], {})


async def test_offsets_of_groups_without_members_are_kept_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "shift_ms", 0)
    async with engine() as broker:
        await broker.create_topic("t", partitions=2, config={})
        await beat(broker, "a")
        await broker.groups.commit("g", "a", None, 1, {("t", 0): Committed(5)})
        await broker.groups.commit("other", "", None, -1, {("t", 1): Committed(5)})
        for days, left in ((6, ["g", "other"]), (8, ["g"])):
            monkeypatch.setitem(globals(), "shift_ms", days * DAY_MS)
            await broker.groups.expire()
            assert broker.groups.names() == left
        await beat(broker, "a", LEAVING)
        await broker.groups.expire()
        assert broker.groups.names() == ["g"], "it was used until now"
        monkeypatch.setitem(globals(), "shift_ms", 16 * DAY_MS)
        await broker.groups.expire()
        assert (broker.groups.names(), broker.groups.groups) == ([], {})


async def test_groups_without_members_and_offsets_are_forgotten() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=1, config={})
        await beat(broker, "a")
        await beat(broker, "a", LEAVING)
        await broker.groups.expire()
        assert broker.groups.groups == {}
        joining = Joining("", None, "c", "/h", 10_000, 20_000, "consumer", [("range", b"")], must_have_id=True)
        given: Joined = await answered(broker, lambda answer: broker.groups.join("awaited", joining, answer))
        await broker.groups.expire()
        again = joining._replace(member_id=given.member_id)
        joined: Joined = await answered(broker, lambda answer: broker.groups.join("awaited", again, answer))
        assert (joined.error, joined.member_id) == (None, given.member_id)
        broker.groups.leave("awaited", given.member_id, None)
        await broker.groups.expire()
        assert broker.groups.groups == {}
        after = files.crash()
    async with engine(after) as broker:
        assert broker.groups.groups == {}


async def test_nobody_hears_what_is_not_kept() -> None:
    inner = MemoryFiles()
    files = FaultyFiles(inner)
    async with engine(files, flush_retry_interval_ms=20) as broker:
        await broker.create_topic("t", partitions=1, config={})
        found: list[Beaten] = []
        said = {"rebalance_timeout_ms": 10_000, "topics": frozenset({"t"}), "owned": NOWHERE}
        files.failing["write"] = errno.EIO
        broker.groups.beat("g", Beat("a", JOINING, **said), found.append)
        broker.end_turn()
        with trio.fail_after(5):
            while not found:
                await trio.sleep(0.001)
        assert isinstance(found[0].error, CoordinatorUnavailable)
        broker.groups.beat("g", Beat("b", JOINING, **said), found.append)
        broker.end_turn()
        assert isinstance(found[1].error, CoordinatorUnavailable)
        assert "g" in broker.groups.saver.unsaved
        files.failing.clear()
        with trio.fail_after(5):
            while broker.groups.saver.unsaved:
                await trio.sleep(0.005)
                broker.end_turn()
        assert (await beat(broker, "a", 1)).epoch == 2
        kept = inner.crash()
    async with engine(kept) as broker:
        assert list(broker.groups.groups["g"].members) == ["a", "b"]


async def test_the_log_stays_short_however_often_members_come_and_go() -> None:
    files = MemoryFiles()
    async with engine(files) as broker:
        await broker.create_topic("t", partitions=100, config={})
        store = broker.groups.saver._store_of("g")
        assert store is not None
        log = store.log
        wide = frozenset({"t", *(f"no-topic-{number}" * 20 for number in range(100))})
        while log.log_start_offset == 0:
            await beat(broker, "a", topics=wide)
            await beat(broker, "a", LEAVING)
        assert log.log_end_offset < 600
        with trio.fail_after(60):
            while log.size_bytes > GARBAGE_BYTES_MIN:
                await trio.sleep(0.001)


async def test_who_leaves_while_groups_without_members_are_forgotten_is_told_that_it_has_left() -> None:
    async with engine() as broker:
        await broker.create_topic("t", partitions=1, config={})
        await beat(broker, "a")
        found: list[Beaten] = []
        broker.groups.beat("g", Beat("a", LEAVING), found.append)
        await broker.groups.expire()
        broker.end_turn()
        with trio.fail_after(5):
            while not found:
                await trio.sleep(0.001)
        assert found[0].error is None
        await broker.groups.expire()
        assert broker.groups.names() == []


async def test_what_a_kept_pattern_stands_for_is_looked_up_in_bites() -> None:
    files, slow = MemoryFiles(), "(.{0,30}){0,30}x"
    async with engine(files) as broker:
        for number in range(40):
            await broker.create_topic("ab" * 120 + str(number), partitions=1, config={})
        await beat(broker, "m", topics=frozenset(), pattern=slow)
    async with engine(files) as broker, trio.open_nursery() as nursery:
        others = Turns()
        nursery.start_soon(others.take)
        await trio.lowlevel.checkpoint()
        others.count = 0
        await broker.groups.prepare("g", Beat("m", 1))
        assert others.count >= 5
        nursery.cancel_scope.cancel()


async def test_a_group_that_is_deleted_does_not_come_back_when_a_transaction_is_committed() -> None:
    async def there() -> None:
        pass

    async with engine() as broker:
        offsets = broker.groups._store_of("g")
        assert offsets is not None
        await offsets.commit("g", {("t", 0): Committed(1)})
        await offsets.commit_pending("g", 7, {("t", 1): Committed(9)}, there)
        await broker.groups.delete("g")
        await offsets.end_pending("g", 7, committed=True)
        assert broker.groups.names() == []
