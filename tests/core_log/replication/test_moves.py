"""Leadership and replicas that move on purpose: what the controller asks for, and how a leader does it."""

from __future__ import annotations

import msgspec
import pytest

from core_log.memory_files import MemoryFiles
from core_log.replication.follower import Follower
from core_log.replication.leader import Leader
from core_log.replication.messages import Refused
from core_log.replication.moves import MoveConfig, Mover, asked, begun, preferred, successor, switched
from core_log.replication.replica import Replica
from core_log.replication.state import BrokerState, LogState, decode, encode
from tests.core_log.helpers import flush, make_batch
from tests.core_log.replication.test_roles import ALL, BROKERS, CONFIG, exchange, position
from tests.core_log.test_replica_log import open_replica

B = {broker: BrokerState(broker * 10) for broker in range(1, 6)}
DRAINING = BrokerState(10, draining=True)


def state(**changes: object) -> LogState:
    found = LogState(
        replicas=(1, 2, 3), isr=ALL, leader=1, leader_broker_epoch=10, leader_epoch=5, min_insync=2, resigned=True
    )
    return msgspec.structs.replace(found, **changes)


def test_who_leads_instead_of_a_leader_that_drains() -> None:
    assert successor("x", state(), B | {1: DRAINING}) == 2
    assert successor("x", state(), B | {2: BrokerState(20, refusing=True)}) == 3
    assert successor("x", state(isr=ALL[:2]), B | {2: DRAINING}) is None, "who is not in sync leads nothing"
    assert successor("x", state(), B | {2: BrokerState(21, ("x",))}) == 3, "it has lost the log"
    assert successor("x", state(), B | {2: BrokerState(20, unreadable=("x",))}) == 3, "its files are damaged"
    assert successor("x", state(target=(3, 2)), B) == 3
    assert successor("x", state(leader=None), {}) is None


def test_the_first_replica_is_preferred_when_it_can_lead() -> None:
    assert preferred("x", state(), B) is None
    assert preferred("x", state(leader=2), B) == 1
    assert preferred("x", state(leader=2), B | {1: DRAINING}) is None
    assert preferred("x", state(leader=2), B | {1: BrokerState(10, unreadable=("x",))}) is None
    assert preferred("x", state(leader=2, isr=ALL[1:]), B) is None
    assert preferred("x", state(leader=2, target=(3, 2, 4)), B) is None, "it is not there yet"
    assert preferred("x", state(leader=None), B) is None


def test_a_few_leaders_are_asked_at_a_time_and_none_again_at_once() -> None:
    mover = Mover(MoveConfig(transfers_max=2, restore_after_s=5, ask_again_s=2))
    logs = {f"x{number}": state() for number in range(4)} | {"y": state(leader=3, leader_broker_epoch=30)}
    brokers = B | {1: DRAINING}
    assert mover.due(logs, B, 0.0) == {}
    found = mover.due(logs, brokers, 1.0)
    assert found == {"x0": state(transfer=2), "x1": state(transfer=2)}
    logs |= found
    assert mover.due(logs, brokers, 1.1) == {}
    logs |= {"x0": state().led_by(2, 20), "x1": state()}
    assert list(mover.due(logs, brokers, 1.2)) == ["x2", "x3"], "x1 has said no"
    assert list(mover.due(logs, brokers, 3.1)) == ["x1"]
    silent = {"x1": state(transfer=2), "x3": state(transfer=9)}
    assert mover.due(logs | silent, brokers, 3.2) == {}
    assert mover.due(logs | silent, brokers, 6.2) == {"x1": state(), "x3": state()}, "nobody has answered"
    assert mover.due(logs, B, 4.0) == {}, "nobody drains any more, and the preferred leaders wait"
    assert mover.due(logs, B, 8.9) == {}
    assert mover.due(logs, B | {1: BrokerState(10, refusing=True)}, 8.9) == {}
    assert mover.due(logs, B, 9.0) == {}, "it could not between"
    assert list(mover.due(logs, B, 14.0)) == ["x0", "y"]


def test_no_more_is_noted_of_logs_than_there_are() -> None:
    mover = Mover(MoveConfig(transfers_max=100))
    drained = B | {1: BrokerState(10, draining=True)}
    for number in range(20):
        assert mover.due({f"x{number}": state()}, drained, 0.0)
        mover.due({f"y{number}": state(leader=2, leader_broker_epoch=20)}, B, 0.0)
    assert max(len(mover._asked_s), len(mover._preferred_since_s)) <= 2


def test_a_leader_whose_files_are_damaged_hands_over_that_log_alone() -> None:
    brokers = B | {1: BrokerState(10, unreadable=("x",))}
    assert Mover(MoveConfig()).due({"x": state(), "y": state()}, brokers, 0.0) == {"x": state(transfer=2)}
    assert Mover(MoveConfig()).due({"x": state(isr=ALL[:1])}, brokers, 0.0) == {}, "nobody else has it"


