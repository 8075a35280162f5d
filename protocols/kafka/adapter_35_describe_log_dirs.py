"""DescribeLogDirs: what this broker's disk has of which partitions. There is one directory."""

from __future__ import annotations

from collections.abc import Iterator

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_replicas import directory_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import DESCRIBE_LOG_DIRS
from protocols.kafka.registry import serves
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition

_UNKNOWN = -1


@serves(DESCRIBE_LOG_DIRS, 0, 5)
async def describe_log_dirs(door: Door, call: Call, request: Entity) -> Entity:
    """Of some partitions, or of all that it has."""
    try:
        door.require_administrator(looks=True)
    except KafkaError as error:
        return Entity(error_code=error.code, results=[])
    space = door.broker.alarms.space
    found = Entity(
        error_code=ErrorCode.NONE,
        log_dir=directory_of(door),
        topics=list(_topics(door, request)),
        total_bytes=space.total_bytes or _UNKNOWN,
        usable_bytes=space.free_bytes if space.total_bytes else _UNKNOWN,
    )
    return Entity(error_code=ErrorCode.NONE, results=[found])


def _topics(door: Door, request: Entity) -> Iterator[Entity]:
    topics = door.broker.topics
    if request.topics is None:
        asked = {name: range(len(topic.partitions)) for name, topic in topics.items()}
    else:
        asked = {one.topic: one.partitions for one in request.topics}
    for name, indexes in sorted(asked.items()):
        partitions = _partitions(topics[name], indexes) if name in topics else []
        if partitions:
            yield Entity(name=name, partitions=partitions)


def _partitions(topic: Topic, indexes: list[int] | range) -> list[Entity]:
    there = [topic.partitions[index] for index in indexes if 0 <= index < len(topic.partitions)]
    return [
        Entity(partition_index=one.index, partition_size=one.log.size_bytes, offset_lag=_lag(one), is_future_key=False)
        for one in there
        if one.is_here
    ]


def _lag(partition: TopicPartition) -> int:
    """How far it is behind what readers may see, for all that is known here."""
    return max(partition.log.high_watermark - partition.log.log_end_offset, 0)
