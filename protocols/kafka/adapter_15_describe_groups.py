"""DescribeGroups: who is in a group, and what each member reads."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import DESCRIBE_GROUPS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.groups.errors import UnknownGroup
from routing.groups.group import Group
from routing.groups.membership import State

_UNKNOWN_IS_AN_ERROR_SINCE = 6
OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8
"""What anybody may do with a group, as Kafka's set of bits: read, delete, describe."""


@serves(DESCRIBE_GROUPS, 0, 6)
async def describe_groups(door: Door, call: Call, request: Entity) -> Entity:
    """A group that is not there is `Dead`; one that is named twice is described once."""
    groups = [_described(door, call, name) async for name in bites(dict.fromkeys(request.groups))]
    for one in groups:
        if request.include_authorized_operations and one.error_code == ErrorCode.NONE:
            one.authorized_operations = OPERATIONS
    return Entity(groups=groups)


def _described(door: Door, call: Call, name: str) -> Entity:
    reply = Entity(
        error_code=ErrorCode.NONE, group_id=name, group_state=State.EMPTY.value, protocol_type="", protocol_data="",
        members=[],
    )  # fmt: skip
    try:
        found = door.broker.groups.describe(name)
    except UnknownGroup as error:
        reply.group_state = State.DEAD.value
        if call.version >= _UNKNOWN_IS_AN_ERROR_SINCE:
            reply.error_code, reply.error_message = ErrorCode.GROUP_ID_NOT_FOUND, str(error)
    except ENGINE_ERRORS as error:
        reply.error_code, reply.group_state = code_of(error), ""
    else:
        if isinstance(found, Group):
            _fill(reply, found)
        elif found is not None:
            reply.group_state = State.DEAD.value
            if call.version >= _UNKNOWN_IS_AN_ERROR_SINCE:
                reply.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                reply.error_message = f"Group {name} is not a classic group."
    return reply


def _fill(reply: Entity, group: Group) -> None:
    reply.group_state, reply.protocol_type = group.state.value, group.protocol_type
    is_agreed = group.state is State.STABLE
    if is_agreed:
        reply.protocol_data = group.protocol
    reply.members = [
        Entity(
            member_id=member.id,
            group_instance_id=member.joining.instance_id,
            client_id=member.joining.client_id,
            client_host=member.joining.client_host,
            member_metadata=member.metadata_for(group.protocol) if is_agreed else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
