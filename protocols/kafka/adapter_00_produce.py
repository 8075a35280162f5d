"""Produce: a client's batches, appended as the bytes that came.

1. Header and CRC are checked, records are not decoded, but for the keys of a topic that is compacted; offset and leader
   epoch are the log's to put in, and the time where the topic says so (`core_log/admission.py`).
2. acks=-1 is answered when the batch is committed on all that count, acks=1 when this broker's disk has it by the log's
   own rule, acks=0 not at all: if one is refused, the connection ends, as with Kafka.
3. An idempotent producer's batch that is there already is answered with where it lies (`core_log/producer_states.py`);
   one that is out of order because the one before it was refused is refused as well (`adapter_refusals.py`).
4. A batch of a transaction is taken if its partition was added to that before (`routing/log_transactions`).
5. While publishers are blocked a batch is refused with a code that clients try again after; with acks=0 it waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from core_log.batch_header import HEADER_BYTES, LENGTH_START, BatchHeader, size_of, validate
from core_log.errors import InvalidRecord, OutOfOrderSequence
from core_log.partition_log import PartitionLog
from protocols.adapter_topics import know_producers
from protocols.buffers import BytesLike
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_leaders import current_leader, endpoints
from protocols.kafka.adapter_transactional import check_code_of, require_id
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_records import PRODUCE
from protocols.kafka.registry import serves
from routing.bites import give_way
from routing.errors import NotLeader, StorageUnavailable
from routing.topics.topic_partition import TopicPartition

ALL, NONE = -1, 0
_LEADERS_SINCE = 10
_NAMED_MAX = 10_000
"""Records that a reply blames; where more are to blame none is named, and clients take it to be all of the batch."""
_AT_ONCE = 32
"""Partitions, then others have their turn."""

log = structlog.get_logger(__name__)


class Producing:
    """A request until each of its batches is committed or refused."""

    __slots__ = ("_call", "_door", "_entries", "_places", "_remaining", "_replies", "_waits", "acks")

    def __init__(self, door: Door, call: Call, request: Entity) -> None:
        self.acks: int = request.acks
        self._door = door
        self._call = call
        self._replies = [
            Entity(name=topic.name, partition_responses=[Entity(index=one.index) for one in topic.partition_data])
            for topic in request.topic_data
        ]
        self._entries = [one for topic in self._replies for one in topic.partition_responses]
        self._places: list[tuple[str, int]] = []
        """The partition of each batch, once a batch was appended and is refused."""
        self._remaining = len(self._entries)
        self._waits = False

    def stamp(self, index: int, time_ms: int) -> None:
        """Batch `index` has the broker's time; -1: its own."""
        if time_ms >= 0:
            self._entries[index].log_append_time_ms = time_ms

    def settle(
        self, index: int, code: ErrorCode, base_offset: int = -1, log_start: int = -1, why: str | None = None
    ) -> None:
        """Batch `index` is done; answers when it was the last."""
        entry = self._entries[index].__dict__
        if "error_code" in entry:
            return
        entry.update(error_code=code, base_offset=base_offset, log_start_offset=log_start, error_message=why)
        self._remaining -= 1
        if not self._remaining:
            self.finish()

    def refuse(self, index: int, error: Exception) -> None:
        """Batch `index` is refused for this error of `ENGINE_ERRORS`: which records are to blame is said as well."""
        if isinstance(error, InvalidRecord) and len(error.records) <= _NAMED_MAX:
            self._entries[index].record_errors = [Entity(batch_index=at) for at in error.records]
        self.settle(index, code_of(error), why=str(error) or None)

    def committed(self, index: int, base_offset: int, log: PartitionLog, error: StorageUnavailable | None) -> None:
        """The log says that batch `index` is safe, or failed."""
        if error is None:
            self.settle(index, ErrorCode.NONE, base_offset, log.log_start_offset)
        else:
            self._note(index, code_of(error))
            self.refuse(index, error)

    def _note(self, index: int, code: ErrorCode) -> None:
        """Batch `index` was appended and is refused: see `Refusals`."""
        if not self._places:
            self._places = [(topic.name, one.index) for topic in self._replies for one in topic.partition_responses]
        self._door.refusals.note(*self._places[index], code)

    def finish(self) -> None:
        """All are done."""
        if self._waits:
            self._door.deadlines.remove(self)
        if self.acks == NONE:
            self._leave_unanswered()
            return
        leaders: set[int] = set()
        if self._call.version >= _LEADERS_SINCE:
            for topic in self._replies:
                for one in topic.partition_responses:
                    if one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        one.current_leader = current_leader(self._door, topic.name, one.index)
                        leaders.add(one.current_leader.leader_id)
        self._call.answer(Entity(responses=self._replies, node_endpoints=endpoints(self._door, leaders)))

    def _leave_unanswered(self) -> None:
        """End the connection if a batch was refused: nothing else tells the client, who asks anew who leads then."""
        refused = [entry for entry in self._entries if entry.error_code]
        if refused:
            code, why = ErrorCode(refused[0].error_code), refused[0].error_message
            log.info("a batch without acks was refused", peer=self._door.peer, reason=f"{code.name}: {why}")
            self._door.end()
        self._call.answer(None)

    def wait(self, timeout_ms: int) -> None:
        """Whatever is not committed by then is answered as such."""
        if self._remaining:
            self._waits = True
            self._door.deadlines.add(self, timeout_ms)

    def timed_out(self) -> None:
        """See `Deadlines`."""
        for index, entry in enumerate(self._entries):
            if "error_code" not in entry.__dict__:
                self._note(index, ErrorCode.REQUEST_TIMED_OUT)
                self.settle(index, ErrorCode.REQUEST_TIMED_OUT)


