"""What transactions of producers ask of other brokers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Ending(NamedTuple):
    """How a producer's transaction ended. `coordinator_epoch` is in which its coordinator leads."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


class CoordinatorLink(Protocol):
    """To another broker."""

    async def ask(self, question: bytes) -> bytes:
        """Ask one of `questions.py`; its answer. Raises LogTransactionError, StorageUnavailable."""
