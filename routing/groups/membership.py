"""What members of groups that one of them divides say and hear, and what a group has of each (`group.py`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from routing.groups.errors import FencedInstance, GroupError, UnknownMember


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


def new_id(joining: Joining, before: str, now_ms: int) -> str:
    """An id for a member. A static one has a number in it, above that of the process before it."""
    dice = secrets.token_hex(16)
    if joining.instance_id is None:
        return f"{joining.client_id}-{dice}"
    return f"{joining.instance_id}-{max(now_ms, _number_of(before) + 1)}-{dice}"


def require_same(instance_id: str, member_id: str, known: str) -> None:
    """Whether an id is that of the process that is a static member. Raises FencedInstance; UnknownMember if who looked
    after the group before gave it out, later than the one that is known, and it was not kept.
    """
    if _number_of(member_id) > _number_of(known):
        raise UnknownMember(f"static member '{instance_id}' has an id that was not kept")
    if member_id != known:
        raise FencedInstance("another process is this static member now")


def _number_of(member_id: str) -> int:
    parts = member_id.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else -1


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
