"""DescribeClientQuotas: how much clients may do. Nobody is limited here, so there is nothing to tell."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_users import DESCRIBE_CLIENT_QUOTAS
from protocols.kafka.registry import serves


@serves(DESCRIBE_CLIENT_QUOTAS, 0, 1)
async def describe_client_quotas(door: Door, call: Call, request: Entity) -> Entity:
    """None, whatever is asked for: tools ask for it beside other things."""
    try:
        door.require_administrator(looks=True)
    except KafkaError as error:
        return Entity(error_code=error.code, error_message=str(error) or None, entries=None)
    return Entity(error_code=ErrorCode.NONE, error_message=None, entries=[])
