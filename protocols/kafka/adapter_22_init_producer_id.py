"""InitProducerId: who a producer is that wants each of its batches to be there once, or a transactional one.

Ids are 62 random bits: brokers need not agree on who gives out which. Of those without a transactional id nothing has
to be kept; the others have a coordinator (`routing/log_transactions`).
"""

from __future__ import annotations

import secrets

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS
from protocols.kafka.adapter_transactional import owner_of, require_id, transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import INIT_PRODUCER_ID
from protocols.kafka.registry import serves

_ID_BITS = 62
_EPOCH_MAX = (1 << 15) - 1
_FENCED_SINCE = 4


@serves(INIT_PRODUCER_ID, 0, 4)
async def init_producer_id(door: Door, call: Call, request: Entity) -> Entity:
    """A new id, or the next epoch of one."""
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return Entity(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    expected = (request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
    name = request.transactional_id
    if name is None:
        if expected is not None and 0 <= expected[1] < _EPOCH_MAX:
            return Entity(error_code=ErrorCode.NONE, producer_id=expected[0], producer_epoch=expected[1] + 1)
        return Entity(error_code=ErrorCode.NONE, producer_id=secrets.randbits(_ID_BITS), producer_epoch=0)
    try:
        require_id(door, name)
        producer_id, epoch = await door.broker.coordinator.begin(
            name, request.transaction_timeout_ms, expected, owner_of(door, call)
        )
    except ENGINE_ERRORS as error:
        code = transaction_code_of(error, fenced_since=call.version >= _FENCED_SINCE)
        return Entity(error_code=code, producer_id=-1, producer_epoch=-1)
    return Entity(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=epoch)
