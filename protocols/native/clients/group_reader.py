"""What the membership of a group does with its consumer: see `Reader`."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import TYPE_CHECKING

from protocols.native.clients.fetcher import NOWHERE
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.membership import Reader
from protocols.native.errors import GONE, MillraceError

if TYPE_CHECKING:
    from protocols.native.clients.consumer import Consumer


class GroupReader(Reader):
    """What its membership wants of a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def starts(self, partitions: list[Partition]) -> dict[Partition, int]:
        """See `Reader`."""
        try:
            return await self._starts(partitions)
        except MillraceError as error:
            if error.code not in GONE:
                raise
        found: dict[Partition, int] = {}
        for key in partitions:
            try:
                found |= await self._starts([key])
            except MillraceError as error:
                if error.code not in GONE:
                    raise
        return found

    async def _starts(self, partitions: list[Partition]) -> dict[Partition, int]:
        """With reset "error" nothing is wrong before the application was asked: `NOWHERE`."""
        consumer = self._consumer
        if consumer._reset != "error":
            return await consumer._starts(partitions)
        await list_offsets(consumer._leaders, partitions, "earliest")  # raises for what is gone
        return dict.fromkeys(partitions, NOWHERE) | await consumer.committed(partitions)

    def reads(self) -> Collection[Partition]:
        """See `Reader`."""
        return self._consumer._positions

    def set_assigned(self, starts: Mapping[Partition, int]) -> None:
        """See `Reader`. What was not read until now may be of a topic that was made again since it was asked about."""
        self._consumer._leaders.stale(key for key in starts if key not in self._consumer._positions)
        self._consumer._set_positions(starts)

    async def before_revoked(self, partitions: list[Partition]) -> None:
        """See `Reader`."""
        for finish in self._consumer._before_revoked:
            await finish(partitions)
        await self._consumer._commit_by_itself()

    async def await_given(self, given: Awaitable[None]) -> None:
        """See `Reader`."""
        await self._consumer._await_given(given)

    def interrupt(self) -> None:
        """See `Reader`."""
        self._consumer._put_back()
        self._consumer._arrived.set()

    def progress(self) -> object:
        """See `Reader`."""
        consumer = self._consumer
        return None if consumer._waiting else (consumer._asked, consumer._next)
