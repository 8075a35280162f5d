"""A leader and its followers on logs in memory, message by message; times are what the tests say."""

from __future__ import annotations

from itertools import product

import pytest

from core_log.log_config import LogConfig
from core_log.memory_files import MemoryFiles
from core_log.replica_log import ReplicaLog
from core_log.replication.follower import Follower
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.messages import Batches, Diverging, Position, Refused
from core_log.replication.replica import Replica
from core_log.replication.state import BEYOND_EPOCHS, BrokerState, LogState
from tests.core_log.helpers import flush, make_batch, write
from tests.core_log.test_replica_log import open_replica

CONFIG = ReplicationConfig()
BROKERS = {broker: BrokerState(broker * 10) for broker in (1, 2, 3)}
ALL = ((1, 10), (2, 20), (3, 30))


def lead(log: ReplicaLog, isr: tuple[tuple[int, int], ...] = ALL, *, epoch: int = 1, min_insync: int = 2) -> Leader:
    state = LogState(
        replicas=(1, 2, 3), isr=isr, leader=1, leader_broker_epoch=10, leader_epoch=epoch, min_insync=min_insync
    )
    leader = Leader("x", log, 1, state, 100, CONFIG, now_s=0.0, serve_from_s=0.0)
    for broker in (2, 3):
        leader.link_up(broker, broker * 10, 0.0)
    return leader


def position(log: ReplicaLog, epoch: int = 1) -> Position:
    found = Follower("x", log, 1, epoch).position()
    assert found is not None
    return found


def exchange(
    leader: Leader, broker: int, follower: Follower, now_s: float = 1.0
) -> Batches | Diverging | Refused | None:
    """One order, and what comes of it."""
    order = follower.position(again=True)
    assert order is not None
    answer = leader.on_position(broker, order, now_s) or leader.due(broker, now_s, bytes_max=1 << 20)
    if isinstance(answer, Batches):
        follower.on_batches(answer)
    elif isinstance(answer, Diverging):
        follower.on_diverging(answer)
    elif isinstance(answer, Refused):
        follower.on_refused(answer)
    return answer


def test_committed_is_what_all_of_the_isr_has_synced() -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(3)]
    leader = lead(logs[0])
    followers = {broker: Follower("x", logs[broker - 1], 1, 1) for broker in (2, 3)}
    logs[0].append(make_batch([b"a"] * 5))
    logs[0].request_sync()
    for broker, follower in followers.items():
        sent = exchange(leader, broker, follower)
        assert isinstance(sent, Batches)
        assert (sent.sync_before, len(sent.batches), follower.log.log_end_offset) == (5, 1, 5)
    for log in logs:
        flush(log)
        leader.log_advanced()
        assert logs[0].high_watermark == 0
    exchange(leader, 2, followers[2])
    assert logs[0].high_watermark == 0
    exchange(leader, 3, followers[3])
    assert (logs[0].high_watermark, logs[2].high_watermark) == (5, 5)
    assert logs[1].high_watermark == 0, "it hears of it with the next message"
    exchange(leader, 2, followers[2])
    assert logs[1].high_watermark == 5


def test_nothing_is_committed_below_the_minimum_and_both_isrs_count_while_one_changes() -> None:
    log = open_replica(MemoryFiles())
    leader = lead(log, ((1, 10),))
    assert not leader.may_append()
    log.append(make_batch([b"a"] * 5))
    flush(log)
    leader.log_advanced()
    assert log.high_watermark == 0
    other = open_replica(MemoryFiles())
    follower = Follower("x", other, 1, 1)
    exchange(leader, 2, follower)
    flush(other)
    exchange(leader, 2, follower, 2.0)
    change = leader.wish(BROKERS, 2.0)
    assert change is not None
    assert change.state.isr == ((1, 10), (2, 20))
    assert [(guard.key, guard.mod_revision, guard.create_revision) for guard in change.guards] == [
        (b"p/x", 100, None),
        (b"brokers/2", None, 20),
    ]
    assert (leader.maximal(), log.high_watermark) == ([1, 2], 0)
    assert leader.wish(BROKERS, 2.0) is None, "one at a time"
    leader.on_state(change.state, 101)
    assert log.high_watermark == 5


