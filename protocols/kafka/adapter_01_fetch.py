"""Fetch: whole batches as they lie in the log, from where a consumer is.

1. There are no fetch sessions yet: each request says all, and every reply has session id 0, which clients take as such.
2. What waits and what is limited is `protocols.fetching`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core_log.errors import OffsetOutOfRange
from core_log.partition_log import PartitionLog
from protocols.fetching import Entry, Found
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import FETCH
from protocols.kafka.registry import serves


class FetchEntry(NamedTuple):
    """One partition of a request."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int


class KafkaFetch:
    """A request, as `protocols.fetching` takes it."""

    __slots__ = ("bytes_max", "bytes_min", "call", "entries", "wait_ms_max")

    def __init__(self, call: Call, request: Entity) -> None:
        self.call = call
        self.wait_ms_max: int = max(request.max_wait_ms, 0)
        self.bytes_min: int = max(request.min_bytes, 0)
        self.bytes_max: int = max(request.max_bytes, 1)
        self.entries = [
            FetchEntry(
                topic.topic,
                one.partition,
                one.fetch_offset,
                max(one.partition_max_bytes, 1),
                one.current_leader_epoch,
            )
            for topic in request.topics
            for one in topic.partitions
        ]


class FetchDoor:
    """See `protocols.fetching.Door`."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def log_of(self, entry: Entry) -> PartitionLog | ErrorCode:
        """See `protocols.fetching.Door`."""
        assert isinstance(entry, FetchEntry)
        try:
            self._door.require("read", entry.topic)
            return self._door.led(entry.topic, entry.partition, leader_epoch=entry.leader_epoch).log
        except ENGINE_ERRORS as error:
            return code_of(error)

    def out_of_range(self, problem: OffsetOutOfRange) -> ErrorCode:
        """See `protocols.fetching.Door`."""
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def unreadable(self, problem: Exception) -> ErrorCode:
        """See `protocols.fetching.Door`."""
        return ErrorCode.KAFKA_STORAGE_ERROR

    def answer(self, request: KafkaFetch, found: Sequence[Found[ErrorCode]]) -> None:
        """See `protocols.fetching.Door`."""
        responses: list[Entity] = []
        for entry, one in zip(request.entries, found, strict=True):
            if not responses or responses[-1].topic != entry.topic:
                responses.append(Entity(topic=entry.topic, partitions=[]))
            responses[-1].partitions.append(_partition(entry, one))
        request.call.answer(Entity(responses=responses))


def _partition(entry: FetchEntry, found: Found[ErrorCode]) -> Entity:
    log = found.log
    return Entity(
        partition_index=entry.partition,
        error_code=ErrorCode.NONE if found.error is None else found.error,
        high_watermark=-1 if log is None else log.high_watermark,
        last_stable_offset=-1 if log is None else log.high_watermark,
        log_start_offset=-1 if log is None else log.log_start_offset,
        aborted_transactions=None,
        records=found.batches,
    )


@serves(FETCH, 4, 11)
async def fetch(door: Door, call: Call, request: Entity) -> None:
    """Answered now or later."""
    await door.fetches.start(KafkaFetch(call, request))
