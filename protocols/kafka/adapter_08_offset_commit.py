"""OffsetCommit: how far a group has come."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, group_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import OFFSET_COMMIT
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topics.offset_store import Committed, Partition

_NOTE_CHARACTERS_MAX = 4096
_EPOCHS_SINCE = 9


@serves(OFFSET_COMMIT, 1, 9)
async def offset_commit(door: Door, call: Call, request: Entity) -> Entity:
    """Answered when what can be committed is safe; each partition is told for itself."""
    offsets, codes = await asked_of(door, request)
    try:
        await door.broker.groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
            knows_epochs=call.version >= _EPOCHS_SINCE,
        )
    except ENGINE_ERRORS as error:
        codes.update(dict.fromkeys(offsets, group_code_of(error)))
    return told_of(request, codes)


async def asked_of(door: Door, request: Entity) -> tuple[dict[Partition, Committed], dict[Partition, ErrorCode]]:
    """The offsets of a request that may be committed, and of each partition whether its may."""
    offsets: dict[Partition, Committed] = {}
    codes: dict[Partition, ErrorCode] = {}
    async for topic in bites(request.topics):
        async for one in bites(topic.partitions):
            place = topic.name, one.partition_index
            codes[place] = _allowed(door, *place, one.committed_metadata or "")
            if codes[place] == ErrorCode.NONE:
                note, epoch = one.committed_metadata or "", one.committed_leader_epoch
                offsets[place] = Committed(one.committed_offset, note, epoch)
    return offsets, codes


def told_of(request: Entity, codes: Mapping[Partition, ErrorCode]) -> Entity:
    """The reply to a request for offsets, each partition's code in its place."""
    return Entity(
        topics=[
            Entity(
                name=topic.name,
                partitions=[
                    Entity(partition_index=one.partition_index, error_code=codes[topic.name, one.partition_index])
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _allowed(door: Door, topic: str, index: int, note: str) -> ErrorCode:
    if not door.allows("read", topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = door.broker.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if len(note) > _NOTE_CHARACTERS_MAX else ErrorCode.NONE
