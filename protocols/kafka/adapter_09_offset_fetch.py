"""OffsetFetch: where a group goes on.

Who wants stable offsets is told to ask again while a transaction that is not ended has another one for the group. Who
asks where nobody looks after the group is told that it is being loaded: the other answer is not one of this request's,
clients give up by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, group_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import OFFSET_FETCH
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topics.offset_store import Committed, Partition

_NOWHERE = Committed(-1)
_MANY_SINCE = 8
_MEMBERS_SINCE = 9
_CODE_OF_ALL_SINCE = 2


@serves(OFFSET_FETCH, 1, 9)
async def offset_fetch(door: Door, call: Call, request: Entity) -> Entity:
    """One group, or from version 8 on many."""
    if call.version >= _MANY_SINCE:
        once = {one.group_id: one for one in request.groups}.values()
        return Entity(groups=[await _group(door, call, one, request.require_stable) async for one in bites(once)])
    found = await _group(door, call, request, request.require_stable)
    return Entity(topics=found.topics, error_code=found.error_code)


async def _group(door: Door, call: Call, asked: Entity, require_stable: bool) -> Entity:
    code, found = ErrorCode.NONE, dict[Partition, Committed]()
    unstable: set[Partition] = set()
    places = None
    if asked.topics is not None:
        places = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
    try:
        if require_stable:
            unstable = door.broker.groups.unstable(asked.group_id, places)
        if call.version < _MEMBERS_SINCE:
            found = await door.broker.groups.fetch(asked.group_id, places)
        else:
            found = await door.broker.groups.fetch(
                asked.group_id, places, member_id=asked.member_id, epoch=asked.member_epoch
            )
        if places is not None:
            told = {place: at for place, at in found.items() if door.allows("read", place[0])}
            found |= await door.broker.poison.look(asked.group_id, told)
    except ENGINE_ERRORS as error:
        code = group_code_of(error)
        if code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if call.version >= _CODE_OF_ALL_SINCE:
            return Entity(group_id=asked.group_id, topics=[], error_code=code)
    if places is None:
        places = sorted(place for place in {*found, *unstable} if door.allows("read", place[0]))
    topics: list[Entity] = []
    async for topic, index in bites(places):
        if not topics or topics[-1].name != topic:
            topics.append(Entity(name=topic, partitions=[]))
        said = ErrorCode.UNSTABLE_OFFSET_COMMIT if (topic, index) in unstable else code
        topics[-1].partitions.append(_partition(door, found, topic, index, said))
    return Entity(group_id=asked.group_id, topics=topics, error_code=code)


def _partition(door: Door, found: Mapping[Partition, Committed], topic: str, index: int, code: ErrorCode) -> Entity:
    if not door.allows("read", topic):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    at = found.get((topic, index), _NOWHERE) if code == ErrorCode.NONE else _NOWHERE
    return Entity(
        partition_index=index,
        committed_offset=at.offset,
        committed_leader_epoch=at.leader_epoch,
        metadata=at.note,
        error_code=code,
    )
