"""OffsetDelete: forget where a group has come, in topics that none of its members reads."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, group_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import OFFSET_DELETE
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(OFFSET_DELETE, 0, 0)
async def offset_delete(door: Door, call: Call, request: Entity) -> Entity:
    """All partitions that are named."""
    places = [(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    try:
        mine = [place async for place in bites(places) if _refused(door, *place) is None]
        read = await door.broker.groups.forget(request.group_id, mine)
    except ENGINE_ERRORS as error:
        return Entity(error_code=group_code_of(error), topics=[])
    return Entity(
        error_code=ErrorCode.NONE,
        topics=[
            Entity(name=topic.name, partitions=[_done(door, read, topic.name, one) for one in topic.partitions])
            for topic in request.topics
        ],
    )


def _done(door: Door, read: set[str], topic: str, asked: Entity) -> Entity:
    code = _refused(door, topic, asked.partition_index)
    if code is None:
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in read else ErrorCode.NONE
    return Entity(partition_index=asked.partition_index, error_code=code)


def _refused(door: Door, topic: str, index: int) -> ErrorCode | None:
    if not door.allows("read", topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = door.broker.topics.get(topic)
    there = found is not None and 0 <= index < len(found.partitions)
    return None if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
