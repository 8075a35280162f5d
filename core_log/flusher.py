"""What a partition log asks of whoever writes for it; `log_flusher.py` does it with threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from core_log.replacement import Replacement
    from core_log.tail_cache import TailBudget

T = TypeVar("T")


class Flusher(Protocol):
    """See `LogFlusher`, which says what each of them means."""

    unflushed_bytes: int
    tails: TailBudget

    def enlist(self, log: PartitionLog) -> None:
        """There is something to do for `log`, soon."""

    def submit(self, log: PartitionLog) -> None:
        """Hand over what `log` has now."""

    def retry_later(self, log: PartitionLog) -> None:
        """The disk refused: try again after a while."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks off the event loop."""

    async def drain(self, log: PartitionLog) -> None:
        """Wait until everything appended so far is written, or the disk refuses."""

    async def wait_written(self, log: PartitionLog, offset: int) -> None:
        """Wait until `written_offset` reaches `offset`. Raises LogUnavailable."""

    async def wait_committed(self, log: PartitionLog, offset: int) -> None:
        """Wait until `committed_offset` reaches `offset`. Raises LogUnavailable."""

    async def wait_shortened(self, log: PartitionLog, offset: int) -> None:
        """Wait until `durable_start_offset` reaches `offset`. Raises LogUnavailable."""

    async def replace(self, log: PartitionLog, offer: Replacement) -> None:
        """Have a compacted segment take its place in `log`: `offer.named` says whether it did."""

    def withdraw(self, log: PartitionLog) -> None:
        """Take a log back: waits for its job and applies the result. Blocks."""
