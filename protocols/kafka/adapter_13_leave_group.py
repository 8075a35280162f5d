"""LeaveGroup: members go, by themselves or because an operator says so."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_static_members import is_static
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import LEAVE_GROUP
from protocols.kafka.registry import serves
from routing.bites import bites

_MANY_SINCE = 3


@serves(LEAVE_GROUP, 0, 5)
async def leave_group(door: Door, call: Call, request: Entity) -> Entity:
    """One, or from version 3 on many; each is told for itself whether it was there. Who is a static member by his
    client id does not know it, and would not say goodbye if he did.
    """
    if is_static(door.config.static_client_ids, call.client_id):
        members = request.members if call.version >= _MANY_SINCE else ()
        return Entity(error_code=ErrorCode.NONE, members=[_stays(one) for one in members])
    if call.version < _MANY_SINCE:
        return Entity(error_code=_left(door, request.group_id, request.member_id, None))
    left = []
    async for one in bites(request.members):
        code = _left(door, request.group_id, one.member_id, one.group_instance_id)
        left.append(Entity(member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code))
    return Entity(error_code=ErrorCode.NONE, members=left)


def _stays(one: Entity) -> Entity:
    return Entity(member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=ErrorCode.NONE)


def _left(door: Door, group: str, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        door.broker.groups.leave(group, member_id, instance_id)
    except ENGINE_ERRORS as error:
        return code_of(error)
    return ErrorCode.NONE
