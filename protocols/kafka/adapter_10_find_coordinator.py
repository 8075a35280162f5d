"""FindCoordinator: which broker looks after a group, or a transactional id."""

from __future__ import annotations

from protocols.kafka.adapter_03_metadata import nodes
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import FIND_COORDINATOR
from protocols.kafka.registry import serves
from routing.bites import bites

_GROUP, _TRANSACTION = 0, 1
_BATCHES_SINCE = 4


@serves(FIND_COORDINATOR, 0, 6)
async def find_coordinator(door: Door, call: Call, request: Entity) -> Entity:
    """One, or from version 4 on for many."""
    if call.version < _BATCHES_SINCE:
        found = _found(door, request.key, request.key_type)
        del found.key
        return found
    return Entity(coordinators=[_found(door, key, request.key_type) async for key in bites(request.coordinator_keys)])


def _found(door: Door, key: str, kind: int) -> Entity:
    code, why = ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody looks after it now"
    if kind not in (_GROUP, _TRANSACTION):
        code, why = ErrorCode.INVALID_REQUEST, f"nobody looks after keys of type {kind}"
    elif not key:
        code = ErrorCode.INVALID_GROUP_ID if kind == _GROUP else ErrorCode.INVALID_REQUEST
        why = "it needs a name"
    elif kind == _TRANSACTION and not door.allows("write", key):
        code, why = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ""
    else:
        broker = (door.broker.groups if kind == _GROUP else door.broker.coordinator).broker_of(key)
        for node in nodes(door):
            if node.node_id == broker:
                return Entity(
                    key=key,
                    node_id=broker,
                    host=node.host,
                    port=node.port,
                    error_code=ErrorCode.NONE,
                    error_message=None,
                )
    return Entity(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=why)