@serves(PRODUCE, 3, 11, advertised_min=0)
async def produce(door: Door, call: Call, request: Entity) -> None:
    """Clients of librdkafka send nothing compressed to a broker that does not advertise version 0."""
    producing = Producing(door, call, request)
    index = 0
    asked = [(topic.name, one.index, one.records) for topic in request.topic_data for one in topic.partition_data]
    if len(asked) > 1:
        await know_producers(door.broker, door.grants, asked)
    for topic in request.topic_data:
        for one in topic.partition_data:
            try:
                if request.acks not in (ALL, NONE, 1):
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                log, base_offset, end, time_ms = await append(door, topic.name, one, request)
            except ENGINE_ERRORS as error:
                producing.refuse(index, error)
            else:
                producing.stamp(index, time_ms)
                if request.acks == NONE:
                    producing.settle(index, ErrorCode.NONE, base_offset)
                else:
                    done = partial(producing.committed, index, base_offset, log)
                    sync = request.acks == ALL
                    door.broker.commits.when_committed([(log, end)], done, sync=sync)
            index += 1
            if not index % _AT_ONCE:
                await give_way()
    if not index:
        producing.finish()
    producing.wait(wait_ms_of(door, request))


def wait_ms_of(door: Door, request: Entity) -> int:
    """How long a request may wait to be committed."""
    return min(max(int(request.timeout_ms), 0), door.config.produce_timeout_ms_max)


async def append(door: Door, topic: str, asked: Entity, request: Entity) -> tuple[PartitionLog, int, int, int]:
    """Append one partition's batches of a request: where to, the first offset, the one behind the last, and the log's
    time if that is what counts. Raises KafkaError, BrokerError, LogError.
    """
    try:
        found = await _append(door, topic, asked, request)
    except OutOfOrderSequence as error:
        if not door.refusals.explain(topic, asked.index):
            raise
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{error}: what came before it was refused") from None
    except ENGINE_ERRORS as error:
        door.refusals.note(topic, asked.index, code_of(error))
        raise
    door.refusals.forget(topic, asked.index)
    return found


async def _append(door: Door, topic: str, asked: Entity, request: Entity) -> tuple[PartitionLog, int, int, int]:
    """See `append`."""
    if door.broker.blocked is not None:
        # Refused, not left unread: the connection may fetch as well, and consumers never wait.
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"producers are blocked: {door.broker.blocked}")
    door.require("write", topic)
    if topic not in door.broker.topics:
        await door.create_missing(topic)
    partition = door.led(topic, asked.index)
    if partition.leadership is not None:
        short = partition.leadership.shortage()
        if short is not None and (request.acks == ALL or isinstance(short, NotLeader)):
            raise short
    batches: Sequence[BytesLike] = split(asked.records or b"")
    headers: Sequence[BatchHeader] = [validate(batch) for batch in batches]
    once = transactional = False
    for header in headers:
        if header.is_control:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a client does not write control batches")
        transactional = transactional or header.is_transactional
        once = once or header.producer_id >= 0
    headers, batches, time_ms = partition.admit(headers, batches)
    if partition.log.config.delays or partition.log.config.priority_group:
        batches = await door.broker.delayed.park(partition, headers, batches)
        if door.led(topic, asked.index) is not partition:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was made anew meanwhile")
    again = (topic, asked.index) in door.refusals
    if once and again and not door.refusals.begins_again(topic, asked.index, headers[0].base_sequence):
        await partition.require_known(headers[0])
    if transactional:
        check = _membership(door, partition, headers, request.transactional_id)
        return partition.log, *await partition.append_once(headers, batches, check), time_ms
    if once or partition.known is not None:
        return partition.log, *await partition.append_once(headers, batches), time_ms
    offsets = [partition.append(batch) for batch in batches]
    return partition.log, offsets[0], partition.log.log_end_offset, time_ms


def _membership(
    door: Door, partition: TopicPartition, headers: Sequence[BatchHeader], name: str | None
) -> Callable[[], Awaitable[None]]:
    """Asks whether a batch is a part of the transaction that its producer has under way. Raises KafkaError."""
    (header, *more) = headers
    if more or name is None or header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "one batch of one transactional producer for each partition")
    require_id(door, name)
    place = partition.topic_name, partition.index

    async def check() -> None:
        try:
            await door.broker.coordinator.check_anywhere(
                name, header.producer_id, header.producer_epoch, partition=place
            )
        except ENGINE_ERRORS as error:
            raise check_code_of(error, ErrorCode.NOT_ENOUGH_REPLICAS) from None

    return check


def split(records: BytesLike) -> list[BytesLike]:
    """The batches that stand one after the other, at least one. Raises KafkaError."""
    found: list[BytesLike] = []
    at, end = 0, len(records)
    while at < end:
        size = size_of(records, at) if end - at >= HEADER_BYTES else 0
        if not LENGTH_START < size <= end - at:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{end - at} bytes that are no batch")
        found.append(records if size == end else memoryview(records)[at : at + size])
        at += size
    if not found:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no batch")
    return found
