"""JoinGroup: a member wants to be in a group's next generation."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_static_members import is_static
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import JOIN_GROUP
from protocols.kafka.registry import serves
from routing.groups.membership import Joined, Joining

_MEMBER_ID_SINCE = 4
_SKIP_SINCE = 9


@serves(JOIN_GROUP, 0, 9)
async def join_group(door: Door, call: Call, request: Entity) -> Entity | None:
    """Answered when the generation begins."""

    def answer(joined: Joined) -> None:
        call.answer(_reply(call, request, joined))

    rebalance_ms = request.rebalance_timeout_ms
    instance_id = request.group_instance_id
    if instance_id is None and is_static(door.config.static_client_ids, call.client_id):
        instance_id = call.client_id
    joining = Joining(
        request.member_id,
        instance_id,
        call.client_id or "",
        "/" + door.peer.rpartition(":")[0].strip("[]"),
        request.session_timeout_ms,
        request.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        request.protocol_type,
        [(one.name, one.metadata) for one in request.protocols],
        must_have_id=call.version >= _MEMBER_ID_SINCE,
    )
    try:
        door.broker.groups.join(request.group_id, joining, answer)
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), member_id=request.member_id, protocol_name="", leader="", members=[])
    return None


def _reply(call: Call, request: Entity, joined: Joined) -> Entity:
    if joined.error is not None:
        code = code_of(joined.error)
        return Entity(error_code=code, member_id=joined.member_id, protocol_name="", leader="", members=[])
    skips = joined.skip_assignment and call.version >= _SKIP_SINCE
    members = [
        Entity(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
        for member_id, instance_id, metadata in joined.members
        if skips or joined.leader == joined.member_id
    ]
    return Entity(
        error_code=ErrorCode.NONE,
        generation_id=joined.generation,
        protocol_type=request.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.member_id if skips else joined.leader,
        skip_assignment=skips,
        member_id=joined.member_id,
        members=members,
    )
