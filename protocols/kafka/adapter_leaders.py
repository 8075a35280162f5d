"""Who leads a partition, where that is, and where its epochs ended: what replies say of leaders beside errors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from protocols.kafka.adapter_03_metadata import NOBODY, nodes
from protocols.kafka.adapter_door import Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from routing.topics.topic_partition import TopicPartition

LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Beside which newer replies name the leader (KIP-951)."""
_UNKNOWN = (-1, -1)
_first_offset = itemgetter(1)


def current_leader(door: Door, topic: str | bytes, index: int) -> Entity:
    """Of a partition of a topic, by its name or id: the broker that leads it as far as is known here, and its epoch."""
    topics = door.broker.topics
    found = topics.get(topic) if isinstance(topic, str) else topics.by_id.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return Entity(leader_id=NOBODY, leader_epoch=-1)
    leadership = found.partitions[index].leadership
    if leadership is None:
        return Entity(leader_id=door.node_id, leader_epoch=found.partitions[index].leader_epoch)
    standing = leadership.standing
    return Entity(leader_id=NOBODY if standing.leader is None else standing.leader, leader_epoch=standing.leader_epoch)


def epoch_at(partition: TopicPartition, offset: int) -> int:
    """The epoch that a record was written in."""
    entries = partition.log.epochs.entries
    at = bisect_right(entries, offset, key=_first_offset)
    return entries[at - 1][0] if at else partition.leader_epoch


def endpoints(door: Door, brokers: Iterable[int]) -> list[Entity]:
    """Where these brokers are, as far as they have such a door."""
    wanted = set(brokers)
    return [node for node in nodes(door) if node.node_id in wanted] if wanted else []


def epoch_end(partition: TopicPartition, epoch: int) -> tuple[int, int]:
    """The last epoch up to `epoch` that there are records of, and the offset behind its last one; (-1, -1) if it is not
    known (KIP-101, KIP-320).
    """
    log = partition.log
    if epoch < 0 or epoch > partition.leader_epoch:
        return _UNKNOWN
    found = log.epochs.end_of(epoch, log.log_end_offset)
    if found is not None:
        return found
    entries = log.epochs.entries
    return epoch, entries[0][1] if entries else log.log_end_offset
