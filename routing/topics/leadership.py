"""Who leads a partition of a topic, as far as this broker knows: what a replicated one is asked before it is used."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from routing.errors import StorageUnavailable


class Standing(NamedTuple):
    """What the metadata says of a partition."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Leadership(Protocol):
    """Of one partition. Asked once a request or slab, never per message."""

    @property
    def standing(self) -> Standing:
        """Who leads it, and who has it."""

    def refusal(self) -> StorageUnavailable | None:
        """Why this broker may not act as its leader now; None: it may."""

    def shortage(self) -> StorageUnavailable | None:
        """Why what would be appended now could not be committed; None: it can, for all that is known."""
