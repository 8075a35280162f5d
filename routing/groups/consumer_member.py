"""A member of a group that the broker divides (KIP-848), and what it says and hears.

A member goes from what it has to what it is to have (its target) in steps: what it has to give up is taken from what
it may read, and is somebody else's once it says that it owns it no more (REVOKING); what others have not given up yet
comes when they have (UNRELEASED). Its epoch is that of the assignment that it is on the way to, with no more to revoke.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from routing.access.grants import Access
from routing.groups.assignors import NOWHERE, Place, Places
from routing.groups.errors import InvalidBeat
from routing.groups.membership import Cancellable, Joining

JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
"""What a member says for its epoch when it comes, goes, or will be back (static members)."""

TOPICS_MAX = 10_000


class Reader(Protocol):
    """The rights of who is behind a member."""

    def allows(self, access: Access, topic: str) -> bool:
        """Whether a topic may be used so."""


class Beat(NamedTuple):
    """What a member says; what is None has not changed since it last said it."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Places | None = None
    reader: Reader | None = None
    """Whose rights count for the topics that match the pattern; None: all do."""

    def require_sense(self) -> None:
        """Raises InvalidBeat, with Kafka's words."""
        if self.epoch < LEAVING_FOR_NOW:
            raise InvalidBeat("MemberEpoch is invalid.")
        if self.epoch == LEAVING_FOR_NOW and self.instance_id is None:
            raise InvalidBeat("InstanceId can't be null.")
        if self.topics is not None and len(self.topics) > TOPICS_MAX:
            raise InvalidBeat(f"A member subscribes to at most {TOPICS_MAX} topics by name.")
        if self.epoch != JOINING:
            return
        if self.rebalance_timeout_ms < 0:
            raise InvalidBeat("RebalanceTimeoutMs must be provided in first request.")
        if self.owned is None or self.owned:
            raise InvalidBeat("TopicPartitions must be empty when (re-)joining.")
        if self.topics is None and self.pattern is None:
            raise InvalidBeat("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")

    @property
    def is_full(self) -> bool:
        """Everything is said, so everything is answered."""
        subscribed = self.topics is not None or self.pattern is not None
        return self.epoch == JOINING or (self.rebalance_timeout_ms >= 0 and subscribed and self.owned is not None)


class Beaten(NamedTuple):
    """The answer; `error` says why there is none."""

    error: Exception | None
    member_id: str = ""
    epoch: int = 0
    interval_ms: int = 0
    """When to be heard of again."""
    assignment: Places | None = None
    """What the member may read; None: as it was told before."""


class Step(Enum):
    """On a member's way to its target."""

    STABLE = 1
    REVOKING = 2
    UNRELEASED = 3


class ConsumerMember:
    """See the module."""

    __slots__ = (
        "assigned", "assignor", "classic", "client_host", "client_id", "due", "epoch", "id", "instance_id", "looked",
        "matched", "pattern", "previous_epoch", "rack_id", "reader", "rebalance_timeout_ms", "revoke_timer", "revoking",
        "session", "step", "topics", "until_ms",
    )  # fmt: skip

    def __init__(self, member_id: str, instance_id: str | None = None) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.rack_id: str | None = None
        self.client_id = self.client_host = ""
        self.rebalance_timeout_ms = 0
        self.topics: frozenset[str] = frozenset()
        self.pattern = ""
        self.matched: frozenset[str] = frozenset()
        """Topics that the pattern stands for."""
        self.assignor: str | None = None
        self.epoch = self.previous_epoch = 0
        self.step = Step.STABLE
        self.assigned = self.revoking = NOWHERE
        self.reader: Reader | None = None
        self.classic: Joining | None = None
        """What it said last when it joined, where it does not know of epochs (`mixed_group.py`)."""
        self.due: Cancellable | None = None
        """It is out unless it joins again, or asks what it reads, before that."""
        self.session: Cancellable | None = None
        self.revoke_timer: Cancellable | None = None
        self.until_ms = 0
        """Then it is out, if it is not heard of."""
        self.looked = -1
        """How many partitions had been released when it last asked for some that were not."""

    @property
    def subscribed(self) -> frozenset[str]:
        """Names of all topics that it wants."""
        return self.topics | self.matched if self.matched else self.topics

    @property
    def held(self) -> Places:
        """What nobody else may have."""
        return self.assigned | self.revoking if self.revoking else self.assigned

    def successor(self, member_id: str) -> ConsumerMember:
        """The same static member as another process."""
        found = ConsumerMember(member_id, self.instance_id)
        for name in ("topics", "pattern", "matched", "assignor", "assigned", "rack_id", "rebalance_timeout_ms"):
            setattr(found, name, getattr(self, name))
        return found

    def take_words(self, beat: Beat) -> bool:
        """Note what it says of itself; whether anything is new."""
        before = (self.rack_id, self.client_id, self.client_host, self.rebalance_timeout_ms, self.assignor)
        self.client_id, self.client_host = beat.client_id, beat.client_host
        if beat.rack_id is not None:
            self.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms >= 0:
            self.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.assignor is not None:
            self.assignor = beat.assignor
        return before != (self.rack_id, self.client_id, self.client_host, self.rebalance_timeout_ms, self.assignor)

    def next_step(
        self, target: Places, target_epoch: int, owned: Places | None, owners: Mapping[Place, str]
    ) -> tuple[Step, int, Places, Places] | None:
        """The step after this one: (step, epoch, assigned, revoking); None if it stays where it is. `owned` is what the
        member says that it has, `owners` who may read what.
        """
        epoch = self.epoch
        if self.step is Step.STABLE and epoch == target_epoch:
            return None
        if self.step is Step.REVOKING:
            if owned is None or not self.revoking.isdisjoint(owned):
                return None
            epoch = min(epoch + 1, target_epoch)
        keeps = self.assigned & target
        gives = self.assigned - target
        if gives and (owned is None or not gives.isdisjoint(owned)):
            return Step.REVOKING, epoch, keeps, gives
        wanted = target - keeps
        free = {place for place in wanted if owners.get(place, self.id) == self.id}
        step = Step.STABLE if len(free) == len(wanted) else Step.UNRELEASED
        return step, target_epoch, keeps | free, NOWHERE


SetNow = Callable[[], int]
"""Milliseconds of the clock that timers go by."""