def test_replicas_switch_when_all_new_ones_are_in_sync_and_one_leads() -> None:
    before = begun(state(), (4, 2, 3))
    assert (before.replicas, before.target, before.origin) == ((1, 2, 3, 4), (4, 2, 3), (1, 2, 3))
    assert switched("x", before, B) is None
    assert Mover(MoveConfig()).due({"x": before}, B, 0.0) == {}
    joined = before.with_isr((*ALL, (4, 40)), ())
    assert switched("x", joined, B) is None, "its leader is to go first"
    assert Mover(MoveConfig()).due({"x": joined}, B, 0.0) == {"x": asked(joined, 4)}
    led = joined.led_by(4, 40, resigned=True)
    assert switched("x", led, {one: B[one] for one in (1, 2, 4)}) is None
    after = switched("x", led, B)
    assert after is not None
    assert (after.replicas, after.target, after.isr) == ((4, 2, 3), None, ((2, 20), (3, 30), (4, 40)))
    assert after.origin is None
    assert (after.leader, after.leader_epoch, after.resigned) == (4, 7, True), "another epoch, the same process"
    assert decode(encode(led)) == led


def test_a_move_that_is_none_and_one_below_the_minimum() -> None:
    assert begun(state(), (1, 2, 3)) == state()
    other_order = begun(state(), (3, 1, 2))
    after = switched("x", other_order, B)
    assert after is not None
    assert (after.replicas, after.leader_epoch) == ((3, 1, 2), 5), "nobody has dropped anything"
    assert switched("x", begun(state(), (1,)), B) is None, "fewer than the minimum"
    back = begun(begun(state(), (4, 2, 3)), (1, 2, 3))
    assert (back.replicas, back.target, back.origin) == ((1, 2, 3, 4), (1, 2, 3), (1, 2, 3))
    assert switched("x", back, B) == state(leader_epoch=6)


def test_who_goes_back_waits_for_nobody_that_is_away() -> None:
    """As many as can commit are enough: it had no more before."""
    moving = begun(state(), (4, 2, 3)).with_isr((*ALL[:2], (4, 40)), ())
    back, three_is_away = begun(moving, (1, 2, 3)), {one: B[one] for one in (1, 2, 4)}
    after = switched("x", back, three_is_away)
    assert after == state(isr=ALL[:2], leader_epoch=6)
    led_by_the_new_one = back.led_by(4, 40)
    assert Mover(MoveConfig()).due({"x": led_by_the_new_one}, three_is_away, 0.0)["x"].transfer == 1
    assert switched("x", back.with_isr((ALL[0], (4, 40)), ()), three_is_away) is None, "nothing could be committed"
    assert switched("x", begun(moving, (2, 1, 3)), three_is_away) is None, "that is not what it had"


def leader_of(log_state: LogState) -> tuple[Leader, dict[int, Follower]]:
    leader = Leader("x", open_replica(MemoryFiles()), 1, log_state, 100, CONFIG, now_s=0.0, serve_from_s=0.0)
    followers = {broker: Follower("x", open_replica(MemoryFiles()), 1, 5) for broker in (2, 3)}
    for broker, follower in followers.items():
        leader.link_up(broker, broker * 10, 0.0)
        exchange(leader, broker, follower)
    return leader, followers


def keep_up(leader: Leader, followers: dict[int, Follower]) -> None:
    """Followers get what there is, and report it."""
    for broker, follower in followers.items():
        exchange(leader, broker, follower)
        flush(follower.log)
        exchange(leader, broker, follower)


def test_a_leader_that_is_asked_hands_over_when_all_is_committed() -> None:
    leader, followers = leader_of(state())
    leader.log.append(make_batch([b"a"] * 5))
    leader.on_state(state(transfer=3), 101)
    assert leader.wish(BROKERS, 1.0) is None
    assert leader.may_append(), "others have to show that they keep up"
    flush(leader.log)
    assert leader.log.flushed_offset == 5, "nobody had waited for it"
    keep_up(leader, {3: followers[3]})
    assert leader.wish(BROKERS, 1.1) is None, "it has all, but clients wait for the other one"
    assert leader.may_append()
    leader.log.append(make_batch([b"b"] * 5))
    flush(leader.log)
    exchange(leader, 2, followers[2])
    flush(followers[2].log)
    exchange(leader, 2, followers[2])
    assert leader.wish(BROKERS, 1.2) is None
    assert not leader.may_append(), "it takes nothing more"
    assert leader.may_serve(1.2, 9.0), "but serves"
    flush(leader.log)
    keep_up(leader, followers)
    assert leader.log.high_watermark == 10
    change = leader.wish(BROKERS, 1.3)
    assert change is not None
    assert change.state == state().led_by(3, 30, resigned=True)
    assert [(guard.key, guard.mod_revision, guard.create_revision) for guard in change.guards] == [
        (b"p/x", 101, None),
        (b"brokers/3", None, 30),
    ]
    assert not leader.may_serve(1.3, 9.0)


