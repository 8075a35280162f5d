"""Heartbeat: a member is there, and hears whether its group is being divided anew."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import HEARTBEAT
from protocols.kafka.registry import serves


@serves(HEARTBEAT, 0, 4)
async def heartbeat(door: Door, call: Call, request: Entity) -> Entity:
    """At once."""
    try:
        door.broker.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error))
    return Entity(error_code=ErrorCode.NONE)
