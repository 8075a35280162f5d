"""A member of a group for programs without an event loop: a `Consumer` in a thread of its own.

1. The thread keeps up what a member owes its group, heartbeats above all, while the application works. Calls go to it
   one at a time and come back when they are done; one hop is paid for each list of records, not for each record.
2. What was handed out counts as consumed, record by record where the consumer is iterated.
3. A call that is interrupted (Ctrl-C, or what else a signal's handler raises) has ended in the thread as well before
   the application goes on; what it had got by then was not handed out.
4. The listener and what processes records are called in threads as well, and may call the consumer.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from protocols.native.clients.consumer import Consumer
from protocols.native.clients.forks import tell_when_forked
from protocols.native.clients.group_bytes import GroupMetadata, Partition
from protocols.native.clients.link import LinkConfig
from protocols.native.clients.membership import RebalanceListener
from protocols.native.clients.parallel import Order, process_in_parallel
from protocols.native.clients.records import ConsumerRecord
from protocols.native.errors import ConnectionLost

T = TypeVar("T")
_ITERATE_MS = 1000
_LOOK_S = 0.1


class BlockingRebalanceListener:
    """Told what a member of a group reads; see `RebalanceListener`."""

    def on_assigned(self, partitions: list[Partition]) -> None:
        """These are read from now on."""

    def on_revoked(self, partitions: list[Partition]) -> None:
        """These are about to be given up; what is committed here is where the next owner begins."""

    def on_lost(self, partitions: list[Partition]) -> None:
        """These are others' by now."""
        self.on_revoked(partitions)


class _InThread(RebalanceListener):
    def __init__(self, listener: BlockingRebalanceListener) -> None:
        self._listener = listener

    def on_assigned(self, partitions: list[Partition]) -> Awaitable[None]:
        return trio.to_thread.run_sync(self._listener.on_assigned, partitions)

    def on_revoked(self, partitions: list[Partition]) -> Awaitable[None]:
        return trio.to_thread.run_sync(self._listener.on_revoked, partitions)

    def on_lost(self, partitions: list[Partition]) -> Awaitable[None]:
        return trio.to_thread.run_sync(self._listener.on_lost, partitions)


class _Failed(Exception):
    """The application's block ended by an error."""


