"""Records of a consumer worked on by many at a time, those of one key in their order.

1. Records of one *lane* (a topic's key; or a partition) are worked on one after the other, lanes beside each other. A
   record without a key is a lane of its own with order "key".
2. Of each partition it is committed up to the first record that is not finished: who comes after begins there, and gets
   again what was finished behind it. At least once.
3. When partitions are given up, all up to the last record that was begun is finished first, and committed; the rest is
   left to the next owner.
4. The first error ends it: what was finished is committed, what is under way is cancelled. However it ends, the
   consumer goes back to the first record of each partition that is not finished: who goes on with it passes none over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import trio

from protocols.native.clients.consumer import Consumer
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.positions import Position
from protocols.native.clients.records import ConsumerRecord
from protocols.native.errors import MillraceError

logger = logging.getLogger("protocols.native.clients.consumer")

Order = Literal["key", "partition", "none"]
Handle = Callable[[ConsumerRecord], Awaitable[object]]

_POLL_MS = 100
_FULL_S = 0.05
_CLOSE_S_MAX = 5.0


class _Work:
    """A record on its way."""

    __slots__ = ("begun", "done", "lane", "record", "tracked")

    def __init__(self, record: ConsumerRecord, lane: object, tracked: _Tracked) -> None:
        self.record = record
        self.lane = lane
        self.tracked = tracked
        self.begun = self.done = False


class _Tracked:
    """How far a partition is finished, as long as it is read on from where it was."""

    __slots__ = ("_generation", "committed", "next_offset", "pending", "position")

    def __init__(self, position: Position, first: int) -> None:
        self.position = position
        self._generation = position.generation
        self.pending: deque[_Work] = deque()
        self.next_offset = self.committed = first

    @property
    def is_current(self) -> bool:
        """It is still read, and nobody has moved it."""
        return self.position.generation == self._generation

    @property
    def is_under_way(self) -> bool:
        """There are records that are not finished and not left to another owner."""
        return self.is_current and bool(self.pending) and self.pending[0].tracked is self

    def cut(self, offset: int) -> None:
        """The log has other records from an offset on, which come: those before it are still to be worked on."""
        if self._generation + 1 != self.position.generation:
            return  # somebody has moved it before
        self._generation += 1
        while self.pending and self.pending[-1].record.offset >= offset:
            self.pending.pop().tracked = _GONE
        self.next_offset, self.committed = min(self.next_offset, offset), min(self.committed, offset)

    def finished(self) -> None:
        """Some record is."""
        while self.pending and self.pending[0].done:
            self.next_offset = self.pending.popleft().record.offset + 1


async def process_in_parallel(
    consumer: Consumer,
    handle: Handle,
    *,
    workers: int = 8,
    order: Order = "key",
    in_flight_max: int = 1000,
    commit_interval_ms: int = 1000,
) -> None:
    """Call `handle` with every record that the consumer gets, up to `workers` at a time; see the module.

    `in_flight_max` records at most wait or are worked on. Never returns; raises what `handle` or the consumer raises.
    Cancel it to end.

    Raises ValueError for a consumer that commits by itself, an order that is none, and where nobody would do anything.
    """
    if order not in ("key", "partition", "none"):
        raise ValueError(f"order is 'key', 'partition' or 'none', not {order!r}")
    if workers < 1 or in_flight_max < 1:
        raise ValueError(f"workers and in_flight_max are at least 1, not {workers} and {in_flight_max}")
    if consumer.commits_by_itself:
        raise ValueError("who works in parallel commits what is finished: no auto_commit_interval_ms")
    await consumer._run_in_trio(_Processor(consumer, handle, workers, order, in_flight_max, commit_interval_ms).run)


class _Processor:
    def __init__(
        self,
        consumer: Consumer,
        handle: Handle,
        workers: int,
        order: Order,
        in_flight_max: int,
        commit_interval_ms: int,
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._workers = workers
        self._order = order
        self._in_flight_max = in_flight_max
        self._commit_interval_s = commit_interval_ms / 1000
        self._lanes: dict[object, deque[_Work]] = {}
        """Of each lane what waits or is under way, in order."""
        self._ready: deque[_Work] = deque()
        self._filled = trio.Event()
        self._moved = trio.Event()
        self._in_flight = 0
        self._tracked: dict[Partition, _Tracked] = {}
        self._failure: BaseException | None = None

    async def run(self) -> None:
        before_revoked = self._consumer._before_revoked
        before_revoked.append(self._drain)
        self._consumer._on_cut.append(self._cut)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._workers):
                    nursery.start_soon(self._work, nursery.cancel_scope)
                await self._read(nursery.cancel_scope)
        finally:
            before_revoked.remove(self._drain)
            self._consumer._on_cut.remove(self._cut)
            with trio.move_on_after(_CLOSE_S_MAX, shield=True):
                await self._commit()
            self._go_back()
        if self._failure is not None:
            raise self._failure

    async def _read(self, scope: trio.CancelScope) -> None:
        commit_at = trio.current_time() + self._commit_interval_s
        try:
            while True:
                room = self._in_flight_max - self._in_flight
                if room > 0:
                    for record in await self._consumer.poll(_POLL_MS, room):
                        self._take(record)
                else:
                    self._moved = trio.Event()
                    with trio.move_on_after(_FULL_S):
                        await self._moved.wait()
                    await self._consumer.stand_by()
                if trio.current_time() >= commit_at:
                    await self._commit()
                    commit_at = trio.current_time() + self._commit_interval_s
        except Exception as error:
            self._failure = self._failure or error
            scope.cancel()

    def _take(self, record: ConsumerRecord) -> None:
        key = (record.topic, record.partition)
        tracked = self._tracked.get(key)
        if tracked is None or not tracked.is_current:
            tracked = self._tracked[key] = _Tracked(self._consumer._positions[key], record.offset)
        lane: object = None
        if self._order == "partition":
            lane = key
        elif self._order == "key" and record.key is not None:
            lane = (record.topic, record.key)
        work = _Work(record, lane, tracked)
        tracked.pending.append(work)
        self._in_flight += 1
        if lane is not None:
            line = self._lanes.get(lane)
            if line is not None:
                line.append(work)
                return
            self._lanes[lane] = deque((work,))
        self._ready.append(work)
        self._filled.set()

    async def _work(self, scope: trio.CancelScope) -> None:
        while True:
            if not self._ready:
                if self._filled.is_set():
                    self._filled = trio.Event()
                await self._filled.wait()
                continue
            work = self._ready.popleft()
            if work.tracked.is_current:
                work.begun = True
                try:
                    await self._consumer._await_given(self._handle(work.record))
                except trio.Cancelled:
                    raise
                except BaseException as error:  # asyncio.CancelledError, too
                    self._failure = self._failure or error
                    scope.cancel()
                    return
                work.done = True
                work.tracked.finished()
            self._leave(work)

    def _cut(self, key: Partition, offset: int) -> None:
        if key in self._tracked:
            self._tracked[key].cut(offset)

    def _leave(self, work: _Work) -> None:
        self._in_flight -= 1
        self._moved.set()
        if work.lane is None:
            return
        line = self._lanes[work.lane]
        line.popleft()
        if line:
            self._ready.append(line[0])
            self._filled.set()
        else:
            del self._lanes[work.lane]

    def _go_back(self) -> None:
        """Rule 4."""
        self._consumer._seek(
            {
                key: tracked.next_offset
                for key, tracked in self._tracked.items()
                if tracked.is_current and tracked.pending
            }
        )

    async def _drain(self, partitions: list[Partition]) -> None:
        """Rule 3. What is left is in `pending`: who ends it before they are given up goes back there."""
        going = [self._tracked[key] for key in partitions if key in self._tracked]
        for tracked in going:
            for work in reversed(tracked.pending):
                if work.begun:
                    break
                work.tracked = _GONE
        while any(tracked.is_under_way for tracked in going):
            self._moved = trio.Event()
            await self._moved.wait()
        offsets = {
            (tracked.position.topic, tracked.position.partition): tracked.next_offset
            for tracked in going
            if tracked.is_current and tracked.next_offset > tracked.committed
        }
        await self._store(offsets)

    async def _commit(self) -> None:
        read = set(self._consumer.assignment)
        offsets = {}
        for key, tracked in self._tracked.items():
            if key in read and tracked.is_current and tracked.next_offset > tracked.committed:
                offsets[key] = tracked.next_offset
        if await self._store(offsets):
            for key, offset in offsets.items():
                if key in self._tracked:
                    self._tracked[key].committed = offset

    async def _store(self, offsets: dict[Partition, int]) -> bool:
        if not offsets:
            return False
        try:
            await self._consumer.commit(offsets)
        except MillraceError as error:
            logger.warning("offsets were not committed: %s", error)
            return False
        return True


def _never() -> Any:
    tracked = _Tracked(Position("", 0, 0), 0)
    tracked.position.generation = -1
    return tracked


_GONE: _Tracked = _never()
"""Of records that are others' to work on."""