def test_who_leaves_the_isr() -> None:
    log = open_replica(MemoryFiles())
    leader = lead(log)
    followers = {broker: Follower("x", open_replica(MemoryFiles()), 1, 1) for broker in (2, 3)}
    for broker, follower in followers.items():
        exchange(leader, broker, follower)
    assert leader.wish(BROKERS, 1.1) is None
    leader.link_down(3, 2.0)
    assert leader.wish(BROKERS, 2.9) is None
    change = leader.wish(BROKERS, 3.1)
    assert change is not None
    assert (change.state.isr, change.state.elr) == (((1, 10), (2, 20)), ())
    leader.refused()
    change = leader.wish({1: BROKERS[1]}, 3.1)
    assert change is not None
    assert (change.state.isr, change.state.elr) == (((1, 10),), ((2, 20), (3, 30)))
    leader.refused()
    leader.link_up(3, 30, 3.2)
    log.append(make_batch([b"a"]))
    for now_s in (3.5, 5.0, 7.0, 8.9):
        assert leader.on_position(2, position(open_replica(MemoryFiles()))._replace(fetch_offset=0), now_s) is None
    assert leader.wish(BROKERS, 5.9) is None
    change = leader.wish(BROKERS, 9.0)
    assert change is not None
    assert change.state.isr == ((1, 10),), "neither has reported the end of five seconds ago"


def test_a_leader_serves_by_its_lease_or_by_everybodys_promise() -> None:
    leader = lead(open_replica(MemoryFiles()))
    followers = {broker: Follower("x", open_replica(MemoryFiles()), 1, 1) for broker in (2, 3)}
    assert leader.may_serve(1.0, 1.1)
    assert not leader.may_serve(1.1, 1.1)
    for now_s in (1.0, 1.3):
        exchange(leader, 2, followers[2], now_s)
    assert not leader.may_serve(1.4, 0.0), "only one has promised"
    for now_s in (1.1, 1.5):
        exchange(leader, 3, followers[3], now_s)
    assert leader.may_serve(2.34, 0.0)
    assert not leader.may_serve(2.36, 0.0), "a promise counts from when its question was sent"
    later = position(followers[3].log, 2)
    answer = leader.on_position(3, later, 1.5)
    assert isinstance(answer, Refused)
    assert answer.reason == "unknown_epoch"
    assert not leader.may_serve(1.5, 9.0), "somebody has a later epoch"


def test_all_is_well_where_each_question_says_so() -> None:
    seen = set()
    cases = product((False, True), (False, True), (None, 9.0), (1, 3), (0.0, 4.0), (0, 5), (2.0, 6.0))
    for fenced, handing_over, closed_until_s, minimum, serve_from_s, epoch_start, lease_until_s in cases:
        leader = lead(open_replica(MemoryFiles()), ((1, 10), (2, 20)), min_insync=minimum)
        leader.fenced, leader.handing_over, leader.closed_until_s = fenced, handing_over, closed_until_s
        leader.serve_from_s, leader.epoch_start = serve_from_s, epoch_start
        serves = lease_until_s > 3.0 and leader.may_serve(3.0, lease_until_s)
        wanted = serves and leader.may_append() and leader.watermark_is_known
        assert leader.is_well(3.0, lease_until_s) is wanted
        seen.add(wanted)
    assert seen == {False, True}


def test_a_follower_that_is_elected_waits_its_promise_out() -> None:
    replica = Replica("x", open_replica(MemoryFiles()), 2, CONFIG, now_s=0.0)
    replica.registered(20)
    state = LogState(replicas=(1, 2, 3), isr=ALL, leader=1, leader_broker_epoch=10, leader_epoch=1, min_insync=2)
    replica.on_state(state, 100, 1.0)
    assert isinstance(replica.role, Follower)
    replica.promise(5.0)
    replica.on_state(state.led_by(2, 20), 101, 5.1)
    assert isinstance(replica.role, Leader)
    assert [replica.role.may_serve(now_s, 100.0) for now_s in (5.1, 6.49, 6.5)] == [False, False, True]
    replica.on_state(state.led_by(1, 10), 101, 5.2)
    assert isinstance(replica.role, Leader), "not later than what it knows"
    replica.registered(21)
    assert replica.role is None, "it was named under another epoch"
    replica.on_state(state.led_by(1, 10).led_by(2, 21, resigned=True), 102, 5.3)
    assert isinstance(replica.role, Leader)
    assert replica.role.may_serve(5.3, 100.0)


