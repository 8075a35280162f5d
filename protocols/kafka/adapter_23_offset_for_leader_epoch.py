"""OffsetForLeaderEpoch: where an epoch ended, so that a consumer finds out if what it has read was lost (KIP-320)."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_leaders import epoch_end
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import OFFSET_FOR_LEADER_EPOCH
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(OFFSET_FOR_LEADER_EPOCH, 0, 4)
async def offset_for_leader_epoch(door: Door, call: Call, request: Entity) -> Entity:
    """At once, but for others' turns."""
    return Entity(
        topics=[
            Entity(
                topic=topic.topic,
                partitions=[_partition(door, topic.topic, one) async for one in bites(topic.partitions)],
            )
            async for topic in bites(request.topics)
        ]
    )


def _partition(door: Door, topic: str, asked: Entity) -> Entity:
    try:
        door.require("read", topic)
        partition = door.led(topic, asked.partition, leader_epoch=asked.current_leader_epoch)
        epoch, end = epoch_end(partition, asked.leader_epoch)
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), partition=asked.partition)
    return Entity(error_code=ErrorCode.NONE, partition=asked.partition, leader_epoch=epoch, end_offset=end)
