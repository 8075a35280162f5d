"""How far Spark's own Kafka source has come, as offsets of a group.

1. It keeps its offsets in Spark's checkpoint and commits none, so no tool would show its lag. Its consumers are of no
   group, but name themselves after one that is the query's: `consumer-spark-kafka-source-ID-executor-N`
   (`KafkaSourceProvider.streamingUniqueGroupId` and `kafkaParamsForExecutors` of Spark; the client's default for
   `client.id`).
2. Such a consumer asks for what follows all that it was given. That is noted as an offset of the group
   `spark-kafka-source-ID`, which is for people: nobody reads from there. Each start of a query has an ID of its own.
"""

from __future__ import annotations

import re
from contextlib import suppress

from core_log.errors import LogUnavailable
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from routing.topics.offset_store import Committed

NOTE = "spark"
_CLIENT_PREFIX = "consumer-spark-kafka-source-"
_CLIENT = re.compile(r"consumer-(spark-kafka-source-[\w.-]{1,200})-executor-\d+", re.ASCII)


def note_progress(door: Door, call: Call, request: Entity) -> None:
    """Note where a fetch begins, if it is such a consumer's and further than what was noted."""
    if call.client_id is None or not call.client_id.startswith(_CLIENT_PREFIX):
        return
    match = _CLIENT.fullmatch(call.client_id)
    if match is None:
        return
    topics = door.broker.topics
    places = {}
    for one in request.topics:
        topic = topics.get(one.topic) if one.topic else topics.by_id.get(one.topic_id)
        if topic is not None and door.allows("read", topic.name):
            for entry in one.partitions:
                if 0 <= entry.partition < len(topic.partitions):
                    places[topic.name, entry.partition] = entry.fetch_offset
    known = door.broker.offsets.known(match[1], places)
    further = {
        place: Committed(offset, NOTE) for place, offset in places.items() if offset > known.get(place, (-1,))[0]
    }
    if further:
        with suppress(LogUnavailable):
            door.broker.offsets.note(match[1], further)