def test_nobody_leads_in_an_epoch_that_is_over() -> None:
    log = open_replica(MemoryFiles())
    log.begin_epoch(7)
    replica = Replica("x", log, 1, CONFIG, now_s=0.0)
    replica.registered(10)
    state = LogState(replicas=(1, 2, 3), isr=ALL, leader=1, leader_broker_epoch=10, leader_epoch=6, min_insync=2)
    replica.on_state(state, 100, 1.0)
    assert (replica.role, replica.is_beyond) == (None, True)
    replica.on_state(state.led_by(2, 20), 101, 2.0)
    assert isinstance(replica.role, Follower)
    assert not replica.is_beyond
    replica.on_state(state.led_by(2, 20).led_by(1, 10), 102, 3.0)
    assert isinstance(replica.role, Leader)


@pytest.mark.parametrize("since", ["nothing", "an election"])
def test_by_a_state_that_was_put_back_nobody_has_a_role_who_knows_a_later_one(since: str) -> None:
    before = LogState(replicas=(1, 2, 3), isr=ALL, leader=3, leader_broker_epoch=30, leader_epoch=1, min_insync=2)
    known = before.with_isr(ALL[:2], ()).led_by(1, 10)
    elected = before.led_by(3, 31)  # in the same epoch as 1, which has more
    replicas = [Replica("x", open_replica(MemoryFiles()), broker, CONFIG, now_s=0.0) for broker in (1, 2, 3)]
    for replica in replicas:
        replica.registered(replica.me * 10)
        replica.on_state(before, 100, 1.0)
        replica.on_state(known, 120, 2.0)
        if since == "nothing":
            replica.on_state(before, 100, 3.0)
            assert replica.role is not None, "not later than what it knows"
            replica.on_state(before, 100, 3.0, put_back=True)
        else:
            replica.on_state(elected, 121, 3.0, put_back=True)
            replica.on_state(elected.led_by(2, 20), 122, 3.0)
        assert (replica.role, replica.is_beyond, replica.lost_state) == (None, False, known)
    assert [replica.knows_better for replica in replicas] == [True, True, False]
    again = replicas[1].put_again(before)
    assert (again.leader, again.leader_epoch, again.isr) == (1, 2 + BEYOND_EPOCHS, ALL[:2])
    for replica in replicas:
        replica.on_state(again, 130, 4.0)
        assert replica.lost_state is None
    assert [type(replica.role) for replica in replicas] == [Leader, Follower, Follower]


def test_of_two_lost_states_the_later_one_is_put_again() -> None:
    first = LogState(replicas=(1, 2, 3), isr=ALL, leader=1, leader_broker_epoch=10, leader_epoch=1, min_insync=2)
    second = first.led_by(2, 20)
    third = second.with_isr(ALL[1:], ()).led_by(3, 30)
    behind, ahead = (Replica("x", open_replica(MemoryFiles()), broker, CONFIG, now_s=0.0) for broker in (1, 2))
    for replica, known in ((behind, second), (ahead, third)):
        replica.registered(replica.me * 10)
        replica.on_state(known, 120, 1.0)
        replica.on_state(first, 100, 2.0, put_back=True)
    wrong = behind.put_again(first)
    ahead.on_state(wrong, 101, 3.0)
    assert ahead.knows_better
    right = ahead.put_again(wrong)
    for replica in (behind, ahead):
        replica.on_state(right, 102, 4.0)
        assert replica.lost_state is None
    assert right.isr == ALL[1:]


def test_a_leader_whose_disk_refuses_hands_over() -> None:
    log = open_replica(MemoryFiles())
    leader = lead(log)
    log.error = OSError()
    change = leader.wish(BROKERS, 1.0)
    assert change is not None
    assert (change.state.leader, change.state.leader_epoch, change.state.resigned) == (2, 2, True)
    assert not leader.may_serve(1.0, 9.0)
    leader.refused()
    assert leader.may_serve(1.0, 9.0)
    alone = lead(open_replica(MemoryFiles()), ((1, 10),))
    alone.log.error = OSError()
    assert alone.wish(BROKERS, 1.0) is None


