"""The native protocol's messages of idempotent and transactional producers; see `wire` and README.md."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocols.native.wire_base import ENTRIES_MAX, Count, Name, NameOrNone, Offset, Reply, Request, Text
from protocols.native.wire_groups import Generation

NO_ID = -1

ProducerId = Annotated[int, Meta(ge=NO_ID, le=0x7FFF_FFFF_FFFF_FFFF)]
ProducerEpoch = Annotated[int, Meta(ge=NO_ID, le=0x7FFF)]
_Entries = Meta(max_length=ENTRIES_MAX)


class InitProducer(Request, tag=26):
    """An id for a producer each of whose batches is to be there once. With a transactional id this process has it from
    now on; `producer_id` and `producer_epoch` are what it had of it, or -1.
    """

    transactional_id: Name | None
    transaction_timeout_ms: Count
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class AddToTransaction(Request, tag=27):
    """The producer is about to write to these partitions, and to commit offsets of these groups."""

    transactional_id: Name
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: Annotated[list[tuple[Name, Count]], _Entries]
    groups: Annotated[list[Name], _Entries]


class CommitTransactionOffsets(Request, tag=28):
    """How far a group has come if the transaction is committed; asked of who looks after the group."""

    transactional_id: Name
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    group: Name
    member_id: NameOrNone
    instance_id: Name | None
    generation: Generation
    entries: Annotated[list[tuple[Name, Count, Offset, Text]], Meta(min_length=1, max_length=ENTRIES_MAX)]


class EndTransaction(Request, tag=29):
    """It takes effect, or never will."""

    transactional_id: Name
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    committed: bool


class InitProducerReply(Reply, tag=26):
    """Nobody else has this id and epoch. Without a transactional id later epochs are the producer's to count."""

    producer_id: int
    producer_epoch: int


class AddToTransactionReply(Reply, tag=27):
    """They are in it, durably."""


class CommitTransactionOffsetsReply(Reply, tag=28):
    """Kept, durably, until the transaction ends."""


class EndTransactionReply(Reply, tag=29):
    """It is ended, or decided and being ended."""


AnyTransactionRequest = InitProducer | AddToTransaction | CommitTransactionOffsets | EndTransaction
AnyTransactionReply = InitProducerReply | AddToTransactionReply | CommitTransactionOffsetsReply | EndTransactionReply
