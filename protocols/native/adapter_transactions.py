"""Idempotent and transactional producers as native clients see them: the same coordinator as that of the Kafka door.

Who uses a transactional id needs the right to write to a resource of that name.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from core_log.batch_header import BatchHeader
from protocols.native import wire, wire_transactions
from protocols.native.adapter_errors import ENGINE_ERRORS, Refused, engine_error
from protocols.native.adapter_groups import GroupDoor, offsets_of
from protocols.native.adapter_rights import require_id
from protocols.native.errors import ErrorCode
from routing.access.grants import Grants
from routing.broker import Broker
from routing.topics.topic_partition import TopicPartition

_ID_BITS = 62


def membership(
    broker: Broker, grants: Grants, partition: TopicPartition, header: BatchHeader, transactional_id: str | None
) -> Callable[[], Awaitable[None]]:
    """Asks whether a batch is a part of the transaction that its producer has under way. Raises Refused."""
    if transactional_id is None or header.producer_id < 0:
        raise Refused(ErrorCode.CORRUPT_BATCH, "a batch of a transaction without a transactional producer")
    require_id(grants, transactional_id)
    place = partition.topic_name, partition.index

    async def check() -> None:
        try:
            await broker.coordinator.check_anywhere(
                transactional_id, header.producer_id, header.producer_epoch, partition=place
            )
        except ENGINE_ERRORS as error:
            raise _not_yet(error) from None

    return check


def _not_yet(error: Exception) -> Refused:
    """Who cannot be told whether something is a part of a transaction asks again, and not for another leader."""
    code, retriable, message = engine_error(error)
    return Refused(ErrorCode.TRANSACTION_ENDING if retriable else ErrorCode(code), message)


async def _init_producer(door: GroupDoor, request: wire_transactions.InitProducer) -> wire.Reply:
    if request.transactional_id is None:
        return wire_transactions.InitProducerReply(request.correlation_id, secrets.randbits(_ID_BITS), 0)
    require_id(door.grants, request.transactional_id)
    expected = None if request.producer_id < 0 else (request.producer_id, request.producer_epoch)
    found = await door.broker.coordinator.begin(
        request.transactional_id, request.transaction_timeout_ms, expected, _owner(door)
    )
    return wire_transactions.InitProducerReply(request.correlation_id, *found)


def _owner(door: GroupDoor) -> str:
    """Who has a transaction under way, for operators."""
    return f"{door.grants.user}@{door.host[1:]} {door.client_name}".rstrip()


async def _add_to_transaction(door: GroupDoor, request: wire_transactions.AddToTransaction) -> wire.Reply:
    require_id(door.grants, request.transactional_id)
    for topic, index in request.partitions:
        door.grants.require("write", "topic", topic)
        found = door.broker.topics.get(topic)
        if found is None or index >= len(found.partitions):
            raise Refused(ErrorCode.UNKNOWN_PARTITION, f"there is no partition {index} of topic {topic!r}")
    await door.broker.coordinator.add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        _owner(door),
        partitions=request.partitions,
        groups=request.groups,
    )
    return wire_transactions.AddToTransactionReply(request.correlation_id)


async def _commit_transaction_offsets(
    door: GroupDoor, request: wire_transactions.CommitTransactionOffsets
) -> wire.Reply:
    require_id(door.grants, request.transactional_id)
    offsets = offsets_of(request.entries)
    door.may_read(offsets)
    broker, group = door.broker, request.group

    async def check() -> None:
        try:
            await broker.coordinator.check_anywhere(
                request.transactional_id, request.producer_id, request.producer_epoch, group=group
            )
        except ENGINE_ERRORS as error:
            raise _not_yet(error) from None
        member, instance, generation = request.member_id, request.instance_id, request.generation
        broker.groups.check_member(group, member, instance, generation, offsets.keys())

    broker.groups.check_member(group, "", None, -1)
    await broker.offsets.commit_pending(group, request.producer_id, offsets, check)
    return wire_transactions.CommitTransactionOffsetsReply(request.correlation_id)


async def _end_transaction(door: GroupDoor, request: wire_transactions.EndTransaction) -> wire.Reply:
    require_id(door.grants, request.transactional_id)
    await door.broker.coordinator.end(
        request.transactional_id, request.producer_id, request.producer_epoch, committed=request.committed
    )
    return wire_transactions.EndTransactionReply(request.correlation_id)


TRANSACTION_HANDLERS: dict[type[wire.Request], Callable[[GroupDoor, Any], Awaitable[wire.Reply | None]]] = {
    wire_transactions.InitProducer: _init_producer,
    wire_transactions.AddToTransaction: _add_to_transaction,
    wire_transactions.CommitTransactionOffsets: _commit_transaction_offsets,
    wire_transactions.EndTransaction: _end_transaction,
}
