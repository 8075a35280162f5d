"""What the controller makes of a log, case by case: who is in the ISR, in the ELR, and leads."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from core_log.replication.election import elect, without
from core_log.replication.state import BrokerState, LogState, Members, decode, encode, is_trusted


def state(isr: Members, elr: Members = (), *, leader: int | None = 1, min_insync: int = 2) -> LogState:
    """A log of three, led in epoch 5 by broker 1, whose broker epoch is 10; broker n's is 10 * n."""
    broker_epoch = leader * 10 if leader is not None else 0
    return LogState(
        replicas=(1, 2, 3),
        isr=isr,
        elr=elr,
        leader=leader,
        leader_broker_epoch=broker_epoch,
        leader_epoch=5,
        min_insync=min_insync,
    )


ALL: Members = ((1, 10), (2, 20), (3, 30))
B1, B2, B3 = BrokerState(10), BrokerState(20), BrokerState(30)
LOST = ("x",)

CASES = [
    # before, who is there, after: leader, epoch, ISR, ELR (None: as it was)
    (state(ALL), {1: B1, 2: B2, 3: B3}, None),
    (state(ALL), {1: B1, 2: B2}, (1, 5, ((1, 10), (2, 20)), ())),
    (state(ALL), {1: B1}, (1, 5, ((1, 10),), ((2, 20), (3, 30)))),
    (state(ALL), {2: B2, 3: B3}, (2, 6, ((2, 20), (3, 30)), ())),
    (state(ALL), {3: B3}, (3, 6, ((3, 30),), ((1, 10), (2, 20)))),
    (state(ALL), {}, (None, 5, ALL, ())),
    (state(ALL, leader=None), {}, None),
    (state(ALL, leader=None), {2: BrokerState(21)}, (2, 6, ((2, 20),), ((1, 10), (3, 30)))),
    # the same broker in another process
    (state(ALL), {1: BrokerState(11), 2: B2, 3: B3}, (1, 6, ALL, ())),
    # it has lost the log: out, even of an ISR of one; another member that came back with it stays
    (state(ALL), {1: BrokerState(11, LOST), 2: B2, 3: B3}, (2, 6, ((2, 20), (3, 30)), ())),
    (state(((1, 10),)), {1: BrokerState(11, LOST), 2: B2, 3: B3}, (None, 5, (), ())),
    (state(ALL), {1: B1, 2: BrokerState(21, LOST), 3: BrokerState(31, ["y"])}, (1, 5, ((1, 10), (3, 30)), ())),
    # it could not open the log: as if it were away, until it can
    (state(ALL), {1: BrokerState(11, unopened=["x"]), 2: B2, 3: B3}, (2, 6, ((2, 20), (3, 30)), ())),
    (state(((1, 10),)), {1: BrokerState(11, unopened=["x"]), 2: B2}, (None, 5, ((1, 10),), ())),
    (state(((1, 10),), leader=None), {1: BrokerState(11, unopened=["y"]), 2: B2}, (1, 6, ((1, 10),), ())),
    (state(((1, 10),), ((2, 20),)), {2: BrokerState(21, unopened=["x"])}, (None, 5, ((1, 10),), ((2, 20),))),
    # it joined with it since: what it says of itself is old
    (state(ALL), {1: B1, 2: B2, 3: BrokerState(30, unopened=["x"])}, None),
    # it had lost the log, and has joined again since
    (state(((1, 11),)), {1: BrokerState(11, LOST)}, (1, 6, ((1, 11),), ())),
    # the ELR leads when nobody of the ISR is there, and never somebody else
    (state(((1, 10),), ((2, 20),)), {2: B2, 3: B3}, (2, 6, ((2, 20),), ((1, 10),))),
    (state(((1, 10),), ((2, 20),)), {3: B3}, (None, 5, ((1, 10),), ((2, 20),))),
    (state(((1, 10),), ((2, 20),)), {2: BrokerState(21, LOST)}, (None, 5, ((1, 10),), ())),
    (state(((1, 10),), min_insync=1), {2: B2, 3: B3}, (None, 5, ((1, 10),), ())),
    # whoever cannot work leads only if nobody else can
    (state(ALL), {2: BrokerState(20, draining=True), 3: B3}, (3, 6, ((2, 20), (3, 30)), ())),
    (state(ALL), {2: BrokerState(20, refusing=True), 3: BrokerState(30, draining=True)}, (3, 6, ALL[1:], ())),
    # as does who has found its files damaged; it is asked to go, not dismissed (`moves.py`)
    (state(ALL), {2: BrokerState(20, unreadable=["x"]), 3: BrokerState(30, draining=True)}, (3, 6, ALL[1:], ())),
    (state(ALL), {2: BrokerState(20, unreadable=["y"]), 3: B3}, (2, 6, ALL[1:], ())),
    (state(ALL), {1: BrokerState(10, unreadable=["x"]), 2: B2, 3: B3}, None),
    (state(((1, 10),)), {1: BrokerState(11, unreadable=["x"])}, (1, 6, ((1, 10),), ())),
]


@pytest.mark.parametrize(("before", "brokers", "after"), CASES)
def test_cases(before: LogState, brokers: dict[int, BrokerState], after: tuple[object, ...] | None) -> None:
    found = elect("x", before, brokers)
    if after is None:
        assert found is None
        return
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr, found.elr) == after
    if found.leader is not None:
        assert found.leader_broker_epoch == brokers[found.leader].epoch
    assert elect("x", found, brokers) is None, "one change is enough"


