"""ListGroups: the groups that this broker looks after."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import LIST_GROUPS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.errors import CoordinatorLoading
from routing.groups.group import Group
from routing.groups.membership import State

_CLASSIC = "classic"
_CONSUMER = "consumer"


@serves(LIST_GROUPS, 0, 5)
async def list_groups(door: Door, call: Call, request: Entity) -> Entity:
    """All, or those in some states or of some types."""
    try:
        door.broker.groups.require_all_read()
    except CoordinatorLoading as error:
        return Entity(error_code=code_of(error), groups=[])
    states = {name.lower() for name in request.states_filter}
    kinds = {name.lower() for name in request.types_filter}
    found = []
    async for name in bites(door.broker.groups.names()):
        one = _listed(name, door.broker.groups.groups.get(name))
        if (not states or one.group_state.lower() in states) and (not kinds or one.group_type in kinds):
            found.append(one)
    return Entity(error_code=ErrorCode.NONE, groups=found)


def _listed(name: str, group: Group | ConsumerGroup | None) -> Entity:
    if isinstance(group, ConsumerGroup):
        return Entity(group_id=name, protocol_type=_CONSUMER, group_state=group.state, group_type=group.kind)
    state, kind = (State.EMPTY, "") if group is None else (group.state, group.protocol_type)
    return Entity(group_id=name, protocol_type=kind, group_state=state.value, group_type=_CLASSIC)
