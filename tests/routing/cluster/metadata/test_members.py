"""Joining, staying and leaving, and who is the controller; on the model of etcd, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from core_log.files import MemoryFiles
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from routing.cluster.metadata.controller import Candidate
from routing.cluster.metadata.elections import broker_states
from routing.cluster.metadata.identity import load_identity
from routing.cluster.metadata.joining import ClusterRefused
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.records import (
    FORMAT,
    META,
    BrokerRecord,
    ClusterMeta,
    broker_key,
    decode,
    directory_key,
    encode,
)
from tests.simulation.etcd_model import EtcdModel, ModelTransport


async def direct(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


class One:
    """A broker as far as its membership goes: what lies on its disk outlives the process."""

    def __init__(self, model: EtcdModel, broker_id: int, files: MemoryFiles | None = None, **differs: Any) -> None:
        self.files = files if files is not None else MemoryFiles()
        self.files.make_directory("")
        self.transport = ModelTransport(model)
        self.stands = differs.get("stands", True)
        cluster = differs.get("cluster", "c")
        self.store = EtcdStore(EtcdClient(self.transport), b"/millrace/" + cluster.encode() + b"/")
        address = differs.get("peer", f"10.0.0.{broker_id}:9095")
        record = BrokerRecord("", differs.get("boot", "boot"), "1.0", {"peer": address})
        self.members = Members(
            self.store,
            self.files,
            cluster=cluster,
            broker_id=broker_id,
            record=record,
            homes=differs.get("homes", 6),
            offsets=differs.get("offsets", 8),
            offload=direct,
            accept_old_data=differs.get("accept_old_data", False),
        )
        self.candidate = Candidate(self.store, self.members)
        self._scopes = [trio.CancelScope(), trio.CancelScope()]

    async def start(self, nursery: trio.Nursery) -> One:
        """Join and stay; raises what `join` raises."""
        await nursery.start(self._run_store)
        try:
            await self.members.join()
        except BaseException:
            self.kill()
            raise
        nursery.start_soon(self._run)
        return self

    async def _run_store(self, task_status: trio.TaskStatus[None]) -> None:
        with self._scopes[0]:
            await self.store.run(task_status)

    async def _run(self) -> None:
        with self._scopes[1]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.members.run)
                if self.stands:
                    nursery.start_soon(self.candidate.run)

    def beside(self, nursery: trio.Nursery, run: Callable[[], Any]) -> None:
        """Have something else run as long as this broker does."""
        scope = trio.CancelScope()
        self._scopes.append(scope)

        async def within() -> None:
            with scope:
                await run()

        nursery.start_soon(within)

    def kill(self) -> None:
        for scope in self._scopes:
            scope.cancel()


@asynccontextmanager
async def cluster(model: EtcdModel) -> AsyncIterator[trio.Nursery]:
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.run)
            yield nursery
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def seen(one: One) -> dict[int, int]:
    return {broker.broker_id: broker.epoch for broker in one.members.brokers.values()}


async def test_three_brokers_make_a_cluster_at_once_and_know_each_other(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [One(model, number) for number in (1, 2, 3)]
        async with trio.open_nursery() as starting:
            for one in ones:
                starting.start_soon(one.start, nursery)
        await until(lambda: all(len(seen(one)) == 3 for one in ones))
        assert len({one.members.meta.cluster_id for one in ones}) == 1
        assert seen(ones[0]) == seen(ones[1]) == seen(ones[2])
        assert sorted(seen(ones[0]).values()) == sorted(one.members.epoch for one in ones)
        await until(lambda: all(one.candidate.controller for one in ones))
        assert len({one.candidate.controller for one in ones}) == 1
        assert [bool(one.candidate.epoch) for one in ones].count(True) == 1
        for one in ones:
            identity = load_identity(one.files)
            assert identity is not None
            assert (identity.cluster_id, identity.lease_id) == (one.members.meta.cluster_id, one.store.lease_id)
        assert ones[0].members.meta.homes == 6


async def test_a_controller_that_dies_is_replaced_and_can_write_nothing(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other = [await One(model, number).start(nursery) for number in (1, 2)]
        await until(lambda: one.candidate.epoch)
        first, guard = one.candidate.epoch, one.candidate.guard
        one.transport.cut_off = True
        began = trio.current_time()
        await until(lambda: other.candidate.epoch)
        assert 2 < trio.current_time() - began < 4.5
        assert other.candidate.epoch > first
        assert list(seen(other)) == [2]
        with pytest.raises(Exception, match="otherwise"):
            await other.store.change([guard], [(b"p/x", b"")])
        await other.store.change([other.candidate.guard], [(b"p/x", b"")])
        assert one.store.lease_deadline < trio.current_time(), "the old one knows by the clock"
        epoch = one.members.epoch
        one.transport.cut_off = False
        await until(lambda: one.members.epoch not in (0, epoch))
        await until(lambda: seen(one) == seen(other) and len(seen(one)) == 2)
        assert (one.candidate.controller, one.candidate.epoch) == (2, 0)


async def test_a_restart_within_the_lease_is_another_process_at_once(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        other = await One(model, 2).start(nursery)
        one = await One(model, 1).start(nursery)
        epoch = one.members.epoch
        one.kill()
        began = trio.current_time()
        again = await One(model, 1, one.files).start(nursery)
        assert trio.current_time() - began < 1
        assert again.members.epoch > epoch
        await until(lambda: seen(other) == seen(again))
        # Not at the address of the one before: that may be a copy of its directory, while it lives.
        again.kill()
        began = trio.current_time()
        moved = await One(model, 1, one.files, peer="10.0.0.9:9095").start(nursery)
        assert 2 < trio.current_time() - began < 6
        assert moved.members.brokers[1].record.addresses["peer"] == "10.0.0.9:9095"


async def test_leaving_frees_everything_at_once(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other = [await One(model, number).start(nursery) for number in (1, 2)]
        await until(lambda: one.candidate.epoch)
        began = trio.current_time()
        await one.members.leave()
        one.kill()
        await until(lambda: other.candidate.epoch and list(seen(other)) == [2])
        assert trio.current_time() - began < 0.5
        await One(model, 1, one.files).start(nursery)


async def test_a_broker_says_other_things_of_itself(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other = [await One(model, number).start(nursery) for number in (1, 2)]
        epoch = one.members.epoch
        await one.members.update(draining=True, unreachable=(3,))
        await until(lambda: other.members.brokers[1].record.draining)
        await one.members.update(draining=False)
        await until(lambda: not other.members.brokers[1].record.draining)
        assert other.members.brokers[1].record.unreachable == (3,)
        assert broker_states(other.members.brokers.values())[1].unreachable == (3,)
        assert one.members.epoch == epoch == other.members.brokers[1].epoch
        revision = model.revision
        await one.members.update(draining=False)
        assert model.revision == revision, "that is no news"


async def refused(nursery: trio.Nursery, one: One) -> str:
    await trio.sleep(1)  # until there is a controller
    before, revision = one.files.list(""), one.transport.model.revision
    content = load_identity(one.files)
    with pytest.raises(ClusterRefused) as caught:
        await one.start(nursery)
    assert (one.files.list(""), load_identity(one.files)) == (before, content), "nothing was changed"
    assert one.transport.model.revision == revision
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_who_is_refused_is_told_why(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        told = await refused(nursery, One(model, 1))
        assert told.startswith("broker id 1 of cluster 'c' belongs to another data directory: choose another id, or")
        told = await refused(nursery, One(model, 1, one.files, cluster="d"))
        assert told == "the data directory belongs to cluster 'c', not to 'd'"
        told = await refused(nursery, One(model, 2, one.files))
        assert told == "the data directory belongs to broker 1, not to 2"
        single = MemoryFiles()
        single.make_directory("catalog/0")
        told = await refused(nursery, One(model, 2, single))
        assert told.startswith("the data directory holds the data of a single broker")
        broken = MemoryFiles()
        broken.make_directory("")
        broken.open("cluster.json").pwritev([b"{"], 0)
        with pytest.raises(ClusterRefused, match=r"cluster.json is damaged"):
            await One(model, 2, broken).start(nursery)
        await one.members.leave()
        one.files.remove("cluster.json")
        with pytest.raises(
            ClusterRefused, match=r"cluster.json is missing in what is the directory of a cluster's member"
        ):
            await One(model, 1, one.files).start(nursery)


async def test_who_comes_with_what_etcd_does_not_know_is_refused(autojump_clock: MockClock) -> None:
    model, another = EtcdModel(), EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        await one.members.leave()
        one.kill()
        told = await refused(nursery, One(another, 1, one.files))
        assert told.startswith("etcd knows no cluster 'c', of which this data directory is a member")
        nursery.start_soon(another.run)
        await One(another, 2).start(nursery)
        told = await refused(nursery, One(another, 1, one.files))
        assert told.startswith("etcd has another cluster 'c' (id ")
        two = await One(model, 2).start(nursery)
        await two.store.change([], [(directory_key(1), None)])
        told = await refused(nursery, One(model, 1, one.files))
        assert told == "broker 1 was removed from cluster 'c': start it with an empty data directory"
        newer = msgspec.structs.replace(decode(two.store.get(META).value, ClusterMeta), format=FORMAT + 1)  # type: ignore[union-attr]
        await two.store.change([], [(META, encode(newer))])
        assert "update Millrace" in await refused(nursery, One(model, 3))
        await two.store.change([], [(META, encode(msgspec.structs.replace(newer, format=1, state="importing x")))])
        told = "cluster 'c' is not ready yet: it is being made of another data directory (importing x)"
        assert await refused(nursery, One(model, 3)) == told
        await two.store.change([], [(META, b"\xc1")])
        assert "is not understood" in await refused(nursery, One(model, 3))


async def test_of_two_that_want_one_id_at_once_one_gets_it(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [One(model, 1) for _ in range(4)]
        told: list[str] = []

        async def start(one: One) -> None:
            try:
                await one.start(nursery)
            except ClusterRefused as error:
                told.append(str(error))

        async with trio.open_nursery() as starting:
            for one in ones:
                starting.start_soon(start, one)
        assert len(told) == 3
        assert all("belongs to another data directory" in text for text in told)
        (winner,) = [one for one in ones if one.members.epoch]
        assert seen(winner) == {1: winner.members.epoch}
        loser = next(one for one in ones if one is not winner)
        again = await One(model, 2, loser.files).start(nursery)
        assert again.members.epoch, "a directory that was refused may be another broker's"


async def test_a_copy_of_a_directory_does_not_push_out_the_broker_that_lives(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        epoch = one.members.epoch
        copy = One(model, 1, one.files.crash(), peer="10.9.9.9:9095")
        with pytest.raises(ClusterRefused, match=r"is taken by the broker at 10\.0\.0\.1:9095"):
            await copy.start(nursery)
        assert one.members.epoch == epoch


async def test_a_start_that_breaks_off_anywhere_goes_on(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = MemoryFiles()
        for lost in range(12):
            one = One(model, 1, files, stands=False)
            # The next answer but so many is lost, and with it the process.
            one.store.change = _breaking(one, lost)  # type: ignore[method-assign]
            try:
                await one.start(nursery)
            except BrokenPipeError:
                one.kill()
                files = files.crash()
                continue
            one.kill()
        final = await One(model, 1, files).start(nursery)
        assert list(seen(final)) == [1]
        assert [key for key in model.keys if b"directories" in key] == [b"/millrace/c/directories/1"]


def _breaking(one: One, after: int) -> Any:
    change, calls = one.store.change, 0

    async def broken(*arguments: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == after // 2 + 1 and after % 2:
            raise BrokenPipeError
        revision = await change(*arguments, **options)
        if calls == after // 2 + 1:
            raise BrokenPipeError
        return revision

    return broken


async def test_a_cluster_whose_etcd_was_away_comes_back_by_itself(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await One(model, number).start(nursery) for number in (1, 2, 3)]
        epochs = [one.members.epoch for one in ones]
        model.fault(0, down=True)
        await trio.sleep(60)
        for one in ones:
            assert one.store.lease_deadline < trio.current_time()
        model.fault(0, down=False)
        await until(lambda: all(one.members.epoch > epoch for one, epoch in zip(ones, epochs)), 20)
        await until(lambda: all(len(seen(one)) == 3 for one in ones))
        await until(lambda: [bool(one.candidate.epoch) for one in ones].count(True) == 1)
        assert ones[0].store.get(broker_key(1)) is not None


async def test_a_broker_that_has_much_to_hear_before_its_registration_goes_registers_anew(
    autojump_clock: MockClock,
) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other = [await One(model, number).start(nursery) for number in (1, 2)]
        epoch = one.members.epoch
        one.transport.cut_off = True
        for number in range(10):
            await other.store.change([], [(b"x/%d" % key, b"%d" % number) for key in range(120)])
        await until(lambda: 1 not in seen(other))
        model.event_s = 0.02
        one.transport.cut_off = False
        await until(lambda: one.members.epoch > epoch, 60)
        await until(lambda: seen(one) == seen(other) == {1: one.members.epoch, 2: other.members.epoch})


async def test_a_broker_whose_registration_is_gone_registers_anew_though_its_lease_lives(
    autojump_clock: MockClock,
) -> None:
    """As when somebody removed the key by hand, or etcd was put back to right before it was made."""
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other = [await One(model, number).start(nursery) for number in (1, 2)]
        epoch, lease_id = one.members.epoch, one.store.lease_id
        await other.store.change([], [(broker_key(1), None)])
        await until(lambda: one.members.epoch > epoch)
        assert one.store.lease_id == lease_id
        await until(lambda: seen(one) == seen(other) == {1: one.members.epoch, 2: other.members.epoch})
        await one.members.leave()
        await trio.sleep(10)
        assert list(seen(other)) == [2], "who leaves does not come back"


async def test_clients_are_told_of_all_brokers_while_these_register_anew(autojump_clock: MockClock) -> None:
    """All leases run out while etcd is away. A client that is told of no broker gives up all that it knows."""
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await One(model, number).start(nursery) for number in (1, 2, 3)]
        await until(lambda: all(len(seen(one)) == 3 for one in ones))
        fewest = {one.members.broker_id: 3 for one in ones}

        def note() -> None:
            for one in ones:
                number = one.members.broker_id
                fewest[number] = min(fewest[number], len(one.members.brokers))
                assert [broker.broker_id for broker in one.members.advertised] == [1, 2, 3]

        for one in ones:
            one.members.listeners.append(note)
        model.fault(0, down=True)
        await trio.sleep(60)
        model.fault(0, down=False)
        await trio.sleep(20)
        assert min(fewest.values()) < 3, "their registrations were gone for a while"
        note()


async def test_clients_are_not_told_of_a_broker_for_long_that_died_nor_at_all_of_one_that_stopped(
    autojump_clock: MockClock,
) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, other, third = [await One(model, number).start(nursery) for number in (1, 2, 3)]
        await until(lambda: len(seen(one)) == 3)

        def told() -> list[int]:
            return [broker.broker_id for broker in one.members.advertised]

        await third.members.update(draining=True)
        await until(lambda: one.members.brokers[3].draining)
        await third.members.leave()
        third.kill()
        await until(lambda: len(seen(one)) == 2)
        assert told() == [1, 2]
        other.kill()
        await until(lambda: len(seen(one)) == 1)
        assert told() == [1, 2]
        await trio.sleep(10)
        assert told() == [1]
