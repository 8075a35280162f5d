"""CreateTopics: topics are made, or only looked at whether they could be.

1. Each topic stands for itself: what cannot be made says why, and keeps no other from being made.
2. -1 is the configured number of partitions (`engine.auto_create_partitions`), and as many replicas as a topic has if
   nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from protocols.kafka.adapter_configs import SOURCES
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import CREATE_TOPICS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topics.described_config import Described, describe
from routing.topics.topic_config import FACTOR

_DEFAULT = -1
_CONFIGS_SINCE = 5


@serves(CREATE_TOPICS, 0, 7)
async def create_topics(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other."""
    named = Counter(topic.name for topic in request.topics)
    asked = {topic.name: topic for topic in request.topics}
    return Entity(
        topics=[
            await _created(door, call, one, twice=named[name] > 1, validate_only=request.validate_only)
            async for name, one in bites(asked.items())
        ]
    )


async def _created(door: Door, call: Call, asked: Entity, *, twice: bool, validate_only: bool) -> Entity:
    reply = Entity(name=asked.name, error_code=ErrorCode.NONE, error_message=None, configs=None)
    try:
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        door.require("configure", asked.name)
        said = _said(door, asked)
        value, replication = door.broker.topic_control.check_new_topic(asked.name, **said)
        reply.num_partitions = value["partitions"]
        reply.replication_factor = 1 if door.broker.cluster is None else replication.factor
        if not validate_only:
            topic = await door.broker.create_topic(asked.name, **said)
            reply.topic_id, leadership = topic.id, topic.partitions[0].leadership
            if leadership is not None:
                reply.replication_factor = len(leadership.standing.replicas)
        if call.version >= _CONFIGS_SINCE:
            minimum = replication.minimum if door.broker.cluster is not None else 1
            broker = door.broker.topology.stream_host.config
            reply.configs = [_entry(one) for one in describe(value["config"], broker, minimum=minimum)]
    except ENGINE_ERRORS as error:
        reply.error_code, reply.error_message = code_of(error), str(error) or None
    return reply


def _entry(one: Described) -> Entity:
    return Entity(
        name=one.name, value=one.value, read_only=False, config_source=SOURCES[one.source], is_sensitive=False
    )


def _said(door: Door, asked: Entity) -> dict[str, Any]:
    """What the engine is to be told of a new topic. Raises KafkaError."""
    partitions, factor = asked.num_partitions, asked.replication_factor
    config = {}
    for one in asked.configs:
        if one.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {one.name}")
        config[one.name] = one.value
    config.pop(FACTOR, None)
    if asked.assignments:
        if partitions != _DEFAULT or factor != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "with replicas assigned by hand neither partitions nor factor can be said"
            )
        return {"config": config, "assignment": assignment_of(asked.assignments)}
    if partitions == _DEFAULT:
        partitions = door.broker.config.auto_create_partitions
    elif partitions < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if factor != _DEFAULT:
        if factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor was set to an invalid non-positive value."
            )
        config[FACTOR] = str(factor)
    return {"partitions": partitions, "config": config}


def assignment_of(entries: Sequence[Entity]) -> list[list[int]]:
    """Replicas by partition. Raises KafkaError unless these are counted from 0."""
    found = {one.partition_index: list(one.broker_ids) for one in entries}
    if len(found) != len(entries) or set(found) != set(range(len(found))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be consecutive, from 0 on")
    return [found[index] for index in range(len(found))]
