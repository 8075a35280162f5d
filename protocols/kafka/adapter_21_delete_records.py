"""DeleteRecords: what lies before an offset goes; -1 is all that is committed."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import DELETE_RECORDS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.errors import NotAllowed
from routing.topics.deletion import delete_records as deleted

_NOWHERE = -1


@serves(DELETE_RECORDS, 0, 2)
async def delete_records(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other."""
    timeout_ms = min(max(request.timeout_ms, 0), door.config.admin_timeout_ms_max)
    topics = []
    async for topic in bites(request.topics):
        found = [await _deleted(door, topic.name, one, timeout_ms) async for one in bites(topic.partitions)]
        topics.append(Entity(name=topic.name, partitions=found))
    return Entity(topics=topics)


async def _deleted(door: Door, topic: str, asked: Entity, timeout_ms: int) -> Entity:
    reply = Entity(partition_index=asked.partition_index, low_watermark=_NOWHERE, error_code=ErrorCode.NONE)
    try:
        door.require("configure", topic)
        partition = door.led(topic, asked.partition_index)
        reply.low_watermark = await deleted(partition, asked.offset, timeout_ms=timeout_ms)
    except NotAllowed:
        reply.error_code = ErrorCode.POLICY_VIOLATION
    except ENGINE_ERRORS as error:
        reply.error_code = code_of(error)
    return reply
