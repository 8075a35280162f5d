"""ListPartitionReassignments: which partitions are on their way to other replicas."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_replicas import all_partitions
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import LIST_PARTITION_REASSIGNMENTS
from protocols.kafka.registry import serves
from routing.cluster.metadata.log_names import topic_log


@serves(LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(door: Door, call: Call, request: Entity) -> Entity:
    """Of some partitions, or of all; those that stay where they are are not told of."""
    reply = Entity(error_code=ErrorCode.NONE, error_message=None, topics=[])
    try:
        door.require_administrator(looks=True)
    except KafkaError as error:
        reply.error_code = error.code
        return reply
    if request.topics is None:
        asked = list(all_partitions(door))
    else:
        asked = [(one.name, one.partition_indexes) for one in request.topics]
    for name, indexes in asked:
        found = [one for one in (_moving(door, name, index) for index in indexes) if one is not None]
        if found:
            reply.topics.append(Entity(name=name, partitions=found))
    return reply


def _moving(door: Door, name: str, index: int) -> Entity | None:
    cluster, topic = door.broker.cluster, door.broker.topics.get(name)
    if cluster is None or topic is None:
        return None
    known = cluster.elections.logs.get(topic_log(topic.uid, index))
    if known is None or known.state.target is None:
        return None
    state, target = known.state, known.state.target
    origin = state.origin or tuple(one for one in state.replicas if one not in target)
    return Entity(
        partition_index=index,
        replicas=list(state.replicas),
        adding_replicas=[one for one in target if one not in origin],
        removing_replicas=[one for one in state.replicas if one not in target],
    )
