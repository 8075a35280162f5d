"""Wrong rules, most of them once made by somebody: what the simulation must be able to notice.

Each is a context in which the roles follow the wrong rule. `CAUGHT_BY` says with which seed that is known to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from core_log.replica_log import ReplicaLog
from core_log.replication import election, isr, leader, moves
from core_log.replication.follower import Follower
from core_log.replication.leader import Leader
from core_log.replication.messages import Diverging, Position, Reply
from core_log.replication.replica import Replica
from core_log.replication.state import BrokerState, LogState, Members
from core_log.written_again import WrittenAgain


@contextmanager
def truncates_to_the_watermark() -> Iterator[None]:
    """KIP-101: a follower cuts to its high watermark and goes on from there; epochs are not compared."""
    begin = Follower.__init__

    def wrong(self: Follower, name: str, log: ReplicaLog, *arguments: Any, **more: Any) -> None:
        begin(self, name, log, *arguments, **more)
        self.cut_to = log.high_watermark

    def compare(self: Leader, position: Position) -> Reply | None:
        return None if position.fetch_offset <= self.log.log_end_offset else real(self, position)

    real = Leader._compare
    with mock.patch.object(Follower, "__init__", wrong), mock.patch.object(Leader, "_compare", compare):
        yield


@contextmanager
def cuts_by_the_leaders_epoch_alone() -> Iterator[None]:
    """KIP-279: the follower cuts where the leader's epoch ends, not where its own does, and asks no more."""

    def wrong(self: Follower, message: Diverging) -> None:
        if self._concerns(message):
            self.cut_to = max(message.end_offset, self.log.log_start_offset)

    def compare(self: Leader, position: Position) -> Reply | None:
        answer = real(self, position)
        return answer if not isinstance(answer, Diverging) or answer.end_offset < position.fetch_offset else None

    real = Leader._compare
    with mock.patch.object(Follower, "on_diverging", wrong), mock.patch.object(Leader, "_compare", compare):
        yield


@contextmanager
def reports_what_is_not_synced() -> Iterator[None]:
    """A confirm before every disk has it."""
    with mock.patch.object(ReplicaLog, "local_committed", property(lambda log: log.written_offset)):
        yield


@contextmanager
def elects_anybody() -> Iterator[None]:
    """A replica outside the ISR leads when no other is there."""

    def wrong(log: str, state: LogState, here: Members, brokers: dict[int, BrokerState]) -> LogState:
        here = here or tuple((broker, found.epoch) for broker, found in brokers.items())
        return real(log, state.with_isr(here, ()) if here else state, here, brokers)

    real = election._with_leader
    with mock.patch.object(election, "_with_leader", wrong):
        yield


@contextmanager
def counts_a_smaller_isr_before_it_is_one() -> Iterator[None]:
    """The watermark goes by the ISR that the leader has asked for."""

    def wrong(self: Leader) -> list[int]:
        return (self.state if self.pending is None else self.pending.state).isr_brokers

    with mock.patch.object(Leader, "maximal", wrong):
        yield


@contextmanager
def forgets_the_joiner() -> Iterator[None]:
    """The watermark goes by the ISR of the metadata alone while somebody joins."""
    with mock.patch.object(Leader, "maximal", lambda self: self.state.isr_brokers):
        yield


@contextmanager
def commits_below_the_minimum() -> Iterator[None]:
    """KIP-966: the last of the ISR commits alone, and the ELR is elected."""

    def wrong(reported: Mapping[int, int], isr: Any, maximal: Any, min_insync: int, current: int) -> int:
        return real(reported, isr, maximal, 0, current)

    real = isr.high_watermark
    with mock.patch.object(leader, "high_watermark", wrong):
        yield


@contextmanager
def trusts_a_new_disk() -> Iterator[None]:
    """KIP-903: who comes back without its log is still a member."""
    with mock.patch.object(election, "is_trusted", return_value=True):
        yield


@contextmanager
def keeps_the_epoch() -> Iterator[None]:
    """The same broker leads again, in another process, without another epoch."""

    def wrong(self: LogState, broker: int, broker_epoch: int, *, resigned: bool = False) -> LogState:
        found = real(self, broker, broker_epoch, resigned=resigned)
        same = self.leader == broker
        return msgspec.structs.replace(found, leader_epoch=self.leader_epoch) if same else found

    def begin(self: ReplicaLog, epoch: int) -> None:
        if epoch > self.epochs.latest or not self.epochs.entries:
            real_begin(self, epoch)
        self.leader_epoch = epoch

    real, real_begin = LogState.led_by, ReplicaLog.begin_epoch
    with (
        mock.patch.object(LogState, "led_by", wrong),
        mock.patch.object(ReplicaLog, "begin_epoch", begin),
        mock.patch.object(Replica, "_log_is_beyond", return_value=False),
    ):
        yield