class BlockingGroupConsumer:
    """`with BlockingGroupConsumer("host:port", "g", topics=["t"]) as consumer`; see the module.

    `settings` are those of `Consumer`. `timeout_s` is for connecting and each reply.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        group: str,
        *,
        listener: BlockingRebalanceListener | None = None,
        timeout_s: float = 30,
        client_name: str = "",
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
        **settings: Any,
    ) -> None:
        link = LinkConfig(
            client_name=client_name, credentials=credentials, tls=tls, request_timeout_ms=int(timeout_s * 1000)
        )
        told = None if listener is None else _InThread(listener)
        self._consumer = Consumer(server, group, listener=told, link=link, **settings)
        self._thread = threading.Thread(target=self._run, name="millrace consumer", daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: BaseException | None = None
        self._stop = trio.Event()
        self._in_error = False
        self._is_left = False
        """The call that was to open it was interrupted."""
        self._records: list[ConsumerRecord] = []
        self._next = 0
        """What of them was handed out by iterating."""
        self._generations: dict[Partition, int] = {}
        """Of the positions that they were read at: a topic that is made anew meanwhile has other records."""
        self._is_ours = True
        tell_when_forked(self)

    def forked(self) -> None:
        """See `forks.py`: the thread, and with it the member of the group, is the parent's."""
        if self._thread.ident is not None:
            self._is_ours, self._token = False, None

    def _require_ours(self) -> None:
        if not self._is_ours:
            raise RuntimeError("a consumer belongs to the process that began it; begin another one behind the fork")
        if self._thread.ident is None:
            raise RuntimeError("a consumer reads within its block: with BlockingGroupConsumer(...) as consumer")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:  # what a signal's handler raised: nobody leaves a block that was not entered
            self._in_error = self._is_left = True
            self._end()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._in_error = error is not None
        if self._token is not None:
            self._give_back()
        self._end()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        """Have the thread end, if it has begun to serve."""
        if self._token is not None:
            try:
                trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
            except trio.RunFinishedError:
                pass

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except _Failed:
            pass
        except BaseException as error:  # the application's thread raises it
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        async with self._consumer:
            self._token = trio.lowlevel.current_trio_token()
            self._started.set()
            if not self._is_left:
                await self._stop.wait()
            if self._in_error:
                raise _Failed

    def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        self._require_ours()
        scope, begun, ended = trio.CancelScope(), threading.Event(), threading.Event()

        async def run() -> T:
            begun.set()
            try:
                with scope:
                    return await function(*arguments)
                raise ConnectionLost("the call was interrupted")  # nobody waits for it any more
            finally:
                ended.set()

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._failure or ConnectionLost("the consumer was closed") from None
        except BaseException:
            if not ended.is_set():  # what a signal's handler raised: Ctrl-C, SystemExit, a time that is up
                self._interrupt(scope, begun, ended)
            raise

    def _interrupt(self, scope: trio.CancelScope, begun: threading.Event, ended: threading.Event) -> None:
        """Rule 3. A call that was not even asked of the thread does not end there."""
        try:
            trio.from_thread.run_sync(scope.cancel, trio_token=self._token)
            trio.from_thread.run(trio.lowlevel.checkpoint, trio_token=self._token)  # by then it has begun, if ever
        except (trio.RunFinishedError, trio.Cancelled):
            return
        while begun.is_set() and self._thread.is_alive() and not ended.wait(_LOOK_S):
            pass

    def _call_sync(self, function: Callable[..., T], *arguments: Any) -> T:
        self._require_ours()
        try:
            return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._failure or ConnectionLost("the consumer was closed") from None

    def _give_back(self) -> None:
        """What was not handed out yet comes again."""
        if self._next < len(self._records):
            self._call_sync(self._go_back)
        self._records, self._next = [], 0  # not before: who is interrupted up to here goes back again

    def _go_back(self) -> None:
        self._consumer._seek(self._not_handed_out())

    def _not_handed_out(self) -> dict[Partition, int]:
        """Where partitions go on that are read as they were; call it in the consumer's thread."""
        current = {key: position.generation for key, position in self._consumer._positions.items()}
        found: dict[Partition, int] = {}
        for record in reversed(self._records[self._next :]):
            key = (record.topic, record.partition)
            if current.get(key, -1) == self._generations[key]:
                found[key] = record.offset
        return found

    def _next_offsets(self) -> dict[Partition, int]:
        return self._consumer._next_offsets() | self._not_handed_out()

    # ---- records

    def poll(self, timeout_ms: int, max_records: int = 500) -> list[ConsumerRecord]:
        """See `Consumer.poll`."""
        self._give_back()
        self._call(self._take, timeout_ms, max_records)
        records, self._records = self._records, []
        return records

    async def _take(self, timeout_ms: int, max_records: int = 500) -> None:
        """Have records that are still to be handed out."""
        self._records, self._next = await self._consumer.poll(timeout_ms, max_records), 0
        self._generations = {key: position.generation for key, position in self._consumer._positions.items()}

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, for ever."""
        while True:
            while self._next < len(self._records):
                self._next += 1
                yield self._records[self._next - 1]
            self._call(self._take, _ITERATE_MS)

    def process(
        self,
        handle: Callable[[ConsumerRecord], object],
        *,
        workers: int = 8,
        order: Order = "key",
        in_flight_max: int = 1000,
        commit_interval_ms: int = 1000,
    ) -> None:
        """See `process_in_parallel`; `handle` is called in threads. Never returns, but for an error of it."""
        self._give_back()
        limiter = trio.CapacityLimiter(workers)

        async def in_thread(record: ConsumerRecord) -> None:
            await trio.to_thread.run_sync(handle, record, limiter=limiter)

        async def run() -> None:
            await process_in_parallel(
                self._consumer,
                in_thread,
                workers=workers,
                order=order,
                in_flight_max=in_flight_max,
                commit_interval_ms=commit_interval_ms,
            )

        self._call(run)

    # ---- as `Consumer` has them

    def subscribe(self, topics: str | Iterable[str] = (), *, pattern: str | None = None) -> None:
        """See `Consumer.subscribe`; the listener is that of before."""
        self._records, self._next = [], 0
        listener = self._consumer._given[2]
        self._call(lambda: self._consumer.subscribe(topics, pattern=pattern, listener=listener))

    def assign(self, what: str | Partition | Iterable[str | Partition]) -> None:
        """See `Consumer.assign`."""
        self._records, self._next = [], 0
        self._call(self._consumer.assign, what)

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        """See `Consumer.commit`."""
        if offsets is None:
            offsets = self._call_sync(self._next_offsets)
        self._call(self._consumer.commit, offsets)

    def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """See `Consumer.committed`."""
        return self._call(self._consumer.committed, partitions)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """See `Consumer.seek`."""
        self._give_back()
        self._call(self._consumer.seek, topic, partition, offset)

    def seek_to_beginning(self, partitions: Iterable[Partition] | None = None) -> None:
        """See `Consumer.seek_to_beginning`."""
        self._give_back()
        self._call(self._consumer.seek_to_beginning, partitions)

    def seek_to_end(self, partitions: Iterable[Partition] | None = None) -> None:
        """See `Consumer.seek_to_end`."""
        self._give_back()
        self._call(self._consumer.seek_to_end, partitions)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[Partition] | None = None) -> None:
        """See `Consumer.seek_to_time`."""
        self._give_back()
        self._call(self._consumer.seek_to_time, timestamp_ms, partitions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """See `Consumer.pause`."""
        self._give_back()
        self._call_sync(self._consumer.pause, list(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """See `Consumer.resume`."""
        self._call_sync(self._consumer.resume, list(partitions))

    @property
    def assignment(self) -> list[Partition]:
        """What is read."""
        return self._call_sync(lambda: self._consumer.assignment)

    def position(self, topic: str, partition: int) -> int:
        """See `Consumer.position`."""

        def found() -> int:
            offset = self._consumer.position(topic, partition)
            return self._not_handed_out().get((topic, partition), offset)

        return self._call_sync(found)

    def group_metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        return self._call_sync(self._consumer.group_metadata)
