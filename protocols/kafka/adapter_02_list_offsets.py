"""ListOffsets: where a partition begins and ends, and which record is the first of a time, or has the latest one."""

from __future__ import annotations

from collections import Counter
from functools import partial

from core_log.cold_reader import in_thread
from core_log.largest_timestamp import find_largest_timestamp
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_leaders import epoch_at
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_records import LIST_OFFSETS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.topics.topic_partition import TopicPartition

_LATEST, _EARLIEST, _LARGEST_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SINCE = {_LARGEST_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING: 11}
_READ_COMMITTED = 1
_NOT_TIERED = (_LATEST_TIERED, _EARLIEST_PENDING)
"""What is asked of records that lie elsewhere as well: there are none."""
_NOWHERE = (-1, -1, -1)


@serves(LIST_OFFSETS, 0, 11)
async def list_offsets(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other; what is named twice is refused once, except in version 0, as Kafka does."""
    topics = []
    named: Counter[tuple[str, int]] = Counter()
    if call.version:
        async for topic in bites(request.topics):
            named.update([(topic.name, one.partition_index) async for one in bites(topic.partitions)])
    refused: set[tuple[str, int]] = set()
    async for topic in bites(request.topics):
        name, level = topic.name, request.isolation_level
        found = []
        async for one in bites(topic.partitions):
            key = name, one.partition_index
            if key in refused:
                continue
            if twice := named[key] > 1:
                refused.add(key)
            found.append(await _partition(door, call, name, one, level, twice=twice))
        topics.append(Entity(name=topic.name, partitions=found))
    return Entity(topics=topics)


async def _partition(door: Door, call: Call, topic: str, asked: Entity, isolation_level: int, *, twice: bool) -> Entity:
    offset, timestamp, epoch = _NOWHERE
    code = ErrorCode.NONE
    try:
        door.require("read", topic)
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        partition = door.led(topic, asked.partition_index, leader_epoch=asked.current_leader_epoch)
        offset, timestamp, epoch = await _found(partition, call.version, asked.timestamp)
        stable = partition.log.stable_offset
        if offset >= stable and (isolation_level == _READ_COMMITTED or partition.log.config.held):
            # What is behind is not decided, or not seen yet: neither is which record is the first of a time.
            if asked.timestamp == _LATEST:
                offset = stable
            elif asked.timestamp >= 0 or asked.timestamp == _LARGEST_TIMESTAMP:
                offset, timestamp, epoch = _NOWHERE
    except ENGINE_ERRORS as error:
        code = code_of(error)
    except OSError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return Entity(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
        old_style_offsets=[offset] if offset >= 0 else [],
    )


async def _found(partition: TopicPartition, version: int, asked: int) -> tuple[int, int, int]:
    """Offset, timestamp and epoch. Raises as the log does, and KafkaError."""
    log = partition.log
    if version < _SINCE.get(asked, 0) or asked < _EARLIEST_PENDING:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if asked in _NOT_TIERED:
        return _NOWHERE
    if asked in (_EARLIEST, _EARLIEST_LOCAL):
        return log.log_start_offset, -1, epoch_at(partition, log.log_start_offset)
    if asked == _LATEST:
        return await partition.latest(), -1, partition.leader_epoch
    if asked == _LARGEST_TIMESTAMP:
        await partition.latest()
        found = await in_thread(partial(find_largest_timestamp, log))
    else:
        found = await partition.offset_for_timestamp(asked)
    if found is not None:
        return *found, epoch_at(partition, found[0])
    return (await partition.latest(), -1, partition.leader_epoch) if version == 0 else _NOWHERE
