"""What members of groups that one of them divides say and hear, and what a group has of each (`group.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from routing.groups.errors import GroupError


class Cancellable(Protocol):
    """A timer that is set."""

    def cancel(self) -> None:
        """It does not fire any more."""


Keep = Callable[[Callable[[GroupError | None], None]], None]
"""Calls something when all that has changed of a group is safe, or with why it cannot be."""
SetTimer = Callable[[int, Callable[[], None]], Cancellable]
"""Calls something in so many milliseconds."""


class State(Enum):
    """See the module."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Joining(NamedTuple):
    """What a member says when it joins. Times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """How it can divide partitions, the preferred way first, and what it wants, in the way's own words."""
    must_have_id: bool = False
    """A new member is given its id, and joins with it: so one that joins and goes leaves nobody behind."""


class Joined(NamedTuple):
    """The answer; `error` says why there is no generation."""

    error: GroupError | None
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """For the leader, and a static member that was it: member id, instance id and what it wants."""
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to who asks what it reads."""

    error: GroupError | None
    assignment: bytes = b""
    protocol: str = ""


class Member:
    """One of them."""

    __slots__ = ("assignment", "id", "join", "joining", "session", "sync")

    def __init__(self, member_id: str, joining: Joining) -> None:
        self.id = member_id
        self.joining = joining
        self.assignment = b""
        self.join: Callable[[Joined], None] | None = None
        """Waits for the next generation."""
        self.sync: Callable[[Synced], None] | None = None
        """Waits for the leader."""
        self.session: Cancellable | None = None

    def metadata_for(self, protocol: str) -> bytes:
        """What it wants, in the words of a protocol."""
        return next((metadata for name, metadata in self.joining.protocols if name == protocol), b"")
