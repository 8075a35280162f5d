"""Where a transactional id stands, and what may come next. Pure: time is a parameter, nothing is kept here.

    EMPTY -> ONGOING -> PREPARE_COMMIT -> COMPLETE_COMMIT        and from the last ones to ONGOING again
                     -> PREPARE_ABORT  -> COMPLETE_ABORT

1. A transactional id has one producer id, and an epoch that rises with each process that takes it over: who comes with
   an older one is fenced. It rises as well when somebody else than the producer gives its transaction up.
2. A transaction is decided when PREPARE_COMMIT or PREPARE_ABORT is durable. Then the partitions and groups in it are
   told, again and again until all have it; then it is complete.
3. A producer that could not tell what became of its transaction may ask for its next epoch, naming the one it has; if
   that was given to it before, it is given the same again (KIP-360).

https://cwiki.apache.org/confluence/display/KAFKA/KIP-98+-+Exactly+Once+Delivery+and+Transactional+Messaging
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec
from msgspec.structs import replace

from routing.log_transactions.errors import (
    ProducerFenced,
    TransactionEnding,
    WrongProducerId,
    WrongTransactionState,
)

EPOCH_MAX = (1 << 15) - 1
NOBODY = -1


class Stage(Enum):
    """See the module."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARED = (Stage.PREPARE_COMMIT, Stage.PREPARE_ABORT)


