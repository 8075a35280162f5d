"""The producer: records in, batches out, many requests under way, and an answer for every record.

1. `send` puts a record into its partition's open batch and returns; it suspends only for room in the buffer, for what
   partitions a new topic has, and now and then so that other tasks run. One task (`_send_batches`) sends whatever is
   due.
2. Up to `in_flight_max` batches of a partition are under way at once. After one was refused, or the connection was
   lost, the partition *recovers*: what is under way is awaited, what failed goes back to the front in its old order, a
   new round begins, and one batch is sent at a time until one succeeds. The broker refuses the rest of the old round,
   so records of a partition never overtake each other.
3. Each partition's batches go to its leader (`leaders.py`); when that changes, what is under way at the old one is
   answered first, or its connection ends. A batch whose reply was lost is sent again; it is stored once as long as the
   producer is idempotent (`producer_batches.py`), as it is unless it is told otherwise or asks for no answers.
4. Memory is bounded by `buffer_bytes_max`, counting every record from `send` to its answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from core_log.producer_states import REMEMBERED
from core_log.wall_clock import wall_clock_ms
from protocols.native import wire, wire_transactions
from protocols.native.clients.client import LinkConfig, Service
from protocols.native.clients.either_loop import on_either_loop
from protocols.native.clients.failed_sends import FailedSink, tell_failed
from protocols.native.clients.hooks import (
    Partitioner,
    ProducerHooks,
    ProducerInterceptor,
    ProducerRecord,
    Serializer,
)
from protocols.native.clients.link import Dial, Link
from protocols.native.clients.producer_batches import Batch, Delivery, TopicWaiting, Waiting
from protocols.native.clients.records import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    REQUEST_ENTRIES_MAX,
    REQUEST_ENTRY_BYTES,
    REQUEST_OVERHEAD_BYTES,
    Acks,
    Headers,
    acks_of,
    as_bytes,
    as_headers,
    as_time,
    compression_of,
    size_of,
)
from protocols.native.errors import (
    BatchTooLarge,
    Blocked,
    BufferFull,
    ConnectionLost,
    DeliveryTimedOut,
    MillraceError,
    NotLeader,
    ProtocolError,
    SequenceOutOfOrder,
    UnknownPartition,
    error_from_wire,
)

_CHECKPOINT_RECORDS = 500
_REFUSED_BACKOFF_S = 0.0025
_FAILED_KEPT_MAX = 100


class Producer(Service):
    """`async with Producer("host:port") as producer`; see the module's rules.

    `acks`: "all" (durable as the topic says), 1 (written) or 0 (nobody asks). `linger_ms`: how long a batch waits for
    more records. `compression`: None, "gzip", "snappy", "lz4" or "zstd". `max_block_ms`: how long `send` waits for room
    or for a topic. `delivery_timeout_ms`: from `send` to giving up. `in_flight_max`: batches of a partition under way
    at once, at most 5 of an idempotent producer. `idempotent`: a batch that has to be sent again is stored once.
    `wait_while_blocked`: whether records wait for a broker that is low on disk or memory; if not, they fail at once
    with Blocked. What the hooks do is told in `hooks.py`, what is said of records that were not stored, and given to
    `failed_sink`, in `failed_sends.py`.

    Leaving the block waits for all records, as `flush` does; leaving it by an error drops what was not sent.
    """

    def __init__(
        self,
        server: str | Sequence[str] | Dial,
        *,
        acks: Acks = "all",
        batch_bytes: int = 256 << 10,
        linger_ms: float = 0,
        compression: str | None = None,
        buffer_bytes_max: int = 32 << 20,
        max_block_ms: int = 60_000,
        in_flight_max: int = 5,
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 100,
        idempotent: bool = True,
        wait_while_blocked: bool = True,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        failed_sink: FailedSink | None = None,
        link: LinkConfig | None = None,
    ) -> None:
        super().__init__(server, link or LinkConfig())
        self._acks = acks_of(acks)
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._compression = compression_of(compression)
        self._buffer_bytes_max = buffer_bytes_max
        self._max_block_ms = max_block_ms
        self._idempotent = idempotent and self._acks != wire.ACKS_NONE
        self._in_flight_max = min(in_flight_max, REMEMBERED) if self._idempotent else in_flight_max
        self._producer_id = -1
        self._producer_epoch = 0
        self._transactional_id: str | None = None
        self._attributes = 0
        """Of its batches, beside their compression."""
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._final = () if wait_while_blocked else (Blocked,)
        self._topics: dict[str, TopicWaiting] = {}
        self._active: dict[Waiting, None] = {}
        self._buffered_bytes = 0
        self._room = trio.Event()
        self._wake = trio.Event()
        self._flushing = 0
        self._until_checkpoint = _CHECKPOINT_RECORDS
        self._sequence = 0
        self._failed: list[Batch] = []
        self._failed_sink = failed_sink
        if partitioner or key_serializer or value_serializer or interceptors:
            self._hooks = ProducerHooks(partitioner, key_serializer, value_serializer, interceptors)
            self.send = self._send_with_hooks  # type: ignore[method-assign]

    async def _prepare(self) -> None:
        if self._idempotent and self._link.version >= wire.GROUPS_SINCE:
            reply = await self._link.call(
                wire_transactions.InitProducer(0, None, 0, -1, -1), wire_transactions.InitProducerReply
            )
            self._producer_id = reply.producer_id

    def _start(self) -> None:
        self._batch_bytes = min(self._batch_bytes, self.limits["request_bytes_max"] - REQUEST_OVERHEAD_BYTES)
        self._nursery.start_soon(self._send_batches)

    async def _finish(self) -> None:
        await self.flush()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait for their answer."""
        return self._buffered_bytes

    # The application's side

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record for delivery; await what it returns to know where it went.

        Without `partition` the key decides (Kafka's hash), without a key whichever partition's batch is being filled.
        Raises BufferFull, UnknownTopic, UnknownPartition, RequestTimedOut, BatchTooLarge (it can never fit the buffer);
        TypeError and ValueError for what cannot be stored.
        """
        if type(value) is not bytes and value is not None:
            value = as_bytes(value)
        if timestamp_ms is not None:
            timestamp_ms = as_time(timestamp_ms)
        if key is None and headers is None and value is not None:
            size = RECORD_OVERHEAD_BYTES + len(value)
        else:
            if type(key) is not bytes and key is not None:
                key = as_bytes(key)
            if headers is not None:
                headers = as_headers(headers)
            size = size_of(value, key, headers)
        known = self._topics.get(topic)
        if known is None:
            known = await self._learn(topic)
        if partition is not None and partition >= len(known.partitions):  # it may have got more
            await self._learn(topic, make=False)
        self._until_checkpoint -= 1
        if self._until_checkpoint < 0:
            self._until_checkpoint = _CHECKPOINT_RECORDS
            await self._run_in_trio(trio.lowlevel.checkpoint)
        if self._buffered_bytes + size > self._buffer_bytes_max:
            await self._wait_for_room(size)
        # Nothing suspends from here on.
        if partition is not None:
            if not 0 <= partition < len(known.partitions):
                raise UnknownPartition(f"topic {topic!r} has no partition {partition}, but {len(known.partitions)}")
            queue = known.partitions[partition]
        elif key is not None:
            queue = known.partitions[known.keys.partition(key)]
        else:
            known.sticky_bytes_left -= size
            if known.sticky_bytes_left < 0:
                known.move_on(self._batch_bytes - size)
            queue = known.sticky
        batch = queue.open
        if batch is None or batch.size + size > self._batch_bytes:
            batch = self._new_batch(queue)
        index = batch.add(value, key, headers, timestamp_ms, size)
        self._buffered_bytes += size
        return Delivery(batch, index, queue.index)

    async def _send_with_hooks(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        hooks = self._hooks
        record = hooks.outgoing(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        topic, value, key = record.topic, record.value, record.key
        try:
            if record.partition is None and hooks.partitioner is not None:
                known = self._topics.get(topic) or await self._learn(topic)
                record.partition = hooks.partitioner(topic, key, value, len(known.partitions))
            delivery = await Producer.send(
                self, topic, value, key, record.headers, record.partition, record.timestamp_ms
            )
        except MillraceError as error:
            hooks.tell([None], error)
            raise
        for interceptor in hooks.interceptors:
            delivery.watch(interceptor.on_acknowledgement)
        return delivery

    @on_either_loop
    async def flush(self) -> None:
        """Send all that was taken so far and wait for the answers.

        Raises the error of a record that was not stored, unless its delivery was awaited and so told somebody.
        """
        await self._answers()
        failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.observed and batch.error is not None:
                raise batch.error

    async def _answers(self) -> None:
        """Send all that was taken so far and wait for the answers, whatever they are."""
        waiting = [batch for queue in self._active for batch in queue.batches()]
        self._flushing += 1
        self._wake.set()
        try:
            for batch in waiting:
                await batch.wait()
        finally:
            self._flushing -= 1

    @on_either_loop
    async def _learn(self, topic: str, *, make: bool = True) -> TopicWaiting:
        numbers = await self._leaders.partitions(topic, create_missing=make, timeout_ms=self._max_block_ms)
        known = TopicWaiting(topic, len(numbers), self._producer_id, self._producer_epoch)
        return self._topics.setdefault(topic, known)

    @on_either_loop
    async def _wait_for_room(self, size: int) -> None:
        if size > self._buffer_bytes_max:
            raise BatchTooLarge(f"a record of {size} bytes in a buffer of {self._buffer_bytes_max}")
        with trio.move_on_after(self._max_block_ms / 1000):
            while self._buffered_bytes + size > self._buffer_bytes_max:
                self._room = trio.Event() if self._room.is_set() else self._room
                await self._room.wait()
            return
        raise BufferFull(f"no room for {size} bytes within {self._max_block_ms} ms")

    def _new_batch(self, queue: Waiting) -> Batch:
        if self._nursery.cancel_scope.cancel_called:
            raise RuntimeError("the producer is closed")
        if queue.open is not None:
            queue.ready.append(queue.open)
        self._sequence += 1
        queue.open = Batch(wall_clock_ms(), trio.current_time(), self._sequence)
        self._active[queue] = None
        self._wake.set()
        return queue.open

    # Sending

    async def _send_batches(self) -> None:
        self._leaders.on_change = self._leaders_changed
        while True:
            due_at = self._send_due(trio.current_time())
            self._wake = trio.Event()
            with trio.move_on_at(due_at):
                await self._wake.wait()

    def _leaders_changed(self) -> None:
        for name, topic in self._topics.items():
            topic.resize(self._leaders.counts[name])
        for queue in list(self._active):
            if queue.index >= self._leaders.counts[queue.topic]:  # nobody leads it, nor ever will
                gone = UnknownPartition(f"topic {queue.topic!r} has no partition {queue.index} any more")
                for batch in queue.unsent():
                    self._finish_batch(queue, batch, -1, gone)
            if queue.refusals and self._leaders.has_moved((queue.topic, queue.index), queue.refused_epoch):
                queue.refusals, queue.resume_at = 0, 0.0  # who leads now has refused nothing
        self._wake.set()

    def _send_due(self, now: float) -> float:
        """Send what may be sent; when to look again if nothing happens before."""
        due_at = math.inf
        for queue in list(self._active):
            self._expire(queue, now)
            due_at = min(due_at, self._due_at(queue, now))
        failure = self._leaders.failure
        if failure is not None:
            self._fail_all(failure)
        while True:
            link, chosen = self._choose(now)
            if link is None:
                return due_at
            self._post(link, chosen)

    def _due_at(self, queue: Waiting, now: float) -> float:
        """When something will be due that is not now."""
        times = [batch.created_at + self._delivery_timeout_s for batch in queue.batches()]
        if queue.open is not None:
            times.append(queue.open.created_at + self._linger_s)
        if queue.recovering:
            times.append(queue.resume_at)
        return min((at for at in times if at > now), default=math.inf)

    def _choose(self, now: float) -> tuple[Link | None, list[tuple[Waiting, Batch]]]:
        """At most one batch of each partition that one broker leads, for one request to it; None: there is nothing."""
        chosen: list[tuple[Waiting, Batch]] = []
        chosen_link: Link | None = None
        bytes_left = 0
        for queue in self._active:
            batch = self._next(queue, now)
            if batch is None:
                continue
            link = self._leaders.link_to(queue.topic, queue.index)
            if link is None or (queue.link is not link and queue.in_flight):
                continue  # what is under way elsewhere is answered first
            if chosen_link is None and link.requests_in_flight < link.limits["requests_in_flight_max"]:
                chosen_link = link
                bytes_left = link.limits["request_bytes_max"] - REQUEST_OVERHEAD_BYTES
            if link is not chosen_link:
                continue
            bytes_left -= batch.size + len(queue.topic) * 4 + REQUEST_ENTRY_BYTES
            if chosen and (bytes_left < 0 or len(chosen) >= REQUEST_ENTRIES_MAX):
                break
            if queue.ready:
                queue.ready.popleft()
            else:
                queue.open = None
            queue.in_flight.append(batch)
            queue.link = link
            chosen.append((queue, batch))
        return chosen_link, chosen

    def _next(self, queue: Waiting, now: float) -> Batch | None:
        """The batch of a partition that may be sent now; it stays where it is."""
        if queue.recovering:
            if queue.in_flight or now < queue.resume_at:
                return None
        elif len(queue.in_flight) >= self._in_flight_max:
            return None
        if queue.ready:
            return queue.ready[0]
        if queue.open is not None and (self._flushing or now >= queue.open.created_at + self._linger_s):
            return queue.open
        return None

    def _post(self, link: Link, chosen: list[tuple[Waiting, Batch]]) -> None:
        posted, entries = [], []
        bytes_max = link.limits["request_bytes_max"] - REQUEST_OVERHEAD_BYTES
        for queue, batch in chosen:
            if batch.data is None:
                batch.data = batch.build(self._compression, queue.sequences.stamp(batch.count), self._attributes)
            if len(batch.data) > bytes_max:
                error = BatchTooLarge(f"a batch of {len(batch.data)} bytes; the broker takes {bytes_max}")
                self._settle(queue, batch, -1, error)
                continue
            posted.append((queue, batch))
            epoch = self._leaders.epoch_of(link, queue.topic, queue.index)
            entries.append(wire.ProduceEntry(queue.topic, queue.index, queue.round, memoryview(batch.data), epoch))
        if not entries:
            return
        timeout_ms = self._link.config.request_timeout_ms
        request = wire.Produce(0, self._acks, timeout_ms, entries, self._transactional_id)
        answered = partial(self._answered, posted)
        try:
            if self._acks == wire.ACKS_NONE:
                link.post(request, None, on_sent=answered)
            else:
                link.post(request, answered, wait_ms=timeout_ms)
        except MillraceError as error:
            answered(error)

    # Answers

    def _answered(self, chosen: list[tuple[Waiting, Batch]], reply: wire.Reply | MillraceError | None) -> None:
        results: list[tuple[MillraceError | None, int]]
        if isinstance(reply, wire.ProduceReply) and len(reply.entries) == len(chosen):
            results = [(None if error is None else error_from_wire(error), base) for error, base in reply.entries]
        elif reply is None:
            results = [(None, -1)] * len(chosen)
        else:
            error = reply if isinstance(reply, MillraceError) else ProtocolError(f"unexpected reply {reply!r}")
            results = [(error, -1)] * len(chosen)
        for (queue, batch), (problem, base_offset) in zip(chosen, results):
            if not batch.finished:  # else it was given up with all others
                self._settle(queue, batch, base_offset, problem)
        self._wake.set()

    def _settle(self, queue: Waiting, batch: Batch, base_offset: int, error: MillraceError | None) -> None:
        queue.in_flight.remove(batch)
        if error is not None and error.retriable and not isinstance(error, self._final):
            queue.failed.append(batch)
            queue.recovering = True
            if isinstance(error, SequenceOutOfOrder):
                queue.renumber = True
            elif isinstance(error, NotLeader):
                queue.refused_epoch = self._leaders.refused((queue.topic, queue.index))
                queue.refusals = queue.refusals or 1
            elif isinstance(error, ConnectionLost):
                self._leaders.stale([(queue.topic, queue.index)])
        else:
            if isinstance(error, UnknownPartition):  # the topic was made again, with fewer
                self._leaders.stale([(queue.topic, queue.index)])
            self._finish_batch(queue, batch, base_offset, error)
        self._put_back(queue)

    def _put_back(self, queue: Waiting) -> None:
        """What failed is sent again as soon as nothing of its partition is under way."""
        if not queue.failed:
            queue.recovering, queue.refusals = False, 0
        elif not queue.in_flight:
            queue.put_back()
            queue.resume_at = trio.current_time() + self._backoff_s(queue)

    def _backoff_s(self, queue: Waiting) -> float:
        """Leaders hand over within a moment: one that refuses is tried again soon, and the next one at once."""
        if not queue.refusals:
            return self._retry_backoff_s
        if self._leaders.has_moved((queue.topic, queue.index), queue.refused_epoch):
            queue.refusals = 0
            return 0.0
        queue.refusals += 1
        return min(self._retry_backoff_s, _REFUSED_BACKOFF_S * 2.0**queue.refusals)

    def _finish_batch(self, queue: Waiting, batch: Batch, base_offset: int, error: MillraceError | None) -> None:
        if error is not None:
            tell_failed(queue.topic, queue.index, batch.data or batch, error, self._failed_sink)
        batch.finish(base_offset, error)
        self._buffered_bytes -= batch.size - BATCH_OVERHEAD_BYTES
        self._room.set()
        if error is not None:
            self._failed = [failed for failed in self._failed if not failed.observed][-_FAILED_KEPT_MAX:]
            self._failed.append(batch)
        if not (queue.open or queue.ready or queue.in_flight or queue.failed):
            self._active.pop(queue, None)

    def _expire(self, queue: Waiting, now: float) -> None:
        """Give up what waited for longer than `delivery_timeout_ms`, though its answer may come yet."""
        oldest = now - self._delivery_timeout_s
        while queue.in_flight and queue.in_flight[0].created_at <= oldest:
            self._give_up(queue, queue.in_flight.pop(0))
            self._put_back(queue)
        while queue.ready and queue.ready[0].created_at <= oldest:
            self._give_up(queue, queue.ready.popleft())
        if queue.open is not None and queue.open.created_at <= oldest:
            batch, queue.open = queue.open, None
            self._give_up(queue, batch)

    def _give_up(self, queue: Waiting, batch: Batch) -> None:
        message = f"not acknowledged within {self._delivery_timeout_s * 1000:.0f} ms"
        if self._leaders.link_to(queue.topic, queue.index) is None:
            message += f": {self._leaders.why_unreached([(queue.topic, queue.index)])}"
        self._finish_batch(queue, batch, -1, DeliveryTimedOut(message))

    def _fail_all(self, error: MillraceError) -> None:
        for queue in list(self._active):
            batches = [*queue.in_flight, *queue.unsent()]
            queue.in_flight.clear()
            for batch in batches:
                self._finish_batch(queue, batch, -1, error)

    def _closed(self) -> None:
        self._fail_all(ConnectionLost("the producer was closed"))
