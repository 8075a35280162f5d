"""DescribeTopicPartitions: topics, so many partitions at a time, and where to go on.

Topics come in the order of their names; a cursor says from which topic and partition on.
"""

from __future__ import annotations

from protocols.kafka.adapter_03_metadata import described_partition, operations, sees
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import DESCRIBE_TOPIC_PARTITIONS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topology.plans import require_valid_topic_name

_PARTITIONS_MAX = 2000
_NO_ID = bytes(16)


@serves(DESCRIBE_TOPIC_PARTITIONS, 0, 0)
async def describe_topic_partitions(door: Door, call: Call, request: Entity) -> Entity | None:
    """Without names, all topics that the user may see."""
    named, cursor = {one.name for one in request.topics}, request.cursor
    left = min(max(request.response_partition_limit, 1), _PARTITIONS_MAX)
    names = sorted(named or (name for name in door.broker.topics if sees(door, name)))
    found: list[Entity] = []
    following: Entity | None = None
    async for name in bites(names):
        first = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            first = max(cursor.partition_index, 0) if name == cursor.topic_name else 0
        if not left:
            following = Entity(topic_name=name, partition_index=0)
            break
        try:
            topic = _topic(door, name)
        except ENGINE_ERRORS as error:
            found.append(Entity(error_code=code_of(error), name=name, topic_id=_NO_ID, partitions=[]))
            continue
        partitions = door.topic(name).partitions
        topic.partitions = [described_partition(one) for one in partitions[first : first + left]]
        found.append(topic)
        left -= len(topic.partitions)
        if first + len(topic.partitions) < len(partitions):
            following = Entity(topic_name=name, partition_index=first + len(topic.partitions))
            break
    return Entity(topics=found, next_cursor=following)


def _topic(door: Door, name: str) -> Entity:
    if not sees(door, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if name not in door.broker.topics:
        require_valid_topic_name(name)
    topic = door.topic(name)
    return Entity(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.id,
        topic_authorized_operations=operations(door, name),
    )
