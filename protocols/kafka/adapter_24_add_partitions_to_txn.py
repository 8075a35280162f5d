"""AddPartitionsToTxn: a producer is about to write to these, in its transaction. All or none are added."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_transactional import owner_of, require_id, transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import ADD_PARTITIONS_TO_TXN
from protocols.kafka.registry import serves
from routing.bites import bites

_FENCED_SINCE = 2


@serves(ADD_PARTITIONS_TO_TXN, 0, 3)
async def add_partitions_to_txn(door: Door, call: Call, request: Entity) -> Entity:
    """Each partition is told for itself; where one cannot be added the others are not attempted."""
    name = request.v3_and_below_transactional_id
    places = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
    refused = {place: code async for place in bites(places) if (code := _refusal(door, *place)) != ErrorCode.NONE}
    code = ErrorCode.OPERATION_NOT_ATTEMPTED if refused else ErrorCode.NONE
    try:
        require_id(door, name)
        if not refused:
            await door.broker.coordinator.add(
                name,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                owner_of(door, call),
                partitions=places,
            )
    except ENGINE_ERRORS as error:
        code = transaction_code_of(error, fenced_since=call.version >= _FENCED_SINCE)
        refused = {}
    return Entity(
        results_by_topic_v3_and_below=[
            Entity(
                name=topic.name,
                results_by_partition=[
                    Entity(partition_index=index, partition_error_code=refused.get((topic.name, index), code))
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _refusal(door: Door, topic: str, index: int) -> ErrorCode:
    try:
        door.require("write", topic)
        found = door.topic(topic)
    except ENGINE_ERRORS as error:
        return code_of(error)
    return ErrorCode.NONE if 0 <= index < len(found.partitions) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
