"""ListOffsets: where a partition begins and ends, and which record is the first of a time."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import LIST_OFFSETS
from protocols.kafka.registry import serves

_LATEST, _EARLIEST = -1, -2


@serves(LIST_OFFSETS, 0, 6)
async def list_offsets(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other."""
    topics = []
    for topic in request.topics:
        found = [await _offset(door, call, topic.name, one) for one in topic.partitions]
        topics.append(Entity(name=topic.name, partitions=found))
    return Entity(topics=topics)


async def _offset(door: Door, call: Call, topic: str, asked: Entity) -> Entity:
    offset = timestamp = -1
    epoch = -1
    code = ErrorCode.NONE
    try:
        door.require("read", topic)
        partition = door.led(topic, asked.partition_index, leader_epoch=asked.current_leader_epoch)
        epoch, log = partition.leader_epoch, partition.log
        if asked.timestamp == _EARLIEST:
            offset = log.log_start_offset
        elif asked.timestamp == _LATEST:
            offset = await partition.latest()
        else:
            found = await log.offset_for_timestamp_cold(asked.timestamp)
            if found is not None:
                offset, timestamp = found
            elif call.version == 0:
                offset = await partition.latest()
    except ENGINE_ERRORS as error:
        code = code_of(error)
    except OSError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return Entity(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch if code == ErrorCode.NONE and offset >= 0 else -1,
        old_style_offsets=[offset] if offset >= 0 else [],
    )
