"""CreatePartitions: topics get more partitions."""

from __future__ import annotations

from collections import Counter

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import CREATE_PARTITIONS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(CREATE_PARTITIONS, 0, 3)
async def create_partitions(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other. As many as there are already is an error, as with Kafka."""
    named = Counter(topic.name for topic in request.topics)
    results = []
    async for asked in bites(request.topics):
        code, why = ErrorCode.NONE, None
        try:
            if named[asked.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            await _add(door, asked, request.validate_only)
        except ENGINE_ERRORS as error:
            code, why = code_of(error), str(error) or None
        results.append(Entity(name=asked.name, error_code=code, error_message=why))
    return Entity(results=results)


async def _add(door: Door, asked: Entity, validate_only: bool) -> None:
    door.require("configure", asked.name)
    there = len(door.topic(asked.name).partitions)
    if asked.count == there:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {there} partition(s).")
    assignment = None
    if asked.assignments is not None:
        assignment = [list(one.broker_ids) for one in asked.assignments]
    if validate_only:
        door.broker.topic_control.check_new_partitions(asked.name, asked.count, assignment=assignment)
        return
    await door.broker.create_partitions(asked.name, asked.count, assignment=assignment)
