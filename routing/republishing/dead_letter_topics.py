"""Records of a topic that a group does not get, in a topic of their own: `TOPIC.dlq`, with the reason in their headers.

It is made when the first one goes there, with one partition, and it is a topic as any. What is copied is committed when
`bury` returns; who moves the group after that loses nothing, and may copy once more what the broker's death left there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, Record
from routing.errors import PreconditionFailed, StorageUnavailable
from routing.republishing.parked_records import append_anywhere
from routing.topics.seen_records import records_between
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

SUFFIX = ".dlq"
Letters = Sequence[tuple[Record, Mapping[str, object]]]
"""Records, and what is said about each."""
_PIECE_BYTES = 64 << 10
"""So much is copied before the event loop goes on."""
_BURIED_BYTES = 1 << 20
_PATIENCE_S = 10.0
"""For whoever leads the partition that is read."""


async def bury(broker: Broker, partition: TopicPartition, letters: Letters) -> None:
    """Copy records, each with what is said about it, in order. Raises LogError, BrokerError."""
    if letters:
        await broker.commits.committed([*_append(broker, await _target(broker, partition), partition, letters)])


async def bury_range(
    broker: Broker, partition: TopicPartition, start: int, end: int, said: Mapping[str, object]
) -> tuple[int, int]:
    """Copy the records that readers see of [start, end), some `_BURIED_BYTES` of them: how many there were, and where
    the next begin. Raises LogError, BrokerError.
    """
    ends: list[tuple[PartitionLog, int]] = []
    at, count, size = start, 0, 0
    while at < end and size < _BURIED_BYTES:
        records: list[Record] | None = None
        with trio.move_on_after(_PATIENCE_S):
            records, following = await records_between(partition, at, end, _PIECE_BYTES)
        if records is None:
            raise StorageUnavailable(f"nobody gives out record {at} of {partition.topic_name}-{partition.index}")
        if following <= at:
            break  # what follows is not to be seen yet
        at = following
        if records:
            letters = [(record, {**said, "offset": record.offset}) for record in records]
            ends += _append(broker, await _target(broker, partition), partition, letters)
            count += len(records)
            size += sum(len(record.value or b"") + len(record.key or b"") for record in records)
        await trio.lowlevel.checkpoint()
    if ends:
        await broker.commits.committed(ends)
    return count, at


async def _target(broker: Broker, partition: TopicPartition) -> TopicPartition:
    name = partition.topic_name + SUFFIX
    if name not in broker.topics:
        try:
            await broker.create_topic(name)
        except PreconditionFailed as error:
            if name not in broker.topics:
                raise StorageUnavailable(f"there is no topic {name}: {error}") from error  # or somebody else makes it
    return broker.topics[name].partitions[0]


def _append(
    broker: Broker,
    target: TopicPartition,
    source: TopicPartition,
    letters: Letters,
) -> list[tuple[PartitionLog, int]]:
    """Where they are committed once these are."""
    now_ms = broker.clock.now_ms()
    where = {"topic": source.topic_name, "partition": source.index}
    each = 1 if target.forward is not None else len(letters)
    ends: dict[PartitionLog, int] = {}
    for first in range(0, len(letters), each):
        builder = BatchBuilder(0, 0, now_ms)
        for at, (record, said) in enumerate(letters[first : first + each]):
            told = {**said, **where, "timestamp": record.timestamp_ms}
            headers = [(f"x-dead-letter-{what}", str(value).encode()) for what, value in told.items()]
            builder.add(at, record.key, record.value, [*record.headers, *headers])
        log, end = append_anywhere(target, builder.build())
        ends[log] = end
    broker.want_turn()
    return list(ends.items())
