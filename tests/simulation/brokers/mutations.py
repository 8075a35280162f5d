"""Wrong rules of whole brokers: what the simulation must be able to notice.

Each is a context in which brokers follow the wrong rule. `CAUGHT_BY` says with which seed that is known to show, and
which invariants (`ledger.py`) may break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from core_log.replica_log import ReplicaLog
from core_log.replication.leader import Leader
from routing.cluster import homes
from routing.cluster.clients.published import Taken
from routing.commits import CommitWaiter, storage_errors
from routing.queues.homes import replay
from routing.queues.homes.replicated_partition import ReplicatedPartition
from routing.queues.homes.standby import Standby
from routing.queues.settlement import SETTLED_KEY
from routing.topics.offset_store import OffsetStore


@contextmanager
def confirms_before_the_watermark() -> Iterator[None]:
    """Whoever waits for a commit is told when this broker's disk has it."""
    real = CommitWaiter.when_committed

    def wrong(self: CommitWaiter, requirements: Any, done: Any, *, sync: bool = True, **also: Any) -> None:
        real(self, requirements, done, sync=False, **also)

    with mock.patch.object(CommitWaiter, "when_committed", wrong):
        yield


@contextmanager
def forgets_settlements() -> Iterator[None]:
    """A standby takes no notice of what was settled."""
    real = Standby._control

    def wrong(self: Standby, key: bytes | None, offset: int, value: bytes) -> None:
        if key != SETTLED_KEY:
            real(self, key, offset, value)

    with mock.patch.object(Standby, "_control", wrong):
        yield


@contextmanager
def serves_after_its_lease() -> Iterator[None]:
    """A leader that was cut off gives out and takes as long as nobody told it that it is none."""

    def wrong(self: Leader, now_s: float, lease_until_s: float) -> bool:
        return not self.fenced

    with mock.patch.object(Leader, "may_serve", wrong):
        yield


@contextmanager
def trusts_what_its_last_turn_found() -> Iterator[None]:
    """Who asks a leader that has stood still is answered as if no time had passed."""
    with mock.patch.object(ReplicatedPartition, "look_again"):
        yield


@contextmanager
def marks_nothing_at_a_promotion() -> Iterator[None]:
    """Who becomes leader takes it that the one before had given nothing out."""
    real = replay.unclean
    with mock.patch.object(homes, "unclean", lambda standby, queue, end: real(standby, queue, 0)):
        yield


@contextmanager
def gives_out_what_is_not_committed() -> Iterator[None]:
    """Messages are in their queues when they are published."""
    real = ReplicatedPartition._admit

    def wrong(self: ReplicatedPartition, first: int, slab: Any, destinations: Any) -> None:
        real(self, first, slab, destinations)
        self._give(self._held.pop())

    with mock.patch.object(ReplicatedPartition, "_admit", wrong):
        yield


@contextmanager
def takes_again_what_is_sent_again() -> Iterator[None]:
    """What comes again over the next link is taken for new."""

    real = Taken.again

    def wrong(self: Taken) -> None:
        real(self)
        self.next_position = -1

    with mock.patch.object(Taken, "again", wrong):
        yield


@contextmanager
def answers_before_offsets_are_kept() -> Iterator[None]:
    """A commit of group offsets is answered when it is in memory."""

    async def wrong(self: OffsetStore, group: str, offsets: Any) -> None:
        with storage_errors():
            self.note(group, offsets)

    with mock.patch.object(OffsetStore, "commit", wrong):
        yield


@contextmanager
def keeps_less_than_it_says() -> Iterator[None]:
    """A follower reports what is not on its disk."""
    with mock.patch.object(ReplicaLog, "local_committed", property(lambda log: log.log_end_offset)):
        yield


Mutation = Callable[[], Any]

CAUGHT_BY: dict[Mutation, tuple[int, str]] = {
    confirms_before_the_watermark: (0, "1"),
    forgets_settlements: (0, "6"),
    marks_nothing_at_a_promotion: (0, "6"),
    gives_out_what_is_not_committed: (0, "6"),
    takes_again_what_is_sent_again: (5, "6"),
    keeps_less_than_it_says: (4, "134"),
}
RARELY_CAUGHT: dict[Mutation, str] = {
    answers_before_offsets_are_kept: "9",
    serves_after_its_lease: "7",
    trusts_what_its_last_turn_found: "67",
}
"""By one schedule in some dozens, or hundreds, which takes too long for every day: with `--mutation`,
sooner with `--harsh` as well. Sequences made by
hand show what is served after a lease as well (`tests/simulation/test_directed.py`).
"""
BY_NAME = {mutation.__name__: mutation for mutation in (*CAUGHT_BY, *RARELY_CAUGHT)}
