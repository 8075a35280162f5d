"""The transactional producer: what it sends, and how far its groups have come, takes effect together or not at all.

1. Batches go the way of `producer.py`; before the first one of a transaction goes to a partition, the coordinator of
   the transactional id is told of that partition. What is sent outside a transaction, or while it ends, is refused.
2. `commit` first has everything answered. After an error of any record only `abort` is left.
3. `abort` forgets what was not sent and waits for what was. When a batch that had a number was not stored, or nobody
   knows, the producer takes its next epoch, in which numbers begin anew. `begin` does so as well, or `abort`, when a
   coordinator was asked again because it had not answered, or never answered.
4. Whoever begins with the same id, in this process or another, ends what was under way and fences who was before.
5. Consumers of the native protocol see what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from core_log.batch_header import TRANSACTIONAL_BIT
from protocols.native import wire_groups, wire_transactions
from protocols.native.clients.coordinators import CoordinatorLink
from protocols.native.clients.either_loop import on_either_loop
from protocols.native.clients.group_bytes import GroupMetadata, Partition
from protocols.native.clients.producer import Producer
from protocols.native.clients.producer_batches import Batch, Delivery, Waiting
from protocols.native.clients.records import checked_offset
from protocols.native.errors import (
    ConnectionLost,
    MillraceError,
    SequenceOutOfOrder,
    TransactionAborted,
    WrongTransactionState,
)

logger = logging.getLogger("protocols.native.clients.producer")


class TransactionalProducer(Producer):
    """`async with TransactionalProducer("host:port", "my-id") as producer`; see the module.

    `transactional_id`: of one process at a time. `transaction_timeout_ms`: after which the broker gives a transaction
    up. The other parameters are those of `Producer`. Leaving the block aborts what was not committed.
    """

    def __init__(
        self, server: Any, transactional_id: str, *, transaction_timeout_ms: int = 60_000, **settings: Any
    ) -> None:
        super().__init__(server, **settings)
        if not self._idempotent:
            raise ValueError("a transactional producer is idempotent, and asks for answers")
        self._transactional_id = self._id = transactional_id
        self._attributes = TRANSACTIONAL_BIT
        self._transaction_timeout_ms = transaction_timeout_ms
        self._epoch = 0
        self._open = False
        self._error: MillraceError | None = None
        """Why only `abort` is left."""
        self._unsure = False
        """Something of it may be, or come to be, where nobody knows: the next epoch ends that."""
        self._added: set[Waiting] = set()
        self._to_add: dict[Waiting, None] = {}
        self._adding = False
        self._groups: dict[str, CoordinatorLink] = {}
        self._sent_anything = False
        self._decided = False
        """`commit` has asked for its end."""
        self._too_late: WrongTransactionState | None = None
        """What `abort` found of a `commit` that was not answered."""
        self._renewing = False
        """The next epoch was asked for, and nobody knows whether it has begun. What was under way has ended before."""
        self._ending = False
        """`commit` or `abort` is under way: nothing comes into it any more."""

    async def _prepare(self) -> None:
        self._coordinator = CoordinatorLink(wire_groups.OF_TRANSACTION, self._id, self._link, self._nursery)
        await self._take_id(-1, -1)

    async def _take_id(self, producer_id: int, epoch: int) -> None:
        reply = await self._coordinator.call(
            lambda: wire_transactions.InitProducer(0, self._id, self._transaction_timeout_ms, producer_id, epoch),
            wire_transactions.InitProducerReply,
        )
        self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch
        for topic in self._topics.values():
            topic.number_anew(self._producer_id, self._epoch)
        self._producer_epoch = self._epoch

    async def _finish(self) -> None:
        if self._open:
            try:
                with self._last_call():
                    await self._abort()
            except MillraceError as error:  # whoever comes next with the id ends it
                logger.warning("the transaction of '%s' was not aborted: %s", self._id, error)

    async def _renew(self) -> None:
        self._renewing = True
        await self._take_id(self._producer_id, self._epoch)
        self._unsure = self._renewing = False

    @property
    def in_transaction(self) -> bool:
        """One is under way; after an error only `abort` may end it."""
        return self._open

    # ---- transactions

    async def begin(self) -> None:
        """Begin a transaction. Raises ValueError if one is under way, and what the coordinator answers where it has to
        be asked. When it is cancelled nothing was begun.
        """
        await self._run_in_trio(trio.lowlevel.checkpoint)
        if self._open:
            raise ValueError("a transaction is under way")
        if self._unsure:
            await self._run_in_trio(self._renew)
        self._open, self._error, self._sent_anything = True, None, False
        self._decided, self._too_late = False, None
        self._failed.clear()

    @on_either_loop
    async def commit(self) -> None:
        """Have all that was sent since `begin` take effect. Raises the error of what was not stored: then abort."""
        self._require_open()
        with self._last_call():
            await self._answered_all()
            if self._error is not None:
                raise self._error
            self._decided = True
            await self._end(committed=True)

    @on_either_loop
    async def abort(self) -> None:
        """Have nothing of it take effect, ever.

        Raises WrongTransactionState when it was committed before: by a `commit` that was not answered in time.
        """
        self._require_open(even_failed=True)
        with self._last_call():
            await self._abort()

    async def _abort(self) -> None:
        aborted = TransactionAborted("the transaction was aborted")
        for queue in list(self._active):
            for batch in queue.unsent():
                self._unsure = self._unsure or batch.data is not None
                self._finish_batch(queue, batch, -1, aborted)
        await self._answered_all()
        while self._adding:  # lest it begins another transaction
            await self._coordinator.pause()
        if not self._renewing:
            try:
                await self._end(committed=False)
            except WrongTransactionState as error:
                # Else the coordinator knows of nothing that was under way.
                self._too_late = error if self._decided else None
        if self._unsure:
            await self._renew()
        self._close()
        if self._too_late is not None:
            raise self._too_late

    @contextmanager
    def _last_call(self) -> Iterator[None]:
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`begin`, and `commit` at the end of the block, or `abort` if it is left by an error."""
        await self.begin()
        try:
            yield
            await self.commit()
        except BaseException:
            await self._abort_anyhow()
            raise

    @on_either_loop
    async def _abort_anyhow(self) -> None:
        """Whatever happens: what came before it is what the application is told."""
        with trio.CancelScope(shield=True), trio.move_on_after(self._link.config.request_timeout_ms / 1000):
            if self._open:
                try:
                    await self.abort()
                except MillraceError as error:
                    logger.warning("the transaction of '%s' was not aborted: %s", self._id, error)

    @on_either_loop
    async def send_offsets(self, offsets: Mapping[Partition, int], group: GroupMetadata | str) -> None:
        """Have a group come so far when the transaction is committed. `group` is `Consumer.group_metadata()`, or the
        name of one that has no members. Raises NotAMember when the group has gone on without the consumer: then abort.
        """
        self._require_open()
        member = GroupMetadata(group) if isinstance(group, str) else group
        entries = [(*key, checked_offset(offset), "") for key, offset in offsets.items()]
        if not entries:
            return
        await self._join([], [member.group])
        coordinator = self._groups.get(member.group)
        if coordinator is None:
            coordinator = CoordinatorLink(wire_groups.OF_GROUP, member.group, self._link, self._nursery)
            self._groups[member.group] = coordinator
        with self._unsure_if_unanswered(coordinator):
            await coordinator.call(
                lambda: wire_transactions.CommitTransactionOffsets(
                    0,
                    self._id,
                    self._producer_id,
                    self._epoch,
                    member.group,
                    member.member_id,
                    member.instance_id,
                    member.generation,
                    entries,
                ),
                wire_transactions.CommitTransactionOffsetsReply,
            )

    def _require_open(self, *, even_failed: bool = False) -> None:
        if not self._open:
            raise ValueError("no transaction is under way")
        if self._ending:
            raise ValueError("the transaction is being ended")
        if self._error is not None and not even_failed:
            raise self._error

    async def _answered_all(self) -> None:
        """Wait for the answers to all that is under way; errors are noted in `_finish_batch`."""
        await self._answers()
        self._failed.clear()

    async def _end(self, *, committed: bool) -> None:
        if self._sent_anything:
            with self._unsure_if_unanswered(self._coordinator):
                await self._coordinator.call(
                    lambda: wire_transactions.EndTransaction(0, self._id, self._producer_id, self._epoch, committed),
                    wire_transactions.EndTransactionReply,
                )
        if committed:
            self._close()

    @contextmanager
    def _unsure_if_unanswered(self, coordinator: CoordinatorLink) -> Iterator[None]:
        """For what may arrive yet, or once more, and would be taken for a part, or the end, of the next transaction."""
        try:
            yield
        except BaseException:
            self._unsure = True
            raise
        finally:
            self._unsure = self._unsure or coordinator.unanswered
            coordinator.unanswered = False

    def _close(self) -> None:
        self._open = False
        self._added.clear()
        self._to_add.clear()

    # ---- what `Producer` does otherwise

    async def send(self, *arguments: Any, **named: Any) -> Delivery:
        """See `Producer.send`. Raises ValueError outside a transaction or while it ends, and the error that leaves only
        `abort`.
        """
        self._require_open()
        return await super().send(*arguments, **named)

    def _new_batch(self, queue: Waiting) -> Batch:
        self._require_open()  # `send` may have waited
        batch = super()._new_batch(queue)
        if queue not in self._added and queue not in self._to_add:
            self._to_add[queue] = None
            if not self._adding:
                self._adding = True
                self._nursery.start_soon(self._add)
        return batch

    def _next(self, queue: Waiting, now: float) -> Batch | None:
        return super()._next(queue, now) if queue in self._added else None

    async def _join(self, partitions: list[Partition], groups: list[str]) -> None:
        self._sent_anything = True
        with self._unsure_if_unanswered(self._coordinator):
            await self._coordinator.call(
                lambda: wire_transactions.AddToTransaction(
                    0, self._id, self._producer_id, self._epoch, partitions, groups
                ),
                wire_transactions.AddToTransactionReply,
            )

    async def _add(self) -> None:
        """Tell the coordinator of the partitions that batches wait for."""
        try:
            while self._to_add:
                queues, partitions = list(self._to_add), [(queue.topic, queue.index) for queue in self._to_add]
                try:
                    await self._join(partitions, [])
                except MillraceError as error:
                    self._error = self._error or error
                    for queue in queues:
                        self._to_add.pop(queue, None)
                        for batch in queue.unsent():
                            self._finish_batch(queue, batch, -1, error)
                    continue
                for queue in queues:
                    del self._to_add[queue]
                    self._added.add(queue)
                self._wake.set()
        finally:
            self._adding = False

    def _settle(self, queue: Waiting, batch: Batch, base_offset: int, error: MillraceError | None) -> None:
        if isinstance(error, SequenceOutOfOrder):
            error.retriable = False  # its numbers cannot be changed within the transaction
        super()._settle(queue, batch, base_offset, error)

    def _finish_batch(self, queue: Waiting, batch: Batch, base_offset: int, error: MillraceError | None) -> None:
        if error is not None and not isinstance(error, ConnectionLost | TransactionAborted):
            self._error = self._error or error
            self._unsure = True
        super()._finish_batch(queue, batch, base_offset, error)
