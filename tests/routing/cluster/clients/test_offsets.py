"""Offsets of groups in a cluster that nobody waits for."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from weakref import ref

import pytest
import trio
import trio.testing

from core_log.keyed_store import KeyedStore
from routing.cluster.clients.offsets import ReplicatedOffsets
from routing.cluster.metadata.log_names import offsets_log
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Committed, OffsetStore, Partition
from tests.support.home_cluster import HOMES, mesh, until

PLACES: list[Partition] = [("t", 0), ("t", 1)]


class Passed:
    """To another broker, without a link."""

    def __init__(self, there: ReplicatedOffsets) -> None:
        self._there = there

    async def commit_offsets(
        self, broker: int, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes]
    ) -> None:
        await self._there.commit_here(group, offsets, topic_ids)

    async def fetch_offsets(
        self, broker: int, group: str, partitions: list[Partition] | None
    ) -> dict[Partition, Committed]:
        return await self._there.fetch_here(group, partitions)


async def test_what_is_noted_while_a_commit_is_under_way_is_one_more() -> None:
    async with mesh() as brokers:
        offsets = brokers.members[1].broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        log = offsets_log(offsets.log_of("g"))
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        offsets = brokers.members[brokers.members[1].part.leader_of(log)[0]].broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        commit, commits = offsets.commit, []

        async def counted(group: str, positions: Mapping[Partition, Committed]) -> None:
            commits.append(dict(positions))
            await commit(group, positions)

        offsets.commit = counted  # type: ignore[method-assign]
        offsets.note("g", {PLACES[0]: Committed(0)})
        await until(lambda: commits)
        for position in range(100):
            offsets.note("g", {PLACES[position % 2]: Committed(position)})
        await until(lambda: not offsets._noted)
        noted = {PLACES[0]: Committed(98), PLACES[1]: Committed(99)}
        assert await offsets.fetch("g", PLACES) == noted
        assert commits == [{PLACES[0]: Committed(0)}, noted]


async def test_a_store_is_forgotten_when_another_broker_leads_it() -> None:
    async with mesh() as brokers:
        log = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        offsets = leader.broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        part = offsets._stores.parts[0]
        await until(lambda: part.store is not None)
        store, keyed, listeners = ref(part.store), ref(part.store._store), len(part.log.listeners)
        await leader.one.members.update(draining=True)
        await until(lambda: part.store is None and brokers.members[1].part.leader_of(log)[0] not in (None, leader.me))
        gc.collect()
        assert (store(), keyed()) == (None, None)
        assert len(part.log.listeners) <= listeners


async def test_what_groups_have_committed_is_read_in_a_thread_by_who_leads_it_next() -> None:
    read_in = []

    def read(keyed: KeyedStore) -> OffsetStore:
        read_in.append(threading.get_ident())
        return OffsetStore(keyed)

    async with mesh() as brokers:
        log = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        for member in brokers.members.values():
            assert isinstance(member.broker.offsets, ReplicatedOffsets)
            member.broker.offsets._stores._read = read
        await leader.one.members.update(draining=True)
        await until(lambda: read_in)
        assert threading.get_ident() not in read_in


async def test_who_leads_next_forgets_what_transactions_have_in_topics_that_were_deleted_meanwhile() -> None:
    """They were given to the group when the transaction was committed, for a topic of that name that was made later."""

    async def allowed() -> None:
        pass

    async with mesh() as brokers:
        offsets = brokers.members[1].broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        number = offsets.log_of("g")
        log = offsets_log(number)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        assert isinstance(leader.broker.offsets, ReplicatedOffsets)
        await leader.broker.offsets.commit_pending("g", 7, {("gone", 0): Committed(5)}, allowed)
        await leader.one.members.update(draining=True)
        parts = [
            m.broker.offsets._stores.parts[number]  # type: ignore[union-attr]
            for m in brokers.members.values()
            if m is not leader
        ]
        await until(lambda: any(part.store is not None for part in parts))
        (store,) = (part.store for part in parts if part.store is not None)
        assert store.pending.of("g", 7) == {}


@pytest.mark.parametrize("is_anew", [True, False])
async def test_who_leads_next_forgets_what_was_committed_in_a_topic_that_is_made_anew_meanwhile(is_anew: bool) -> None:
    """The group read the new one from there: what is before that came to nobody."""
    go_on = threading.Event()
    begun: list[object] = []

    def read(keyed: KeyedStore) -> OffsetStore:
        begun.append(keyed)
        assert go_on.wait(30)
        return OffsetStore(keyed)

    async with mesh() as brokers:
        members = list(brokers.members.values())
        log = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in members))
        leader = brokers.members[members[0].part.leader_of(log)[0]]
        offsets = leader.broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        group = next(g for g in map(str, range(1000)) if offsets.log_of(g) == 0)
        for name in ("t", "u"):
            await leader.broker.create_topic(name)
        await until(lambda: offsets.store_of(group) is not None)
        await offsets.commit(group, {("t", 0): Committed(5), ("u", 0): Committed(6)})
        next_ones = [m for m in members if m is not leader]
        for member in next_ones:
            member.broker.offsets._stores._read = read  # type: ignore[union-attr]
        await leader.one.members.update(draining=True)
        await until(lambda: begun)
        if is_anew:
            await leader.broker.delete_topic("t")
            await leader.broker.create_topic("t")
            topic_id = leader.broker.topics["t"].id
            await until(lambda: all("t" in m.broker.topics and m.broker.topics["t"].id == topic_id for m in members))
        go_on.set()
        await until(lambda: any(m.broker.offsets.store_of(group) is not None for m in next_ones))  # type: ignore[union-attr]
        (known,) = (found for m in next_ones if (found := m.broker.offsets.known(group)))
        assert known == {("u", 0): Committed(6)} | ({} if is_anew else {("t", 0): Committed(5)})


async def test_a_commit_that_waits_for_a_leader_commits_nothing_in_topics_that_are_deleted_meanwhile() -> None:
    """A topic of that name that was made later was read from there: what was before was passed over."""
    async with mesh() as brokers, trio.open_nursery() as nursery:
        log = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        offsets = leader.broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        group = next(g for g in map(str, range(1000)) if offsets.log_of(g) == 0)
        await until(lambda: offsets.store_of(group) is not None)
        may_append = leader.part.may_append
        leader.part.may_append = lambda log: False  # type: ignore[method-assign]
        for commit in (offsets.commit, offsets.commit_here):
            nursery.start_soon(commit, group, dict.fromkeys([("gone", 0), PLACES[0]], Committed(5)))
            nursery.start_soon(commit, group, {("gone", 1): Committed(5)})
        nursery.start_soon(offsets.commit_pending, group, 7, {("gone", 3): Committed(5)}, trio.lowlevel.checkpoint)
        offsets.note(group, {("gone", 2): Committed(5)})
        offsets.note(group, {("gone", 2): Committed(6)})
        await trio.testing.wait_all_tasks_blocked()
        offsets.forget_topic("gone")
        leader.part.may_append = may_append  # type: ignore[method-assign]
        with trio.fail_after(5):
            while nursery.child_tasks:
                await trio.sleep(0.01)
        assert offsets.known(group) == {PLACES[0]: Committed(5)}
        assert not offsets.unstable(group)


async def test_offsets_of_a_former_topic_that_another_broker_passes_on_are_refused() -> None:
    """It had not heard that the topic was made anew: what was before them in the new one came to nobody."""
    async with mesh() as brokers:
        members = brokers.members.values()
        log = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in members))
        leader = brokers.members[brokers.members[1].part.leader_of(log)[0]]
        behind = next(m for m in members if m is not leader)
        there, here = leader.broker.offsets, behind.broker.offsets
        assert isinstance(there, ReplicatedOffsets)
        assert isinstance(here, ReplicatedOffsets)
        group = next(g for g in map(str, range(1000)) if there.log_of(g) == 0)
        await leader.broker.create_topic("t")
        await until(lambda: "t" in behind.broker.topics and there.store_of(group) is not None)
        here.forward = Passed(there)
        await here.commit(group, {("t", 0): Committed(5)})
        assert await there.fetch(group) == {("t", 0): Committed(5)}
        here._topic_id = lambda name: b"former"
        with pytest.raises(StorageUnavailable, match="is another one"):
            await here.commit(group, {("t", 0): Committed(9)})
        assert await there.fetch(group) == {("t", 0): Committed(5)}


async def test_who_begins_to_lead_several_reads_one_at_a_time() -> None:
    begun: list[object] = []
    go_on = threading.Event()

    def read(keyed: KeyedStore) -> OffsetStore:
        begun.append(keyed)
        assert go_on.wait(30)
        return OffsetStore(keyed)

    async with mesh() as brokers:
        logs = [offsets_log(index) for index in range(HOMES)]
        members = list(brokers.members.values())
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in members for log in logs))
        led = {member: len([log for log in logs if member.part.role_of(log) is not None]) for member in members}
        last = min(members, key=led.__getitem__)
        assert isinstance(last.broker.offsets, ReplicatedOffsets)
        stores = last.broker.offsets._stores
        stores._read = read
        for member in members:
            if member is not last:
                await member.one.members.update(draining=True)
        await until(lambda: all(last.part.role_of(log) is not None for log in logs))
        await until(lambda: begun and stores._reading.statistics().tasks_waiting)
        assert len(begun) == 1
        go_on.set()
        await until(lambda: len(begun) == HOMES - led[last])


async def test_what_is_committed_is_not_forgotten_by_who_reads_a_log_twice_as_its_lease_was_late() -> None:
    """The lease is late while the log is read, and renewed before it is: what was read counts for nothing then."""
    turns = [threading.Event(), threading.Event()]
    begun: list[object] = []

    def read(keyed: KeyedStore) -> OffsetStore:
        begun.append(keyed)
        found = OffsetStore(keyed)
        assert turns[len(begun) - 1].wait(30)
        return found

    async with mesh() as brokers:
        members = list(brokers.members.values())
        name = offsets_log(0)
        await until(lambda: all(len(m.part.state_of(name).isr) == 3 for m in members))
        leader = brokers.members[members[0].part.leader_of(name)[0]]
        offsets = leader.broker.offsets
        assert isinstance(offsets, ReplicatedOffsets)
        stores, group = offsets._stores, next(g for g in map(str, range(1000)) if offsets.log_of(g) == 0)
        await until(lambda: stores.parts[0].store is not None)
        stores._read = read
        may_append = leader.part.may_append

        def lapse() -> None:
            for serves in (lambda log: False, may_append):
                leader.part.may_append = serves
                stores._look(0, name)

        lapse()
        await until(lambda: len(begun) == 1)
        lapse()
        turns[0].set()
        await until(lambda: len(begun) == 2)
        with trio.move_on_after(0.5):  # it may well wait
            await offsets.commit(group, {PLACES[0]: Committed(7)})
        confirmed = offsets.known(group)
        turns[1].set()
        await until(lambda: stores.parts[0].keyed is begun[1])
        assert offsets.known(group) == confirmed
        await offsets.commit(group, {PLACES[0]: Committed(8)})
        assert offsets.known(group) == {PLACES[0]: Committed(8)}


async def test_the_end_of_a_transaction_that_another_leader_may_have_done_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited here until this broker led; meanwhile the producer's next transaction has committed offsets."""
    async with mesh(1) as brokers:
        offsets, cluster = brokers.members[1].broker.offsets, brokers.members[1].part
        assert isinstance(offsets, ReplicatedOffsets)
        await until(offsets.all_read)
        part, log = offsets._stores.parts[offsets.log_of("g")], offsets_log(offsets.log_of("g"))
        store, leader_of = part.store, cluster.leader_of
        assert store is not None
        monkeypatch.setattr(part, "store", None)

        async def told() -> None:
            with pytest.raises(StorageUnavailable, match="were led elsewhere"):
                await offsets.end_pending("g", 7, committed=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(told)
            await trio.testing.wait_all_tasks_blocked()
            leader, epoch = leader_of(log)
            monkeypatch.setattr(
                cluster, "leader_of", lambda name: (leader, epoch + 2) if name == log else leader_of(name)
            )
            monkeypatch.setattr(part, "store", store)
        assert not store.pending.ended
        await offsets.end_pending("g", 7, committed=True)
        assert store.pending.ended == 1
