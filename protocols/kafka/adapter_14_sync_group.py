"""SyncGroup: a group's leader says who reads what, and every member asks what it reads."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import SYNC_GROUP
from protocols.kafka.registry import serves
from routing.groups.membership import Synced


@serves(SYNC_GROUP, 0, 5)
async def sync_group(door: Door, call: Call, request: Entity) -> Entity | None:
    """Answered when the leader has spoken."""

    def answer(synced: Synced) -> None:
        code = ErrorCode.NONE if synced.error is None else code_of(synced.error)
        reply = Entity(error_code=code, assignment=synced.assignment)
        if code == ErrorCode.NONE:
            reply.protocol_type, reply.protocol_name = request.protocol_type, synced.protocol
        call.answer(reply)

    try:
        door.broker.groups.sync(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {one.member_id: one.assignment for one in request.assignments},
            answer,
        )
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), assignment=b"")
    return None