def test_a_leader_whose_disk_stands_still_hands_over_to_who_has_more() -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(2)]
    leader = lead(logs[0], ((1, 10), (2, 20)))
    follower = Follower("x", logs[1], 1, 1)
    exchange(leader, 2, follower)

    def tick(start_s: int, end_s: int) -> None:
        for now_s in range(10 * start_s, 10 * end_s):
            leader.tick(now_s / 10)

    tick(0, 10)
    logs[0].append(make_batch([b"a"]))
    logs[0].request_sync()  # and no job is done
    tick(10, 17)
    change = leader.wish(BROKERS, 17.0)
    assert change is None or change.state.leader == 1, "the others have no more"
    leader.refused()
    exchange(leader, 2, follower, 17.0)
    flush(logs[1])
    exchange(leader, 2, follower, 17.0)
    change = leader.wish(BROKERS, 17.0)
    assert change is not None
    assert (change.state.leader, change.state.leader_epoch) == (2, 2)
    leader.refused()
    flush(logs[0])
    tick(17, 18)
    assert leader.wish(BROKERS, 18.0) is None


def test_a_leader_without_links_gives_way_to_followers_that_have_each_other() -> None:
    leader = lead(open_replica(MemoryFiles()), ((1, 10),))
    leader.state = leader.state.with_isr(((1, 10),), ALL[1:])
    cut = BROKERS | {broker: BrokerState(broker * 10, unreachable=[1]) for broker in (2, 3)}
    leader.link_down(2, 1.0)
    assert leader.wish(cut, 5.0) is None, "one is there again, and what the other says is old"
    leader.link_down(3, 5.0)
    assert leader.wish(BROKERS, 6.0) is None
    change = leader.wish(cut, 6.0)
    assert change is not None
    assert (change.state.leader, change.state.leader_epoch, change.state.resigned) == (2, 2, True)
    assert [(guard.key, guard.create_revision) for guard in change.guards[1:]] == [(b"brokers/2", 20)]
    assert not leader.may_serve(6.0, 9.0)
    leader.refused()
    assert leader.may_serve(6.0, 9.0)


def test_a_leader_that_stood_still_itself_does_not_blame_the_disk() -> None:
    log = open_replica(MemoryFiles())
    leader = lead(log, ((1, 10), (2, 20)))
    leader.tick(1.0)
    log.append(make_batch([b"a"]))
    log.request_sync()
    leader.tick(2.0)
    leader.tick(60.0)
    assert not leader.disk.is_late(CONFIG)


def test_who_led_before_and_whose_disk_refuses_hears_what_the_next_leader_has_committed() -> None:
    before, now = open_replica(MemoryFiles()), open_replica(MemoryFiles())
    before.begin_epoch(1)
    for _ in range(2):
        before.append(make_batch([b"a"] * 5))
    for batch in before.read_replica(0, 1 << 20) or ():
        now.append_replica(batch)
    flush(now)
    before.error = OSError("full")
    known: list[int] = []
    before.on_known = known.append
    leader = lead(now, ((1, 10), (3, 30)), epoch=2)
    follower, third = Follower("x", before, 1, 2), Follower("x", open_replica(MemoryFiles()), 1, 2)
    exchange(leader, 2, follower)
    assert (known, before.high_watermark) == ([], 0), "it is not committed yet"
    exchange(leader, 3, third)
    flush(third.log)
    exchange(leader, 3, third)
    assert now.high_watermark == 10
    exchange(leader, 2, follower)
    assert (known, before.high_watermark) == ([10], 0), "this disk still lacks it"


