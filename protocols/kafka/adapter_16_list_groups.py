"""ListGroups: the groups that this broker looks after."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import LIST_GROUPS
from protocols.kafka.registry import serves
from routing.groups.group import State

_CLASSIC = "classic"
_CONSUMER = "consumer"


@serves(LIST_GROUPS, 0, 5)
async def list_groups(door: Door, call: Call, request: Entity) -> Entity:
    """All, or those in some states."""
    states = {name.lower() for name in request.states_filter}
    kinds = {name.lower() for name in request.types_filter}
    found = []
    for name in door.broker.groups.names():
        group = door.broker.groups.groups.get(name)
        state = State.EMPTY.value if group is None else group.state.value
        if (states and state.lower() not in states) or (kinds and _CLASSIC not in kinds):
            continue
        kind = _CONSUMER if group is None else group.protocol_type
        found.append(Entity(group_id=name, protocol_type=kind, group_state=state, group_type=_CLASSIC))
    return Entity(error_code=ErrorCode.NONE, groups=found)
