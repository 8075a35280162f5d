"""What `Replicas` sees of other brokers, and how much of what they are sent is for those that catch up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core_log.files import BytesLike
from core_log.replication.messages import Batches, Diverging, Position, Refused

Frame = Sequence[BytesLike]
"""What a link has made of what it was to say."""


class FollowerLink(Protocol):
    """To a broker that follows logs led here."""

    @property
    def broker(self) -> int:
        """Its id."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of its process."""

    @property
    def room_bytes(self) -> int:
        """How many bytes of batches may be sent now."""

    def send(self, batches: Sequence[Batches], frame: Frame | None = None) -> Frame | None:
        """Say all of this, or with nothing that this broker lives. `frame` is what another link has made of the very
        same; returns what this one has, if others are to be given it.
        """

    def answer(self, reply: Diverging | Refused) -> None:
        """Answer a position that cannot be followed."""

    def replaced(self) -> None:
        """The same broker has another link now: end."""


class LeaderLink(Protocol):
    """To a broker that leads logs followed here."""

    @property
    def broker(self) -> int:
        """Its id."""

    @property
    def credit_is_due(self) -> bool:
        """So much has come that the leader should be given more credit."""

    def send(self, positions: Sequence[Position]) -> None:
        """Say all of this, or with nothing that this broker lives."""

    def replaced(self) -> None:
        """The same broker has another link now: end."""


class Allowance:
    """So many bytes a second, as they come; at most one second's are kept."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.taken_bytes = 0
        """Since there is one."""
        self._bytes = float(bytes_per_s)
        self._at_s = now_s

    def left(self, now_s: float) -> int:
        """How many there are now."""
        self._bytes = min(self._bytes + (now_s - self._at_s) * self.bytes_per_s, self.bytes_per_s)
        self._at_s = now_s
        return int(self._bytes)

    def take(self, count: int) -> None:
        """Use some; a single batch may be more than there are."""
        self.taken_bytes += count
        self._bytes -= count
