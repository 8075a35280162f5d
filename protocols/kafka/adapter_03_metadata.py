"""Metadata: which brokers there are, which topics, and who leads their partitions.

A topic is asked for by name or, from version 12 on, by its id; only a name makes one that is not there.
"""

from __future__ import annotations

from protocols.adapter_topics import may_see, nodes_of
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_records import METADATA
from protocols.kafka.registry import serves
from routing.access.grants import Access
from routing.bites import bites
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition
from routing.topology.plans import require_valid_topic_name

NOBODY = -1
_ALL_TOPICS_EMPTY_BEFORE = 1
"""In the first version an empty list asks for all topics; later only null does."""


_IDS_SINCE = 12
_NO_ID = bytes(16)
_OPERATIONS: dict[Access, int] = {
    "read": 1 << 3 | 1 << 8,  # read, describe
    "write": 1 << 4 | 1 << 8,  # write, describe
    "configure": 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11,  # create, delete, alter, describe, configs
}
NOT_ASKED = -(1 << 31)
"""Instead of operations, to who does not want to know them."""


@serves(METADATA, 0, 13)
async def metadata(door: Door, call: Call, request: Entity) -> Entity:
    """Topics that are asked for by name may be made by that."""
    asked = request.topics
    if asked is None or (not asked and call.version < _ALL_TOPICS_EMPTY_BEFORE):
        names = [name for name in sorted(door.broker.topics) if sees(door, name)]
        topics = [_topic(door.broker.topics[name]) for name in names]
    else:
        once = {one.name if one.topic_id == _NO_ID else one.topic_id: one for one in asked}.values()
        topics = [await _asked(door, call, one, create=request.allow_auto_topic_creation) async for one in bites(once)]
    if request.include_topic_authorized_operations:
        for one in topics:
            if one.error_code == ErrorCode.NONE:
                one.topic_authorized_operations = operations(door, one.name)
    members = nodes(door)
    return Entity(
        brokers=members,
        cluster_id=cluster_id(door),
        controller_id=controller(door, members),
        topics=topics,
        cluster_authorized_operations=door.operations if request.include_cluster_authorized_operations else NOT_ASKED,
    )


async def _asked(door: Door, call: Call, asked: Entity, *, create: bool) -> Entity:
    name, topic_id = asked.name, asked.topic_id
    if call.version < _IDS_SINCE and (name is None or topic_id != _NO_ID):
        return Entity(error_code=ErrorCode.INVALID_REQUEST, name=name or "", topic_id=topic_id, partitions=[])
    if name is None or topic_id != _NO_ID:
        found = door.broker.topics.by_id.get(topic_id)
        if found is None:
            return Entity(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[])
        if not sees(door, found.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return Entity(error_code=code, name=None, topic_id=topic_id, partitions=[])
        return _topic(found)
    try:
        topic = door.broker.topics.get(name)
        if not sees(door, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is None and create:
            topic = await door.create_missing(name)
        if topic is None:
            require_valid_topic_name(name)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), name=name, topic_id=_NO_ID, partitions=[])
    return _topic(topic)


def sees(door: Door, topic: str) -> bool:
    """Whether a topic exists, as far as the user is concerned."""
    return door.grants is not None and may_see(door.grants, topic)


def operations(door: Door, topic: str) -> int:
    """What a user may do with a topic, as Kafka's set of bits."""
    found = 0
    for access, bits in _OPERATIONS.items():
        if door.allows(access, topic):
            found |= bits
    return found


def _topic(topic: Topic) -> Entity:
    return Entity(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        topic_authorized_operations=NOT_ASKED,
        partitions=[described_partition(one) for one in topic.partitions],
    )


def described_partition(partition: TopicPartition) -> Entity:
    """Who leads a partition, and who has it."""
    leadership = partition.leadership
    if leadership is None:
        return Entity(
            error_code=ErrorCode.NONE,
            partition_index=partition.index,
            leader_id=0,
            leader_epoch=partition.leader_epoch,
            replica_nodes=[0],
            isr_nodes=[0],
        )
    standing = leadership.standing
    return Entity(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if standing.leader is None else ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=NOBODY if standing.leader is None else standing.leader,
        leader_epoch=standing.leader_epoch,
        replica_nodes=list(standing.replicas),
        isr_nodes=list(standing.isr),
    )


def nodes(door: Door) -> list[Entity]:
    """All brokers with such a door. A single one is where the client has found it, unless the configuration knows
    better.
    """
    cluster = door.broker.cluster
    if cluster is None:
        host, port = door.local
        host, port = door.config.advertised_host or host, door.config.advertised_port or port
        return [Entity(node_id=0, host=host, port=port, rack=None)]
    return [
        Entity(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack or None)
        for node in nodes_of(cluster, door.name)
    ]


def cluster_id(door: Door) -> str:
    """What clients are told that the cluster is."""
    cluster = door.broker.cluster
    return "millrace" if cluster is None else cluster.members.meta.cluster_id


def controller(door: Door, members: list[Entity]) -> int:
    """Any broker takes what Kafka's controller does; this one, if it can be reached."""
    return door.node_id if any(one.node_id == door.node_id for one in members) else NOBODY
