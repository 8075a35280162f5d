"""What a transaction asks of another broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from routing.errors import StorageUnavailable
from routing.queues.runs_of import runs_of


class OutcomeUnknown(StorageUnavailable):
    """It may have been done, or may be done yet."""


class Settlement(NamedTuple):
    """Messages of one queue that are done with: ranges of offsets in its home. If `number` is not 0, that consumer had
    them as these `ids`.
    """

    queue_id: int
    number: int
    ids: Sequence[int]
    offsets: Sequence[int]
    rejected: bool


class TransactionLink(Protocol):
    """To another broker. All raise StorageUnavailable where nothing was done, OutcomeUnknown where nobody knows."""

    async def keep(self, number: int, key: bytes, record: bytes | None) -> None:
        """Have a record kept, or forgotten, in the log of a number; returns when that is committed."""

    async def keep_step(self, number: int, key: bytes, record: bytes, writer: str, step: int) -> bool:
        """Have the record of a writer's step kept in the log of a number, once; returns when that is committed. False:
        the step, or a later one, was kept before, and has taken effect.
        """

    async def put(self, log: str, record: bytes) -> int:
        """Have a log hold all of its part of a step, which the record says; returns when that is committed: where the
        log ends. With no record it only says that.
        """

    async def places(self, number: int, ids: Sequence[int]) -> Sequence[int]:
        """The offsets of what consumer `number` has and has not settled: ranges, of ranges of ids. None
        at all if it was given back.
        """

    async def settle(self, log: str, settlements: Sequence[Settlement]) -> None:
        """Settle messages of a home; returns when that is committed."""


def ranges_of(values: Iterable[int]) -> list[int]:
    """First and last of each run."""
    return [one for first, count in runs_of(list(values)) for one in (first, first + count - 1)]


def each_in(ranges: Sequence[int]) -> list[int]:
    """The inverse of `ranges_of`."""
    return [value for first, last in zip(ranges[::2], ranges[1::2], strict=True) for value in range(first, last + 1)]
