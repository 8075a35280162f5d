"""EndTxn: a transaction is committed or aborted.

Answered when all partitions and groups have it; if that takes long, when it is decided that they will.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS
from protocols.kafka.adapter_transactional import require_id, transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import END_TXN
from protocols.kafka.registry import serves

_FENCED_SINCE = 2


@serves(END_TXN, 0, 3)
async def end_txn(door: Door, call: Call, request: Entity) -> Entity:
    """See the module."""
    name = request.transactional_id
    try:
        require_id(door, name)
        await door.broker.coordinator.end(
            name, request.producer_id, request.producer_epoch, committed=request.committed
        )
    except ENGINE_ERRORS as error:
        return Entity(error_code=transaction_code_of(error, fenced_since=call.version >= _FENCED_SINCE))
    return Entity(error_code=ErrorCode.NONE)
