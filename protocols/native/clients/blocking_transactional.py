"""A transactional producer for programs without an event loop: see `transactional.py`, and `BlockingProducer`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from core_log.batch_header import TRANSACTIONAL_BIT
from protocols.native import wire_groups, wire_transactions
from protocols.native.clients.blocking_producer import BlockingDelivery, BlockingProducer
from protocols.native.clients.group_bytes import GroupMetadata, Partition
from protocols.native.clients.groups_admin import finish
from protocols.native.clients.records import Draft, SentBatch, checked_offset
from protocols.native.clients.sequences import Sequences
from protocols.native.errors import MillraceError, TransactionAborted, WrongTransactionState

logger = logging.getLogger("protocols.native.clients.producer")


class BlockingTransactionalProducer(BlockingProducer):
    """`with BlockingTransactionalProducer("host:port", "my-id") as producer`. Leaving the block aborts what was not
    committed. The other parameters are those of `BlockingProducer`.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        **settings: Any,
    ) -> None:
        super().__init__(server, **settings)
        if not self._idempotent:
            raise ValueError("a transactional producer is idempotent, and asks for answers")
        self._transactional_id = self._id = transactional_id
        self._attributes = TRANSACTIONAL_BIT
        self._timeout_of_transaction_ms = transaction_timeout_ms
        self._epoch = -1
        self._open = self._failed = self._unsure = self._decided = self._renewing = False
        self._too_late: WrongTransactionState | None = None
        self._added: set[Partition] = set()
        self._groups: set[str] = set()

    def forked(self) -> None:
        """See `forks.py`: the transaction is the parent's. Who begins one here takes the id from it."""
        super().forked()
        self._epoch = -1
        self._open = self._failed = self._unsure = self._decided = self._renewing = False
        self._added, self._groups = set(), set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._open:
                self._try_abort()
        finally:
            self.client.close()

    @property
    def in_transaction(self) -> bool:
        """One is under way; after an error only `abort` may end it."""
        return self._open

    def begin(self) -> None:
        """Begin a transaction. Raises ValueError if one is under way, and what the coordinator answers."""
        if self._open:
            raise ValueError("a transaction is under way")
        if self._epoch < 0 or self._unsure:
            self._take_id()
        self._open, self._failed, self._decided, self._too_late = True, False, False, None

    def _take_id(self) -> None:
        """This process has the id from now on; numbers begin anew."""
        known = -1 if self._producer_id is None else self._producer_id
        request = wire_transactions.InitProducer(
            0, self._id, self._timeout_of_transaction_ms, known, self._epoch if known >= 0 else -1
        )
        self._renewing = True
        reply = self._ask(request, wire_transactions.InitProducerReply)
        self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch
        self._unsure = self._renewing = False
        self._sequences.clear()

    def _ask(self, request: Any, kind: Any, *, group: str | None = None) -> Any:
        asker = self.client._asker
        try:
            if group is not None:
                return finish(asker.coordinator(group, request, kind))
            return finish(asker.coordinator(self._id, request, kind, of=wire_groups.OF_TRANSACTION))
        except BaseException:
            self._unsure = True  # it may arrive yet, and be taken for a part, or the end, of the next transaction
            raise
        finally:
            self._unsure, asker.unanswered = self._unsure or asker.unanswered, False  # so may what was said twice

    def _new_sequences(self) -> Sequences:
        return Sequences(-1 if self._producer_id is None else self._producer_id, self._epoch)

    def send(self, *arguments: Any, **named: Any) -> BlockingDelivery:
        """See `BlockingProducer.send`. Raises ValueError outside a transaction, or after an error."""
        self._require_open()
        return super().send(*arguments, **named)

    def _require_open(self) -> None:
        if not self._open or self._failed:
            raise ValueError("no transaction is under way" if not self._open else "after an error only abort is left")

    def _before_sending(self, partitions: Iterable[Partition]) -> None:
        new = [key for key in partitions if key not in self._added]
        if new:
            self._join(new, [])
            self._added.update(new)

    def _join(self, partitions: list[Partition], groups: list[str]) -> None:
        self._ask(
            wire_transactions.AddToTransaction(0, self._id, self._producer_id or 0, self._epoch, partitions, groups),
            wire_transactions.AddToTransactionReply,
        )

    def _send(self, drafts: Mapping[Partition, Draft], built: dict[Partition, bytes]) -> None:
        self._require_open()
        try:
            super()._send(drafts, built)
        except BaseException:
            self._failed = self._unsure = True
            raise

    def _renumbered(self, topic: str, partition: int, batch: bytes) -> tuple[str, int, bytes]:
        raise MillraceError("a batch before this one is missing: its numbers cannot be changed within the transaction")

    def send_offsets(self, offsets: Mapping[Partition, int], group: GroupMetadata | str) -> None:
        """See `TransactionalProducer.send_offsets`."""
        self._require_open()
        member = GroupMetadata(group) if isinstance(group, str) else group
        entries = [(*key, checked_offset(offset), "") for key, offset in offsets.items()]
        if not entries:
            return
        if member.group not in self._groups:
            self._join([], [member.group])
            self._groups.add(member.group)
        request = wire_transactions.CommitTransactionOffsets(
            0,
            self._id,
            self._producer_id or 0,
            self._epoch,
            member.group,
            member.member_id,
            member.instance_id,
            member.generation,
            entries,
        )
        self._ask(request, wire_transactions.CommitTransactionOffsetsReply, group=member.group)

    def commit(self) -> None:
        """Have all that was sent since `begin` take effect. Raises the error of what was not stored: then abort."""
        self._require_open()
        self.flush()
        self._decided = True
        self._end(committed=True)
        self._close()

    def abort(self) -> None:
        """Have nothing of it take effect, ever. Raises as `TransactionalProducer.abort` does."""
        if not self._open:
            raise ValueError("no transaction is under way")
        aborted = TransactionAborted("the transaction was aborted")
        for draft in (*self._left[0].values(), *self._drafts.values()):
            if isinstance(draft, SentBatch) and not draft.finished:
                draft.finish(-1, aborted)
                self._hooks.tell([None] * draft.count, aborted)
        self._drafts.clear()
        self._left = {}, {}
        if not self._renewing:  # else it has ended, and the next epoch may have begun
            try:
                self._end(committed=False)
            except WrongTransactionState as error:
                self._too_late = error if self._decided else None
        if self._unsure:
            self._take_id()
        self._close()
        if self._too_late is not None:
            raise self._too_late

    def _try_abort(self) -> None:
        try:
            self.abort()
        except MillraceError as error:
            logger.warning("the transaction of '%s' was not aborted: %s", self._id, error)

    def _end(self, *, committed: bool) -> None:
        if self._added or self._groups or self._unsure:
            self._ask(
                wire_transactions.EndTransaction(0, self._id, self._producer_id or 0, self._epoch, committed),
                wire_transactions.EndTransactionReply,
            )

    def _close(self) -> None:
        self._open = False
        self._added.clear()
        self._groups.clear()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`begin`, and `commit` at the end of the block, or `abort` if it is left by an error."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            if self._open:
                self._try_abort()
            raise
