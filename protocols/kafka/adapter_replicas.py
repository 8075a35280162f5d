"""What requests about leaders and replicas have in common: where a partition that is asked about is kept."""

from __future__ import annotations

from collections.abc import Iterator

from protocols.kafka.adapter_door import Door
from protocols.kafka.errors import ErrorCode, KafkaError
from routing.cluster.metadata.log_names import topic_log
from routing.topics.topic_partition import TopicPartition


def partition_of(door: Door, name: str, index: int) -> TopicPartition:
    """Raises KafkaError."""
    partitions = door.topic(name).partitions
    if not 0 <= index < len(partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} has {len(partitions)} partitions")
    return partitions[index]


def log_of(door: Door, name: str, index: int) -> str:
    """The replicated log of a partition, in a cluster. Raises KafkaError."""
    partition_of(door, name, index)
    return topic_log(door.topic(name).uid, index)


def directory_of(door: Door) -> str:
    """The one in which this broker has all that it has."""
    return str(getattr(door.broker.files, "root", "") or "/")


def all_partitions(door: Door) -> Iterator[tuple[str, list[int]]]:
    """Every topic, and its partitions."""
    for name, topic in sorted(door.broker.topics.items()):
        yield name, list(range(len(topic.partitions)))
