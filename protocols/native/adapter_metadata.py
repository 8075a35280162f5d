"""Which brokers there are and who leads what, as clients are told.

In a cluster a broker's address is the one that it advertises for the same door: who came by TLS is sent on by TLS.
"""

from __future__ import annotations

from protocols.adapter_topics import nodes_of
from protocols.native import wire, wire_topics
from protocols.native.config import NativeConfig
from routing.broker import Broker
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition

NOBODY = -1
"""Who leads a partition that nobody leads."""


def node_id(broker: Broker, config: NativeConfig) -> int:
    """This broker's."""
    return config.node_id if broker.cluster is None else broker.cluster.broker_id


def nodes(broker: Broker, config: NativeConfig, door: str) -> list[tuple[int, str, int]]:
    """(node id, host, port) of all brokers with such a door; an empty host: the address that the client is at."""
    cluster = broker.cluster
    if cluster is None:
        return [(config.node_id, config.advertised_host, config.advertised_port)]
    return [(node.broker_id, node.host, node.port) for node in nodes_of(cluster, door)]


def partitions(broker: Broker, config: NativeConfig, topic: Topic) -> list[wire.PartitionMetadata]:
    """Who leads each partition of a topic, and who has it."""
    return [_partition(broker, config, partition) for partition in topic.partitions]


def _partition(broker: Broker, config: NativeConfig, partition: TopicPartition) -> wire.PartitionMetadata:
    if partition.leadership is None:
        me = node_id(broker, config)
        return wire.PartitionMetadata(partition.index, me, partition.log.leader_epoch, [me], [me])
    standing = partition.leadership.standing
    leader = NOBODY if standing.leader is None else standing.leader
    return wire.PartitionMetadata(
        partition.index, leader, standing.leader_epoch, list(standing.replicas), list(standing.isr)
    )


def describe(broker: Broker, config: NativeConfig, topic: Topic) -> list[wire_topics.PartitionDescription]:
    """Each partition as far as it is on this broker: where it is not, nobody here knows its offsets and size."""
    found = []
    for partition in topic.partitions:
        said, log = _partition(broker, config, partition), partition.log
        figures = (log.log_start_offset, log.high_watermark, log.log_end_offset, log.size_bytes)
        if not partition.is_here:
            figures = (wire_topics.UNKNOWN,) * 4
        found.append(
            wire_topics.PartitionDescription(
                partition.index, said.leader, said.leader_epoch, *figures, said.replicas, said.isr
            )
        )
    return found
