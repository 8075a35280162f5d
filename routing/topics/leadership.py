"""Who leads a partition of a topic, as far as this broker knows: what a replicated one is asked before it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from core_log.partition_log import PartitionLog


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

    @property
    def epoch(self) -> int:
        """The leader epoch that it is in."""

    def low_watermark(self) -> int:
        """Where it starts on all that are in sync; -1 where another broker leads it."""

    def refusal(self) -> StorageUnavailable | None:
        """Why this broker may not act as its leader now; None: it may."""

    def unknown_end(self) -> StorageUnavailable | None:
        """Why this broker, which leads it, cannot say yet up to where it has been read already; None: it can."""

    def shortage(self) -> StorageUnavailable | None:
        """Why what would be appended now could not be committed; None: it can, for all that is known."""


class Forward(Protocol):
    """To whoever leads a partition, for messages that exchanges route to it, and what cannot be read here."""

    def error(self) -> StorageUnavailable | None:
        """Why nothing can be sent there now."""

    def append_records(
        self, keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes], body_bytes: int
    ) -> tuple[PartitionLog, int]:
        """Have records appended there; what has to get how far for them to be safe."""

    def drop(self) -> PartitionLog:
        """The topic is deleted: nothing is sent any more. What somebody may wait for, as in `append_records`."""

    @property
    def has_waiting(self) -> bool:
        """Something that was to be appended was not taken yet, by whomever."""

    async def read(self, offset: int, before: int, size_bytes: int) -> list[BytesLike]:
        """Whole batches that it has from `offset` on, below `before`. Raises CorruptBatch, StorageUnavailable."""

    async def committed(self, offset: int) -> int:
        """Have it sync what comes until readers may see what is before `offset`; how far they may see then. Raises
        StorageUnavailable, also when nothing comes for a while.
        """

    @property
    def ends(self) -> Callable[[], Awaitable[tuple[int, int]]]:
        """Where it begins, and how far it is committed. Raises StorageUnavailable."""