def test_epochs_are_compared_until_they_agree() -> None:
    """KIP-279: both have led without the other knowing."""
    one, two = open_replica(MemoryFiles()), open_replica(MemoryFiles())
    for offset, (mine, theirs) in enumerate([(1, 1), (1, 1), (3, 1), (3, 1), (5, 4)]):
        one.append_replica(make_batch([b"%d" % mine], base_offset=offset, epoch=mine))
        two.append_replica(make_batch([b"%d" % theirs], base_offset=offset, epoch=theirs))
    for log in (one, two):
        flush(log)
    leader = lead(one, epoch=6)
    follower = Follower("x", two, 1, 6)
    answer = exchange(leader, 2, follower)
    assert isinstance(answer, Diverging)
    assert (answer.epoch, answer.end_offset, follower.cut_to) == (3, 4, 4)
    assert follower.position() is None
    follower.cut_to = None
    two.epochs.cut(4)
    order = position(two, 6)._replace(fetch_offset=4, last_epoch=1)
    answer = leader.on_position(2, order, 1.0)
    assert isinstance(answer, Diverging)
    assert (answer.epoch, answer.end_offset) == (1, 2)
    assert leader.followers[2].reported == -1, "what it has is not ours"
    follower.on_diverging(answer)
    assert follower.cut_to is None, "its log is not what that is about"


def test_what_was_dropped_is_sent_again() -> None:
    one, two = open_replica(MemoryFiles()), open_replica(MemoryFiles())
    leader, follower = lead(one), Follower("x", two, 1, 1)
    exchange(leader, 2, follower)
    for _ in range(3):
        one.append(make_batch([b"a"]), base_offset=one.log_end_offset + 1)
        sent = leader.due(2, 1.0, bytes_max=1 << 20)
        assert sent is not None
        if sent.after:
            follower.on_batches(sent)
        # else its disk refused, or whatever: the first is lost
    assert two.log_end_offset == 0
    order = follower.position()
    assert order is not None
    assert order.missed
    exchange(leader, 2, follower)
    assert two.log_end_offset == one.log_end_offset == 6


def test_a_batch_of_an_epoch_that_has_not_begun_is_not_taken() -> None:
    """A bit was flipped on the way, where no CRC sees it: whoever took it could take nothing that comes after."""
    leader, follower = lead(open_replica(MemoryFiles())), Follower("x", open_replica(MemoryFiles()), 1, 1)
    leader.link_up(2, 20, 0.0)
    for body in (b"a", b"b"):
        leader.log.append(make_batch([body] * 5))
    order = follower.position()
    assert order is not None
    assert leader.on_position(2, order, 1.0) is None
    sent = leader.due(2, 1.0, bytes_max=1 << 20)
    assert sent is not None
    wrong = bytearray(sent.batches[1])
    wrong[12] ^= 1 << 6  # of the leader epoch
    follower.on_batches(sent._replace(batches=(sent.batches[0], bytes(wrong))))
    assert (follower.log.log_end_offset, follower.log.epochs.entries) == (5, [(1, 0)])
    exchange(leader, 2, follower)
    assert (follower.log.log_end_offset, follower.log.epochs.entries) == (10, [(1, 0)])


def test_a_follower_behind_the_log_start_begins_anew() -> None:
    one = open_replica(MemoryFiles(), LogConfig(tail_cache_bytes=0))
    leader = lead(one, ((1, 10),), min_insync=1)
    one.append(make_batch([b"a"] * 5))
    one.append(make_batch([b"b"] * 5))
    flush(one)
    leader.log_advanced()
    one.delete_prefix(7)
    follower = Follower("x", open_replica(MemoryFiles()), 1, 1)
    answer = exchange(leader, 2, follower)
    assert isinstance(answer, Refused)
    assert (answer.reason, follower.restart_at) == ("out_of_range", 7)
    follower.restart_at = None
    follower.log.log_start_offset = follower.log.log_end_offset = 7
    assert exchange(leader, 2, follower) is not None
    assert leader.cold(2) == (7, 10)
    follower.on_batches(leader.sending(2, tuple(one.read_blocking(7, 100)), 1.0))
    assert follower.restart_at == 5, "the log start is within a batch"


