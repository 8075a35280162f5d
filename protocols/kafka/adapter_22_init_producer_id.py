"""InitProducerId: who a producer is that wants each of its batches to be there once.

Ids are 62 random bits: brokers need not agree on who gives out which, and nothing has to be kept of them.
"""

from __future__ import annotations

import secrets

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import INIT_PRODUCER_ID
from protocols.kafka.registry import serves

_ID_BITS = 62
_EPOCH_MAX = (1 << 15) - 1


@serves(INIT_PRODUCER_ID, 0, 4)
async def init_producer_id(door: Door, call: Call, request: Entity) -> Entity:
    """A new id, or the next epoch of one. There are no transactional producers yet."""
    if request.transactional_id is not None:
        return Entity(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1)
    if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
        return Entity(
            error_code=ErrorCode.NONE, producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )
    return Entity(error_code=ErrorCode.NONE, producer_id=secrets.randbits(_ID_BITS), producer_epoch=0)
