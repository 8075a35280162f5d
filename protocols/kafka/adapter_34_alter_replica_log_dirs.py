"""AlterReplicaLogDirs: in which directory of this broker replicas are to be. There is one, and they are there.

`kafka-reassign-partitions` asks for it when it takes back a reassignment by what it has printed before.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_replicas import directory_of, partition_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import ALTER_REPLICA_LOG_DIRS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(ALTER_REPLICA_LOG_DIRS, 1, 2)
async def alter_replica_log_dirs(door: Door, call: Call, request: Entity) -> Entity:
    """All partitions that are named, whatever directory they are named under."""
    results = []
    for wanted in request.dirs:
        async for topic in bites(wanted.topics):
            found = [
                Entity(partition_index=index, error_code=_code(door, wanted.path, topic.name, index))
                async for index in bites(topic.partitions)
            ]
            results.append(Entity(topic_name=topic.name, partitions=found))
    return Entity(results=results)


def _code(door: Door, path: str, topic: str, index: int) -> ErrorCode:
    try:
        door.require_administrator()
        if path != directory_of(door):
            return ErrorCode.LOG_DIR_NOT_FOUND
        return ErrorCode.NONE if partition_of(door, topic, index).is_here else ErrorCode.REPLICA_NOT_AVAILABLE
    except KafkaError as error:
        return error.code
