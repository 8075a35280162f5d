"""Where the ids of queues come from. No id is given twice, because the logs name queues by id.

What does not outlive the process is named in no log but its own scratch: in a cluster such queues have a counter of
this broker alone, so that nothing of them is ever written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgpack
import trio

from core_log.errors import Conflict
from core_log.metadata.store import Guard, MetadataEntry, MetadataStore

NEXT_QUEUE_ID: bytes = msgpack.packb(["next-queue-id"])
"""The key of a single broker's, """
QUEUE_ID_BLOCKS = b"ids/queue"
"""and of the next block of a cluster; the value is the next id that nobody has."""
BLOCK_IDS = 1_000


class OutOfQueueIds(Exception):
    """`reserve` must come first."""


class QueueIds(Protocol):
    """Gives out ids."""

    async def reserve(self) -> None:
        """Have some to give out. Raises MetadataUnavailable."""

    def new(self, *, durable: bool) -> int:
        """An id that no queue ever had. Raises OutOfQueueIds."""

    def note(self) -> None:
        """Queues are about to be written that have the last ones. Raises MetadataUnavailable."""

    def skip(self, last_id: int) -> None:
        """Give out no id up to this one: a log names it, though it was never recorded."""


class OwnQueueIds:
    """Those of a single broker: the next one is an entry that is written along with every queue."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        saved = store.get(NEXT_QUEUE_ID)
        self._next: int = _number(saved.value) if saved is not None else 1

    async def reserve(self) -> None:
        """There are always some."""

    def new(self, *, durable: bool) -> int:
        """See `QueueIds`."""
        queue_id = self._next
        self._next += 1
        return queue_id

    def note(self) -> None:
        """See `QueueIds`."""
        self._store.change_now([(NEXT_QUEUE_ID, msgpack.packb(self._next))])

    def skip(self, last_id: int) -> None:
        """See `QueueIds`."""
        self._next = max(self._next, last_id + 1)


class SharedQueueIds:
    """Those of a cluster: each broker takes a block at a time. One that was taken is not taken again where etcd is put
    back to an earlier state: logs name its queues.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        store.listeners.append(self._applied)
        self._next = self._end = self._skipped = 0
        self._transient = 0
        self._reserving = trio.Lock()

    async def reserve(self) -> None:
        """See `QueueIds`. Many may ask at once: one block is for all of them."""
        async with self._reserving:
            await self._reserve()

    async def _reserve(self) -> None:
        while self._next >= self._end:
            entry = self._store.get(QUEUE_ID_BLOCKS)
            self.skip(_number(entry.value) - 1 if entry is not None else 0)
            first = self._skipped + 1
            guard = Guard(QUEUE_ID_BLOCKS, entry.mod_revision if entry is not None else 0)
            try:
                await self._store.change([guard], [(QUEUE_ID_BLOCKS, msgpack.packb(first + BLOCK_IDS))])
            except Conflict:
                continue
            self._next, self._end = first, first + BLOCK_IDS

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        for entry in entries:
            if entry.key == QUEUE_ID_BLOCKS and entry.value is not None:
                self.skip(_number(entry.value) - 1)

    def new(self, *, durable: bool) -> int:
        """See `QueueIds`."""
        if not durable:
            self._transient += 1
            return self._transient
        if self._next >= self._end:
            raise OutOfQueueIds
        queue_id = self._next
        self._next += 1
        return queue_id

    def note(self) -> None:
        """The block was taken as a whole."""

    def skip(self, last_id: int) -> None:
        """See `QueueIds`."""
        self._skipped = max(self._skipped, last_id)


def _number(data: bytes | None) -> Any:
    assert data is not None
    return msgpack.unpackb(data)