UNCLEAN = [
    # as long as somebody of ISR or ELR is there, nobody else leads
    (state(ALL), {2: B2, 3: B3}, (2, 6, ((2, 20), (3, 30)), ()), 0),
    (state(((1, 10),), ((2, 20),)), {2: B2, 3: B3}, (2, 6, ((2, 20),), ((1, 10),)), 0),
    (state(((1, 10),)), {1: BrokerState(11), 2: B2}, (1, 6, ((1, 10),), ()), 0),
    # else the first replica that can work, rather one that has not lost the log, and nobody is protected any more
    (state(((1, 10),), ((2, 20),)), {3: B3}, (3, 6, ((3, 30),), ()), 6),
    (state(((1, 10),)), {2: B2, 3: B3}, (2, 6, ((2, 20),), ()), 6),
    (state(((1, 10),), leader=None), {2: BrokerState(21, LOST), 3: B3}, (3, 6, ((3, 30),), ()), 6),
    (state(((1, 10),)), {2: BrokerState(21, LOST)}, (2, 6, ((2, 21),), ()), 6),
    (state(((1, 10),)), {2: BrokerState(20, draining=True), 3: B3}, (3, 6, ((3, 30),), ()), 6),
    (state(((1, 10),)), {1: BrokerState(11, LOST)}, (1, 6, ((1, 11),), ()), 6),
    # a disk that takes nothing, a log that cannot be opened, or a broker that has no replica, is no better than nobody
    (state(((1, 10),)), {2: BrokerState(20, refusing=True), 4: BrokerState(40)}, (None, 5, ((1, 10),), ()), 0),
    (state(((1, 10),)), {2: BrokerState(20, unopened=["x"])}, (None, 5, ((1, 10),), ()), 0),
    (state(((1, 10),)), {}, (None, 5, ((1, 10),), ()), 0),
]


@pytest.mark.parametrize(("before", "brokers", "after", "unclean_epoch"), UNCLEAN)
def test_unclean_elections(
    before: LogState, brokers: dict[int, BrokerState], after: tuple[object, ...], unclean_epoch: int
) -> None:
    before = structs.replace(before, unclean=True)
    found = elect("x", before, brokers)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr, found.elr, found.unclean_epoch) == (*after, unclean_epoch)
    assert found.unclean
    assert elect("x", found, brokers) is None
    again = elect("x", structs.replace(before, unclean=False), brokers)
    if unclean_epoch:
        assert again is None or again.leader is None, "not where it is not allowed"
    else:
        assert again == structs.replace(found, unclean=False)
    assert decode(encode(found)) == found


def test_the_elr_is_empty_as_soon_as_enough_are_in_sync() -> None:
    found = state(((1, 10),), ((2, 20), (3, 30))).with_isr(((1, 10), (3, 30)), ((2, 20),))
    assert (found.isr, found.elr) == (((1, 10), (3, 30)), ())


def test_who_is_trusted() -> None:
    for broker, trusted in ((None, True), (BrokerState(10, LOST), True), (BrokerState(11, LOST), False), (B2, True)):
        brokers = {} if broker is None else {1: broker}
        assert is_trusted("x", (1, 10), brokers) is trusted


def test_the_value_of_a_key() -> None:
    before = state(ALL, ((4, 40),))
    assert decode(encode(before)) == before


def cut(broker: int, *unreachable: int, **says: Any) -> BrokerState:
    return BrokerState(broker * 10, unreachable=unreachable, **says)


SHRUNK = state(((1, 10),), ((2, 20), (3, 30)))
WITHOUT = [
    # before, who is there, after: leader, epoch, ISR, ELR (None: as it was)
    (SHRUNK, {1: cut(1, 2, 3), 2: cut(2, 1), 3: cut(3, 1)}, (2, 6, ((2, 20),), ((1, 10), (3, 30)))),
    # it may still commit something, or could with one that does not say so, or that says nothing any more
    (state(((1, 10), (2, 20)), ()), {1: cut(1, 2, 3), 2: cut(2, 1), 3: cut(3, 1)}, None),
    (SHRUNK, {1: cut(1, 2, 3), 2: cut(2), 3: cut(3, 1)}, None),
    (SHRUNK, {1: cut(1, 2, 3), 2: cut(2, 1)}, None),
    # the others could commit nothing either
    (SHRUNK, {1: cut(1, 2, 3), 2: cut(2, 1, 3), 3: cut(3, 1, 2)}, None),
    (SHRUNK, {1: cut(1, 2, 3), 2: cut(2, 1), 3: cut(3, 1, refusing=True)}, None),
    # who left while something was committed is there to follow, and not to lead
    (state(((1, 10),), ((3, 30),)), {1: B1, 2: cut(2, 1), 3: cut(3, 1)}, (3, 6, ((3, 30),), ((1, 10),))),
    (state(((1, 10),), ()), {1: B1, 2: cut(2, 1), 3: cut(3, 1)}, None),
    (SHRUNK, {1: B1, 2: BrokerState(21, LOST, unreachable=[1]), 3: cut(3, 1)}, (3, 6, ((3, 30),), ALL[:2])),
]


@pytest.mark.parametrize(("before", "brokers", "after"), WITHOUT)
def test_a_leader_gives_way_to_those_who_cannot_reach_it(
    before: LogState, brokers: dict[int, BrokerState], after: tuple[object, ...] | None
) -> None:
    found = without("x", before, 1, brokers)
    if after is None:
        assert found is None
    else:
        assert found is not None
        assert (found.leader, found.leader_epoch, found.isr, found.elr) == after
