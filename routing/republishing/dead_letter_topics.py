"""Records of a topic that a group does not get, in a topic of their own: `TOPIC.dlq`, with the reason in their headers.

It is made when the first one goes there, with one partition and room for whatever a producer may have compressed, and
is a topic as any. What is copied is committed when `bury` returns; who moves the group after that loses nothing, and
may copy once more what the broker's death left there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import BatchTooLarge, LogError
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, Record, encode_headers
from routing.errors import BrokerError, PreconditionFailed, StorageUnavailable
from routing.runs import record_bytes
from routing.topics.seen_records import records_between
from routing.topics.single_records import append_anywhere
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

SUFFIX = ".dlq"
Letters = Sequence[tuple[Record, Mapping[str, object]]]
"""Records, and what is said about each."""
_PIECE_BYTES = 64 << 10
_PIECE_RECORDS_MAX = 500
"""So much is copied before the event loop goes on."""
_BURIED_BYTES = 1 << 20
_BATCH_BYTES = 900 << 10
_LETTER_BYTES_MAX = DECOMPRESSED_BYTES_MAX + (1 << 20)
"""A record is not larger than what a batch is decompressed to, and what is said about it takes some room."""
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
    the next begin: behind what was copied, lest that is copied again and again, if more cannot be. Raises LogError,
    BrokerError.
    """
    ends: dict[PartitionLog, int] = {}
    at, count, size = start, 0, 0
    while at < end and size < _BURIED_BYTES:
        records: list[Record] | None = None
        with trio.move_on_after(_PATIENCE_S):
            records, following = await records_between(partition, at, end, _PIECE_BYTES)
        if records is None:
            if ends:
                break
            raise StorageUnavailable(f"nobody gives out record {at} of {partition.topic_name}-{partition.index}")
        if following <= at:
            break  # what follows is not to be seen yet
        try:
            for piece in _pieces(records):
                letters = [(record, {**said, "offset": record.offset}) for record in piece]
                ends.update(_append(broker, await _target(broker, partition), partition, letters))
                count += len(piece)
                size += sum(map(_size, piece))
                at = piece[-1].offset + 1
                await trio.lowlevel.checkpoint()
        except (LogError, BrokerError):
            if not ends:
                raise
            break
        at = following
    if ends:
        await broker.commits.committed([*ends.items()])
    return count, at


def _size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")


def _pieces(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """So many at once that others do not wait."""
    first = size = 0
    for index, record in enumerate(records):
        size += _size(record)
        if size >= _PIECE_BYTES or index - first >= _PIECE_RECORDS_MAX - 1:
            yield records[first : index + 1]
            first, size = index + 1, 0
    if first < len(records):
        yield records[first:]


async def _target(broker: Broker, partition: TopicPartition) -> TopicPartition:
    name = partition.topic_name + SUFFIX
    if name not in broker.topics:
        try:
            await broker.create_topic(name, config={"max.message.bytes": str(_LETTER_BYTES_MAX)})
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
    """Where they are committed once these are; all are appended, or none."""
    most_bytes = target.log.config.message_bytes_max
    where = {"topic": source.topic_name, "partition": source.index}
    told = [(record, {**said, **where, "timestamp": record.timestamp_ms}) for record, said in letters]
    each = 1 if target.forward is not None else len(letters)
    batches = list(_batches(broker.clock.now_ms(), told, each, min(_BATCH_BYTES, most_bytes)))
    largest = max(map(len, batches))
    if largest > most_bytes:
        raise BatchTooLarge(f"a batch of {largest} bytes, and {target.topic_name} takes {most_bytes}")
    ends: dict[PartitionLog, int] = {}
    for batch in batches:
        log, end = append_anywhere(target, batch)
        ends[log] = end
    broker.want_turn()
    return list(ends.items())


def _batches(now_ms: int, letters: Letters, records_max: int, bytes_max: int) -> Iterator[bytes]:
    """Batches of so many records, and bytes, at most, unless one record alone is larger."""
    builder = BatchBuilder(0, 0, now_ms)
    for record, said in letters:
        headers = [*record.headers, *((f"x-dead-letter-{what}", str(value).encode()) for what, value in said.items())]
        size = record_bytes(record.key or b"", encode_headers(headers)) + len(record.value or b"")
        if builder.count and (builder.count == records_max or builder.size_estimate + size > bytes_max):
            yield builder.build()
            builder = BatchBuilder(0, 0, now_ms)
        builder.add(builder.count, record.key, record.value, headers)
    yield builder.build()