def test_what_was_taken_and_is_not_appended_yet_is_committed_before_a_hand_over() -> None:
    leader, followers = leader_of(state())
    taken = [make_batch([b"a"])]

    def append() -> bool:
        while taken:
            leader.log.append(taken.pop())
        return True

    leader.log.on_hand_over = append
    leader.on_state(state(transfer=3), 101)
    keep_up(leader, followers)
    assert leader.wish(BROKERS, 1.0) is None
    assert leader.log.log_end_offset == 1
    flush(leader.log)
    keep_up(leader, followers)
    change = leader.wish(BROKERS, 1.1)
    assert change is not None
    assert change.state.leader == 3


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_under_way_is_waited_for_before_a_hand_over_but_not_for_long(ends: bool) -> None:
    leader, followers = leader_of(state())
    is_all = False
    leader.log.on_hand_over = lambda: is_all
    leader.on_state(state(transfer=3), 101)
    keep_up(leader, followers)
    assert leader.wish(BROKERS, 1.0) is None
    assert not leader.may_append()
    half_s = leader.config.transfer_max_s / 2
    assert leader.wish(BROKERS, 1.0 + half_s - 0.01) is None
    is_all = ends
    change = leader.wish(BROKERS, 1.0 + half_s + (0 if ends else 0.01))
    assert change is not None
    assert change.state.leader == 3


def test_a_leader_that_is_asked_in_vain_leads_on() -> None:
    leader, followers = leader_of(state())
    leader.log.append(make_batch([b"a"]))
    leader.on_state(state(transfer=3), 101)
    for now_s in (1.0, 1.9):
        assert leader.wish(BROKERS, now_s) is None
        assert leader.may_append(), "one that stands still stops nobody"
    flush(leader.log)
    keep_up(leader, followers)
    leader.log.append(make_batch([b"b"]))
    flush(leader.log)
    keep_up(leader, {3: followers[3]})
    assert leader.wish(BROKERS, 2.0) is None
    assert leader.wish(BROKERS, 2.9) is None, "what it has not answered nobody shall send to the next leader again"
    assert not leader.may_append()
    change = leader.wish(BROKERS, 3.0)
    assert change is not None
    assert change.state == state()
    assert leader.may_serve(3.0, 9.0)
    assert not leader.may_append(), "it is not known yet whether that is so"
    leader.on_state(state(), 102)
    assert leader.may_append()
    for unable in (4, 2):
        leader.on_state(state(transfer=unable), leader.revision + 1)
        change = leader.wish(BROKERS | {2: BrokerState(20, draining=True)}, 3.0)
        assert change is not None
        assert change.state == state()
        leader.on_state(state(), leader.revision + 1)


def test_a_leader_that_can_commit_nothing_hands_over_all_the_same() -> None:
    leader, followers = leader_of(state(isr=ALL[:2], min_insync=3))
    leader.log.append(make_batch([b"a"]))
    flush(leader.log)
    leader.on_state(state(isr=ALL[:2], min_insync=3, transfer=2), 101)
    here = {broker: BROKERS[broker] for broker in (1, 2)}
    assert leader.wish(here, 1.0) is None
    keep_up(leader, {2: followers[2]})
    change = leader.wish(here, 1.1)
    assert change is not None
    assert change.state.leader == 2


def test_the_same_process_leads_on_in_the_next_epoch() -> None:
    replica = Replica("x", open_replica(MemoryFiles()), 1, CONFIG, now_s=0.0)
    replica.registered(10)
    replica.on_state(state(), 100, 2.0)
    leader = replica.role
    assert isinstance(leader, Leader)
    for broker in (2, 3):
        leader.link_up(broker, broker * 10, 2.0)
    follower = Follower("x", open_replica(MemoryFiles()), 1, 5)
    leader.log.append(make_batch([b"a"]))
    exchange(leader, 2, follower)
    flush(follower.log)
    exchange(leader, 2, follower)
    answer = leader.on_position(3, position(open_replica(MemoryFiles()), 6), 2.0)
    assert isinstance(answer, Refused)
    assert not leader.may_serve(2.0, 9.0), "it has heard of it before the metadata told"
    stale = position(follower.log, 5)
    replica.on_state(state(replicas=(1, 3), isr=(ALL[0], ALL[2]), leader_epoch=6), 101, 2.1)
    assert replica.role is leader
    assert leader.may_serve(2.1, 9.0)
    assert leader.followers[2].reported == -1, "what it said is forgotten"
    for told in (stale, stale._replace(leader_epoch=6)):
        assert isinstance(leader.on_position(2, told, 2.1), Refused)
    leader.log.append(make_batch([b"b"]))
    assert leader.log.last_epoch == 6
    other = Follower("x", open_replica(MemoryFiles()), 1, 6)
    other.on_refused(Refused("x", "fenced_epoch", 1, 6))
    exchange(leader, 3, other)
    assert other.log.log_end_offset == 2
    replica.on_state(state().led_by(3, 30).led_by(1, 10), 102, 2.2)
    assert replica.role is leader
    replica.on_state(state(leader_epoch=9), 103, 2.3)
    assert replica.role is not leader, "others may have led between"
