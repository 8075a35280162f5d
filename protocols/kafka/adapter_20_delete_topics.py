"""DeleteTopics: topics and all their records go."""

from __future__ import annotations

from collections import Counter

from protocols.adapter_topics import may_see
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import DELETE_TOPICS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.errors import NotFound

_NOBODY = bytes(16)


@serves(DELETE_TOPICS, 0, 6)
async def delete_topics(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other; by id, too, from version 6 on."""
    asked = [(one.name, one.topic_id) for one in request.topics] or [(name, _NOBODY) for name in request.topic_names]
    named = Counter(asked)
    return Entity(
        responses=[
            await _deleted(door, name, topic_id, twice=count > 1)
            async for (name, topic_id), count in bites(named.items())
        ]
    )


async def _deleted(door: Door, name: str | None, topic_id: bytes, *, twice: bool) -> Entity:
    reply = Entity(name=name, topic_id=topic_id, error_code=ErrorCode.NONE, error_message=None)
    try:
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or id.")
        if (name is None) is (topic_id == _NOBODY):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic goes by its name or by its id")
        if name is None:
            topic = door.broker.topics.by_id.get(topic_id)
            if topic is None or door.grants is None or not may_see(door.grants, topic.name):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            reply.name = topic.name
        door.require("configure", reply.name)
        reply.topic_id = door.topic(reply.name).id
        await door.broker.delete_topic(reply.name)
    except NotFound as error:
        reply.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
        reply.error_message = str(error)
    except ENGINE_ERRORS as error:
        reply.error_code, reply.error_message = code_of(error), str(error) or None
    return reply
