"""ConsumerGroupHeartbeat: a member of a group that the broker divides says what it wants, and hears what it reads.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-848
"""

from __future__ import annotations

import secrets

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import CONSUMER_GROUP_HEARTBEAT
from protocols.kafka.registry import serves
from routing.groups.assignors import Places
from routing.groups.consumer_member import JOINING, Beat, Beaten

_CLIENT_MAKES_ID_SINCE = 1


@serves(CONSUMER_GROUP_HEARTBEAT, 0, 1)
async def consumer_group_heartbeat(door: Door, call: Call, request: Entity) -> Entity | None:
    """Answered when what it hears is kept."""
    refused = _refused(door, call, request)
    if refused is not None:
        return refused

    def answer(beaten: Beaten) -> None:
        call.answer(_reply(beaten))

    names, owned = request.subscribed_topic_names, request.topic_partitions
    beat = Beat(
        request.member_id or secrets.token_urlsafe(16),
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        call.client_id or "",
        "/" + door.peer.rpartition(":")[0].strip("[]"),
        request.rebalance_timeout_ms,
        None if names is None else frozenset(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        None if owned is None else frozenset((one.topic_id, number) for one in owned for number in one.partitions),
        door.grants,
    )
    try:
        await door.broker.groups.prepare(request.group_id, beat)
        door.broker.groups.beat(request.group_id, beat, answer)
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), error_message=str(error))
    return None


def _refused(door: Door, call: Call, request: Entity) -> Entity | None:
    if not request.group_id:
        return Entity(error_code=ErrorCode.INVALID_REQUEST, error_message="GroupId can't be empty.")
    if not request.member_id and (call.version >= _CLIENT_MAKES_ID_SINCE or request.member_epoch != JOINING):
        return Entity(error_code=ErrorCode.INVALID_REQUEST, error_message="MemberId can't be empty.")
    if request.instance_id == "":
        return Entity(error_code=ErrorCode.INVALID_REQUEST, error_message="InstanceId can't be empty.")
    if not all(door.allows("read", name) for name in request.subscribed_topic_names or ()):
        return Entity(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _reply(beaten: Beaten) -> Entity:
    if beaten.error is not None:
        return Entity(error_code=code_of(beaten.error), error_message=str(beaten.error))
    return Entity(
        error_code=ErrorCode.NONE,
        member_id=beaten.member_id,
        member_epoch=beaten.epoch,
        heartbeat_interval_ms=beaten.interval_ms,
        assignment=None if beaten.assignment is None else Entity(topic_partitions=_by_topic(beaten.assignment)),
    )


def _by_topic(places: Places) -> list[Entity]:
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return [Entity(topic_id=topic, partitions=numbers) for topic, numbers in found.items()]
