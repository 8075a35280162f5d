"""Leaders of logs as brokers come and go: a controller on the model of etcd, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard
from core_log.replication.state import BrokerState, LogState, broker_key, decode, encode, log_key
from routing.cluster.metadata import records
from routing.cluster.metadata.elections import BATCH_LOGS, Elections, Known, decisions
from tests.routing.cluster.metadata.test_members import One, cluster, until
from tests.simulation.etcd_model import EtcdModel


async def start(
    nursery: trio.Nursery, model: EtcdModel, number: int, files: Any = None, *, internal: int = 0
) -> tuple[One, Elections]:
    """A broker of a cluster that has so many homes, and partitions of group offsets."""
    one = One(model, number, files, homes=internal, offsets=internal)
    elections = Elections(one.store, one.members, one.candidate)
    await one.start(nursery)
    one.beside(nursery, elections.run)
    return one, elections


def epochs_of(one: One) -> dict[int, int]:
    return {broker.broker_id: broker.epoch for broker in one.members.brokers.values()}


async def make_logs(one: One, count: int, *, min_insync: int = 2, first: int = 0) -> list[str]:
    """Logs of three replicas each, all in sync, each led by the first of them."""
    epochs = epochs_of(one)
    names = [f"t-{number}" for number in range(first, first + count)]
    for start in range(0, count, 100):
        puts = []
        for number, name in enumerate(names[start : start + 100], start):
            replicas = tuple((number + place) % 3 + 1 for place in range(3))
            state = LogState(
                replicas=replicas,
                isr=tuple((broker, epochs[broker]) for broker in replicas),
                leader=replicas[0],
                leader_broker_epoch=epochs[replicas[0]],
                leader_epoch=1,
                min_insync=min_insync,
            )
            puts.append((log_key(b"", name), encode(state)))
        await one.store.change([], puts)
    return names


def states(elections: Elections) -> dict[str, LogState]:
    return {log: known.state for log, known in elections.logs.items()}


def test_keys_are_the_same_everywhere() -> None:
    assert broker_key(b"", 7) == records.broker_key(7)


def test_what_is_as_it_should_be_is_not_written() -> None:
    state = LogState(replicas=(1, 2), isr=((1, 5), (2, 6)), leader=1, leader_broker_epoch=5, leader_epoch=3)
    known = {"t": Known(state, 9)}
    both = {1: BrokerState(5), 2: BrokerState(6)}
    assert decisions(["t", "gone"], known, both) == []
    ((guard, found),) = decisions(["t"], known, {2: BrokerState(6)})
    assert guard == Guard(b"p/t", 9)
    assert (found.leader, found.leader_epoch, found.isr) == (2, 4, ((2, 6),))
    ((_, again),) = decisions(["t"], known, {1: BrokerState(8), 2: BrokerState(6)})
    assert (again.leader_epoch, again.leader_broker_epoch) == (4, {1: 8, 2: 6}[again.leader or 0])


async def test_a_dead_brokers_logs_get_other_leaders(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await until(lambda: ones[0][0].candidate.epoch)
        names = await make_logs(ones[0][0], 1000)
        ones[2][0].kill()
        began = trio.current_time()
        await until(lambda: all(state.leader in (1, 2) for state in states(ones[1][1]).values()))
        assert trio.current_time() - began < 5
        found = states(ones[1][1])
        assert len(found) == len(names)
        for number, name in enumerate(names):
            state, led_by_the_dead = found[name], number % 3 == 2
            assert state.isr_brokers == [broker for broker in state.replicas if broker != 3]
            assert state.leader_epoch == (2 if led_by_the_dead else 1)
        assert sorted(ones[1][1].under_replicated) == sorted(names)
        assert not ones[1][1].leaderless


async def test_the_controller_dies_with_its_logs(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await until(lambda: ones[0][0].candidate.epoch)
        await make_logs(ones[0][0], 30)
        ones[0][0].kill()
        await until(lambda: all(state.leader in (2, 3) for state in states(ones[1][1]).values()))
        # The other one goes as well: below the minimum nobody may confirm, who left is remembered.
        leader = next(one for one, _ in ones[1:] if one.candidate.epoch)
        (last, elections) = next(pair for pair in ones[1:] if pair[0] is not leader)
        leader.kill()
        await until(lambda: all(state.leader == last.members.broker_id for state in states(elections).values()))
        for state in states(elections).values():
            assert state.isr_brokers == [last.members.broker_id]
            assert dict(state.elr).keys() == {leader.members.broker_id}
        last.kill()
        await trio.sleep(5)
        # All gone; who comes first and has everything leads, the one that fell behind first does not.
        one, elections = await start(nursery, model, 1, ones[0][0].files)
        await trio.sleep(5)
        assert len(elections.leaderless) == 30
        _, elections = await start(nursery, model, last.members.broker_id, last.files)
        await until(lambda: not elections.leaderless)
        assert {state.leader for state in states(elections).values()} == {last.members.broker_id}
        assert one.members.epoch


async def test_a_process_that_restarts_within_its_lease_leads_in_another_epoch(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await make_logs(ones[0][0], 3)
        ones[1][0].kill()
        again, _ = await start(nursery, model, 2, ones[1][0].files)
        await until(lambda: states(ones[0][1])["t-1"].leader_epoch > 1)
        for name in ("t-0", "t-1", "t-2"):
            state = states(ones[0][1])[name]
            assert state.leader is not None
            assert state.leader_broker_epoch == epochs_of(again)[state.leader]


async def test_an_old_controller_writes_nothing(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await until(lambda: ones[0][0].candidate.epoch)
        await make_logs(ones[0][0], 1)
        guard = ones[0][0].candidate.guard
        ones[0][0].transport.cut_off = True
        model.notify()
        await until(lambda: states(ones[1][1])["t-0"].leader != 1)
        new = states(ones[1][1])["t-0"]
        with pytest.raises(Conflict):
            await ones[1][0].store.change([guard], [(log_key(b"", "t-0"), encode(states(ones[0][1])["t-0"]))])
        ones[0][0].transport.cut_off = False
        await until(lambda: ones[0][0].members.epoch > guard.create_revision)  # type: ignore[operator]
        await trio.sleep(5)
        assert states(ones[0][1]) == states(ones[1][1])
        assert states(ones[0][1])["t-0"].leader_epoch == new.leader_epoch


async def test_who_is_not_the_controller_writes_nothing_while_there_is_none(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1, stands=False).start(nursery)
        assert one.candidate.controller is None
        with pytest.raises(Conflict):
            await one.store.change([one.candidate.guard], [(log_key(b"", "t-0"), b"")])


async def test_logs_whose_leaders_change_them_all_the_time_do_not_hold_up_the_others(
    autojump_clock: MockClock,
) -> None:
    model, choose = EtcdModel(), random.Random(5)
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await until(lambda: ones[0][0].candidate.epoch)
        names = await make_logs(ones[0][0], 3 * BATCH_LOGS)

        async def flicker(one: One, elections: Elections) -> None:
            while True:
                log = choose.choice(names)
                known = elections.logs[log]
                if known.state.leader == one.members.broker_id:
                    isr = known.state.isr[:2] if len(known.state.isr) > 2 else known.state.isr
                    state = msgspec.structs.replace(known.state, isr=isr, min_insync=choose.choice([1, 2]))
                    guard = Guard(log_key(b"", log), known.mod_revision)
                    try:
                        await one.store.change([guard, one.members.guard], [(guard.key, encode(state))])
                    except (Conflict, MetadataUnavailable):
                        pass
                await trio.sleep(choose.expovariate(100))

        async with trio.open_nursery() as busy:
            for one, elections in ones[:2]:
                busy.start_soon(flicker, one, elections)
            ones[2][0].kill()
            await until(lambda: all(state.leader in (1, 2) for state in states(ones[1][1]).values()), 20)
            busy.cancel_scope.cancel()
        stored = {key.rpartition(b"/")[2].decode(): decode(kv.value) for key, kv in model.keys.items() if b"/p/" in key}
        await until(lambda: states(ones[0][1]) == stored)


async def test_a_state_that_nobody_understands_stops_nothing(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        ones = [await start(nursery, model, number) for number in (1, 2, 3)]
        await make_logs(ones[0][0], 6)
        await ones[0][0].store.change([], [(log_key(b"", "t-2"), b"\xc1"), (log_key(b"", "t-3"), None)])
        ones[2][0].kill()
        await until(lambda: states(ones[0][1])["t-5"].leader in (1, 2))
        assert sorted(states(ones[0][1])) == ["t-0", "t-1", "t-4", "t-5"]


async def test_the_logs_that_every_cluster_has_are_made_and_grow_with_it(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, elections = await start(nursery, model, 1, internal=3)
        await until(lambda: len(elections.logs) == 10)
        kinds = ("home", "offsets", "transactions")
        assert set(elections.logs) == {f"{kind}-{n}" for kind in kinds for n in range(3)} | {"retained-0"}
        for known in elections.logs.values():
            state = known.state
            assert (state.replicas, state.leader, state.leader_epoch, state.min_insync) == ((1,), 1, 1, 1)
        await start(nursery, model, 2, internal=9)
        await until(lambda: {known.state.replicas for known in elections.logs.values()} == {(1, 2), (2, 1)})
        await start(nursery, model, 3)
        await start(nursery, model, 4)
        await until(lambda: all(len(known.state.replicas) == 3 for known in elections.logs.values()))
        await trio.sleep(5)
        assert len(elections.logs) == 10
        for known in elections.logs.values():
            assert known.state.isr_brokers == [1], "a replica joins when its leader finds that it has everything"
            assert known.state.min_insync == 1
        state = elections.logs["home-1"].state
        assert state.replicas == (2, 3, 1)
        epochs = epochs_of(one)
        joined = msgspec.structs.replace(state, isr=((1, epochs[1]), (2, epochs[2])))
        await one.store.change([], [(log_key(b"", "home-1"), encode(joined))])
        await until(lambda: elections.logs["home-1"].state.min_insync == 2)
        assert elections.logs["home-1"].state.isr == joined.isr