def test_what_nobody_waits_for_is_synced_before_anybody_leaves() -> None:
    one, two = open_replica(MemoryFiles()), open_replica(MemoryFiles())
    leader, follower = lead(one, ALL[:2]), Follower("x", two, 1, 1)
    one.append(make_batch([b"a"]))
    exchange(leader, 2, follower, 0.1)
    write(two)
    for now_s in (0.2, 2.0, 3.0):
        exchange(leader, 2, follower, now_s)
    assert (leader.sync_before(), two.flushed_offset) == (0, 0)
    leader.tick(3.0)
    assert leader.sync_before() == 1
    exchange(leader, 2, follower, 3.1)
    write(two)
    assert two.flushed_offset == 1


def test_writes_go_in_rounds() -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(3)]
    leader = lead(logs[0])
    followers = {broker: Follower("x", logs[broker - 1], 1, 1) for broker in (2, 3)}

    def publish() -> None:
        logs[0].append(make_batch([b"a"]))
        logs[0].request_sync()

    def ends() -> list[int]:
        for broker, follower in followers.items():
            exchange(leader, broker, follower)
        return [log.log_end_offset for log in logs]

    publish()
    assert not leader.disk_waits(1.0), "nobody has anything to report"
    assert ends() == [1, 1, 1], "that one has been sent it keeps it from nobody"
    assert not leader.disk_waits(1.0), "the disk here has not got it yet"
    flush(logs[0])
    assert not leader.disk_waits(1.0), "it has all there is: a sync alone waits for nobody"
    publish()
    assert leader.disk_waits(1.0)
    flush(logs[1])
    assert ends() == [2, 1, 1], "the other one has not reported"
    assert leader.owes()
    assert leader.disk_waits(1.0)
    assert not leader.disk_waits(1.2), "for a moment only"
    flush(logs[2])
    order = followers[3].position()
    assert order is not None
    leader.on_position(3, order, 1.0)
    assert logs[0].high_watermark == 1
    assert not leader.disk_waits(1.0)
    assert ends() == [2, 2, 2]


def test_what_is_deleted_is_deleted_on_all_in_sync() -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(3)]
    leader = lead(logs[0], ALL[:2])
    followers = {broker: Follower("x", logs[broker - 1], 1, 1) for broker in (2, 3)}
    logs[0].append(make_batch([b"a"] * 5))
    for _ in range(3):
        exchange(leader, 2, followers[2])
        for log in logs:
            flush(log)
        leader.log_advanced()
    assert (logs[0].high_watermark, logs[1].high_watermark) == (5, 5)
    logs[0].delete_prefix(3)
    assert leader.low_watermark() == 0
    exchange(leader, 2, followers[2])
    assert (logs[1].log_start_offset, leader.low_watermark()) == (3, 0), "it has not said so yet"
    exchange(leader, 2, followers[2])
    assert leader.low_watermark() == 3, "broker 3 is not in sync"


def test_what_is_damaged_at_the_leader_is_asked_for_again_but_not_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = open_replica(MemoryFiles())
    follower = Follower("x", log, 1, 1)
    good = make_batch([b"a"] * 5, epoch=1)
    flipped = bytearray(good)
    flipped[14] ^= 1  # the leader epoch, which no CRC is over
    assert follower.position() is not None
    for tag in range(1, 4):
        follower.on_batches(Batches("x", 1, tag, 0, 0, 0, 0, 5, (bytes(flipped),)))
        assert follower.position() is None
        follower.on_batches(Batches("x", 1, tag, 0, 0, 0, 5, 5, ()))
        assert follower.position() is None, "the leader goes on behind it"
        due = follower.position(again=True)
        assert due is not None
        assert due.missed
    assert len(caplog.records) == 1
    follower.on_batches(Batches("x", 1, 4, 0, 0, 0, 0, 5, (good,)))
    assert log.log_end_offset == 5
    assert follower.position() is not None


def test_of_those_who_begin_late_the_last_one_counts() -> None:
    logs = [open_replica(MemoryFiles()) for _ in range(3)]
    leader = lead(logs[0])
    for _ in range(3):
        logs[0].append(make_batch([b"a"] * 5))
    flush(logs[0])
    logs[0].advance_high_watermark(15)
    logs[0].delete_prefix(5)
    for broker, begins_at in ((2, 10), (3, 5)):
        assert (
            leader.on_position(broker, Position("x", 1, begins_at, -1, begins_at, begins_at, False, 0, False), 1.0)
            is None
        )
    assert leader.begun_late == 10
