"""AddOffsetsToTxn: a producer is about to commit offsets of a group in its transaction."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS
from protocols.kafka.adapter_transactional import owner_of, require_id, transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_transactions import ADD_OFFSETS_TO_TXN
from protocols.kafka.registry import serves

_FENCED_SINCE = 2


@serves(ADD_OFFSETS_TO_TXN, 0, 3)
async def add_offsets_to_txn(door: Door, call: Call, request: Entity) -> Entity:
    """Answered when that cannot be lost."""
    name = request.transactional_id
    try:
        require_id(door, name)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        await door.broker.coordinator.add(
            name, request.producer_id, request.producer_epoch, owner_of(door, call), groups=[request.group_id]
        )
    except ENGINE_ERRORS as error:
        return Entity(error_code=transaction_code_of(error, fenced_since=call.version >= _FENCED_SINCE))
    return Entity(error_code=ErrorCode.NONE)