class IdState(msgspec.Struct, array_like=True, frozen=True):
    """Of a transactional id, as it is recorded."""

    producer_id: int
    epoch: int
    last_epoch: int
    """Which its producer had before it asked for another; -1: nobody's."""
    timeout_ms: int
    stage: Stage
    updated_ms: int
    owner: str
    """Who began last: for operators."""
    started_ms: int = -1
    partitions: tuple[tuple[str, int], ...] = ()
    """Topic and number of those that the transaction writes to."""
    groups: tuple[str, ...] = ()
    """Consumer groups whose offsets it commits."""
    last_id: int = NOBODY
    """The producer id that `last_epoch` is of; -1: this one."""

    @property
    def is_prepared(self) -> bool:
        """Decided, and not told everywhere."""
        return self.stage in _PREPARED

    @property
    def is_open(self) -> bool:
        """Under way, and not decided."""
        return self.stage is Stage.ONGOING

    @property
    def commits(self) -> bool:
        """What was decided last."""
        return self.stage in (Stage.PREPARE_COMMIT, Stage.COMPLETE_COMMIT)

    def is_over(self, now_ms: int) -> bool:
        """It has been under way for longer than its producer allowed for."""
        return self.is_open and now_ms - self.started_ms > self.timeout_ms

    # ---- checks

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Raises WrongProducerId, ProducerFenced."""
        if producer_id != self.producer_id:
            raise WrongProducerId(f"the transactional id has producer id {self.producer_id}, not {producer_id}")
        if epoch != self.epoch:
            raise ProducerFenced(f"producer {producer_id} is in epoch {self.epoch}, not {epoch}")

    def check_has(self, producer_id: int, epoch: int, partition: tuple[str, int] | None, group: str | None) -> None:
        """Whether something is a part of what is under way. Raises LogTransactionError."""
        self.check_producer(producer_id, epoch)
        if self.is_prepared:
            raise TransactionEnding("the transaction is being ended")
        if not self.is_open:
            raise WrongTransactionState("no transaction is under way")
        if partition is not None and partition not in self.partitions:
            raise WrongTransactionState(f"partition {partition[1]} of topic '{partition[0]}' is not in the transaction")
        if group is not None and group not in self.groups:
            raise WrongTransactionState(f"the offsets of group '{group}' are not in the transaction")

    # ---- what comes next

    def taken_over(
        self, expected: tuple[int, int] | None, timeout_ms: int, owner: str, new_id: int, now_ms: int
    ) -> IdState:
        """A process has the id from now on, with another epoch; nothing is under way. `expected` is what it had.

        Raises ProducerFenced.
        """
        self.check_expected(expected)
        if expected is not None and expected == self._before and self.epoch < EPOCH_MAX:
            return self  # it was told and did not hear it
        given = {"timeout_ms": timeout_ms, "owner": owner, "updated_ms": now_ms, "stage": Stage.EMPTY}
        if self.epoch >= EPOCH_MAX - 1:  # nobody works in the last one: who is given up in it could not be fenced
            last_id, last_epoch = expected if expected is not None else (NOBODY, NOBODY)
            return replace(self, producer_id=new_id, epoch=0, last_epoch=last_epoch, last_id=last_id, **given)
        last_epoch = self.epoch if expected is not None else NOBODY
        return replace(self, epoch=self.epoch + 1, last_epoch=last_epoch, last_id=NOBODY, **given)

    @property
    def _before(self) -> tuple[int, int]:
        """What its producer had before it asked for another epoch."""
        return self.producer_id if self.last_id == NOBODY else self.last_id, self.last_epoch

    def check_expected(self, expected: tuple[int, int] | None) -> None:
        """Raises ProducerFenced."""
        if expected is not None and expected not in ((self.producer_id, self.epoch), self._before):
            raise ProducerFenced(f"producer {expected[0]} in epoch {expected[1]} has the transactional id no more")

    def joined(
        self, partitions: Iterable[tuple[str, int]], groups: Iterable[str], owner: str, now_ms: int
    ) -> IdState | None:
        """These are in the transaction, which is under way then; None: they are already. Raises TransactionEnding."""
        if self.is_prepared:
            raise TransactionEnding("the transaction before is being ended")
        known = self if self.is_open else replace(self, partitions=(), groups=(), started_ms=now_ms)
        all_partitions = tuple(dict.fromkeys((*known.partitions, *partitions)))
        all_groups = tuple(dict.fromkeys((*known.groups, *groups)))
        if known is self and (all_partitions, all_groups) == (self.partitions, self.groups):
            return None
        return replace(
            known,
            stage=Stage.ONGOING,
            partitions=all_partitions,
            groups=all_groups,
            owner=owner,
            updated_ms=now_ms,
            last_epoch=NOBODY,
        )

    def decided(self, *, committed: bool, now_ms: int) -> IdState | None:
        """Its producer ends the transaction; None: it has been ended so before. Raises LogTransactionError."""
        if self.is_open:
            stage = Stage.PREPARE_COMMIT if committed else Stage.PREPARE_ABORT
            return replace(self, stage=stage, updated_ms=now_ms)
        if self.stage is Stage.EMPTY or committed is not self.commits:
            raise WrongTransactionState("no transaction is under way, or it was ended the other way")
        return None

    def given_up(self, *, keeps: bool, now_ms: int) -> IdState:
        """Somebody else ends the transaction, in another epoch. With `keeps` the producer itself, that begins anew."""
        return replace(
            self,
            stage=Stage.PREPARE_ABORT,
            epoch=min(self.epoch + 1, EPOCH_MAX),
            last_epoch=self.epoch if keeps else NOBODY,
            last_id=NOBODY,
            updated_ms=now_ms,
        )

    def completed(self, now_ms: int) -> IdState:
        """All have been told."""
        stage = Stage.COMPLETE_COMMIT if self.commits else Stage.COMPLETE_ABORT
        return replace(self, stage=stage, partitions=(), groups=(), started_ms=NOBODY, updated_ms=now_ms)


def new(producer_id: int, timeout_ms: int, owner: str, now_ms: int) -> IdState:
    """Of an id that was not there."""
    return IdState(producer_id, 0, NOBODY, timeout_ms, Stage.EMPTY, now_ms, owner)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(IdState)


def encode(state: IdState) -> bytes:
    """For a record."""
    return _encoder.encode(state)


def decode(data: bytes) -> IdState:
    """The inverse. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)
