"""DeleteGroups: forget groups without members, and how far they have come.

It takes the right to read the topics that a group has come somewhere in, as OffsetDelete does.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, group_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import DELETE_GROUPS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(DELETE_GROUPS, 0, 2)
async def delete_groups(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other."""
    return Entity(
        results=[
            Entity(group_id=name, error_code=await _deleted(door, name)) async for name in bites(request.groups_names)
        ]
    )


async def _deleted(door: Door, name: str) -> ErrorCode:
    topics, groups = door.broker.topics, door.broker.groups
    try:
        if not all(door.allows("read", topic) for topic, _ in await groups.fetch(name) if topic in topics):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        await groups.delete(name)
    except ENGINE_ERRORS as error:
        return group_code_of(error)
    return ErrorCode.NONE