@contextmanager
def serves_without_a_lease() -> Iterator[None]:
    """A leader serves as long as nobody told it that it is none."""
    with mock.patch.object(Leader, "may_serve", lambda self, now_s, lease: not self.fenced):
        yield


@contextmanager
def breaks_its_promise() -> Iterator[None]:
    """A follower that is elected serves at once."""
    with mock.patch.object(Replica, "promise"):
        yield


@contextmanager
def heeds_old_answers() -> Iterator[None]:
    """A follower starts anew because of a position that it has left long since."""

    def wrong(self: Follower, message: Any) -> bool:
        return message.leader_epoch == self.epoch and not self.needs_repair and not self.log.truncating

    with mock.patch.object(Follower, "_concerns", wrong):
        yield


@contextmanager
def fills_gaps_with_what_comes() -> Iterator[None]:
    """A follower appends whatever begins behind its end: gaps are legal."""

    def wrong(self: Follower, message: Any) -> None:
        real(self, message._replace(after=self.log.log_end_offset))

    real = Follower.on_batches
    with mock.patch.object(Follower, "on_batches", wrong):
        yield


@contextmanager
def drops_replicas_before_others_joined() -> Iterator[None]:
    """Replicas go although not all that come instead are in sync: those that are not stand in the ISR all the same."""

    def wrong(log: str, state: LogState, brokers: dict[int, BrokerState]) -> LogState | None:
        target = state.target or ()
        isr = dict(state.isr) | {each: brokers[each].epoch for each in target if each in brokers}
        return real(log, msgspec.structs.replace(state, isr=tuple(isr.items())), brokers)

    real = moves.switched
    with mock.patch.object(moves, "switched", wrong):
        yield


@contextmanager
def serves_on_while_it_hands_over() -> Iterator[None]:
    """A leader that hands over serves until it sees that it has."""
    real = Leader.may_serve

    def wrong(self: Leader, now_s: float, lease_until_s: float) -> bool:
        self.handing_over = False
        return real(self, now_s, lease_until_s)

    with mock.patch.object(Leader, "may_serve", wrong):
        yield


@contextmanager
def believes_replicas_that_were_dropped() -> Iterator[None]:
    """Replicas that go leave the epoch as it is: what one said before it dropped the log counts when it is back."""

    def wrong(log: str, state: LogState, brokers: dict[int, BrokerState]) -> LogState | None:
        found = real(log, state, brokers)
        return None if found is None else msgspec.structs.replace(found, leader_epoch=state.leader_epoch)

    real = moves.switched
    with mock.patch.object(moves, "switched", wrong):
        yield


@contextmanager
def trusts_what_the_cache_shows() -> Iterator[None]:
    """A start calls flushed what it reads: what a failed sync has lost is on no disk."""
    with mock.patch.object(WrittenAgain, "_write", return_value=None):
        yield


Mutation = Callable[[], Any]

CAUGHT_BY: dict[Mutation, int] = {
    truncates_to_the_watermark: 1,
    reports_what_is_not_synced: 22,
    elects_anybody: 31,
    counts_a_smaller_isr_before_it_is_one: 3,
    forgets_the_joiner: 49,
    commits_below_the_minimum: 5,
    trusts_a_new_disk: 3,
    keeps_the_epoch: 0,
    serves_without_a_lease: 23,
    breaks_its_promise: 6,
    fills_gaps_with_what_comes: 17,
}

RARELY_CAUGHT: tuple[Mutation, ...] = (
    heeds_old_answers,
    trusts_what_the_cache_shows,
    cuts_by_the_leaders_epoch_alone,
)
"""By one schedule in hundreds at most, since a follower that has to report is sent nothing else meanwhile, since a kill
after a failed sync must be followed by a loss of power, and since two leaders must fail one after the other with what
they have sent nobody: sequences made by hand show them (`test_directed.py`).
"""

CAUGHT_WITH_MOVES_BY: dict[Mutation, int] = {
    drops_replicas_before_others_joined: 0,
    serves_on_while_it_hands_over: 1,
    believes_replicas_that_were_dropped: 22,
}
"""In worlds with `moves`."""
