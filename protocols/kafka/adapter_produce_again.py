"""Produce requests that begin with the same bytes as the one before: what most producers send.

Such requests to one topic differ in their correlation id, the partition and their records alone, and their replies in
the correlation id, the partition, two offsets and a time. They are not read field by field, and their replies are the
first one's with other numbers.

Those of one read that are for the same partition are a *run*: its rights, leader and settings are looked at once, its
batches are appended together, committed together and answered with one piece. Only what nothing can be said against
gets into a run: what is refused, sent again, of a transaction, or for a topic that looks into batches goes by itself.
Whatever else a request holds takes the way of all requests (`adapter_00_produce.py`), which also words refusals.
`python -m benchmarks.kafka_requests` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct, error
from typing import TYPE_CHECKING

from core_log.admission import require_a_producers
from core_log.batch_header import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, size_of, validate
from core_log.errors import LogError
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.producer_states import follows
from protocols.buffers import BytesLike
from protocols.kafka.adapter_00_produce import ALL, NONE, Producing, append, wait_ms_of
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity, Malformed, Write, reply_writer, uvarint, write_message
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_records import PRODUCE
from protocols.kafka.registry import SERVED
from routing.errors import StorageUnavailable
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from protocols.kafka.adapter import KafkaAdapter, Waiting

_INTEGER, _OFFSET = Struct(">i"), Struct(">q")
_CORRELATION_AT, _CLIENT_AT = 4, 8
_SAMPLE_INDEX, _SAMPLE_BASE, _SAMPLE_TIME, _SAMPLE_START = 0x51525354, *(0x6162636465666768 + i for i in range(3))
_NO_TAGS = b"\0\0\0"
"""Behind the records of a flexible version: those of the partition, of the topic and of the request."""
_NOT_PLAIN = CONTROL_BIT | TRANSACTIONAL_BIT


class Run:
    """Requests for one partition that are appended together."""

    __slots__ = ("batches", "headers", "heads", "partition")

    def __init__(self, partition: TopicPartition, head: bytes, header: BatchHeader, batch: BytesLike) -> None:
        self.partition = partition
        self.heads = [head]
        """Correlation ids."""
        self.headers = [header]
        self.batches = [batch]


class Again:
    """What the requests of one connection have in common, as of the last that was read field by field."""

    __slots__ = (
        "_flexible",
        "_head",
        "_index_at",
        "_places",
        "_reply",
        "_request",
        "_rest",
        "_topic",
        "door",
        "version",
    )

    def __init__(self, door: Door, version: int, frame: BytesLike, request: Entity) -> None:
        """Of a request of one partition (`is_fit`)."""
        self.door = door
        self.version = version
        self._request = request
        (topic,) = request.topic_data
        (one,) = topic.partition_data
        self._topic: str = topic.name
        self._flexible = PRODUCE.is_flexible(version)
        size = len(one.records)
        tail = size + len(_NO_TAGS) + _uvarint_bytes(size + 1) if self._flexible else size + _INTEGER.size
        self._index_at = len(frame) - tail - _INTEGER.size
        self._head = bytes(frame[:_CORRELATION_AT])
        self._rest = bytes(frame[_CLIENT_AT : self._index_at])
        self._reply, self._places = _sample(version, self._topic)
        one.records = None  # what is remembered pins no read

    @staticmethod
    def is_fit(request: Entity) -> bool:
        """Whether a request is one that others may follow."""
        if request.acks == NONE or request.transactional_id is not None or len(request.topic_data) != 1:
            return False
        partitions = request.topic_data[0].partition_data
        return len(partitions) == 1 and bool(partitions[0].records)

    async def serve(self, adapter: KafkaAdapter, frames: Sequence[BytesLike], at: int, most: int) -> int:
        """Serve requests from `frames[at]` on that are the last one's like, at most so many; how many. 0: it is not."""
        frame = frames[at]
        records = self._records_of(frame)
        if records is None:
            return 0
        adapter.published = True
        (index,) = _INTEGER.unpack_from(frame, self._index_at)
        run = await self._run(index, records, frames, at, most)
        if run is None:
            await self._produce(frame, index, records, adapter.queued(SERVED[PRODUCE.key], self.version, b""))
            return 1
        heads = run.heads
        waiting = adapter.queued(SERVED[PRODUCE.key], self.version, b"", len(heads))
        log = run.partition.log
        sent = _Sent(self, waiting, index, heads, run.partition.append_run(run.headers, run.batches), -1, log)
        self._wait(sent, log.log_end_offset)
        return len(heads)

    def _records_of(self, frame: BytesLike) -> BytesLike | None:
        """The records of a request that is the last one's like, a single batch; None for any other."""
        at = self._index_at
        if frame[:_CORRELATION_AT] != self._head or frame[_CLIENT_AT:at] != self._rest:
            return None
        try:
            if self._flexible:
                size, at = uvarint(frame, at + _INTEGER.size)
                size, end = size - 1, len(frame) - len(_NO_TAGS)
                if frame[end:] != _NO_TAGS:
                    return None
            else:
                size, at, end = _INTEGER.unpack_from(frame, at + 4)[0], at + 8, len(frame)
        except (error, IndexError, Malformed):
            return None
        if end - at != size or size < HEADER_BYTES:
            return None
        records = frame[at:end]
        return records if size_of(records) == size else None

    async def _run(self, index: int, records: BytesLike, frames: Sequence[BytesLike], at: int, most: int) -> Run | None:
        """The requests from `frames[at]` on, which has these records, that nothing can be said against; None: that is
        none of them.
        """
        partition = self._open_partition(index)
        if partition is None:
            return None
        config, now_ms = partition.log.config, partition.log.wall_clock_ms()
        header = _plain_header(records, config, now_ms)
        if header is None:
            return None
        if header.producer_id >= 0:
            try:
                takes = await partition.takes_next(header)
            except LogError:
                return None
            # It may have come to be led elsewhere while what is known of the producer was read.
            if not takes or self._open_partition(index) is not partition:
                return None
        run = Run(partition, bytes(frames[at][_CORRELATION_AT:_CLIENT_AT]), header, records)
        start, number = self._index_at, _INTEGER.pack(index)
        for frame in islice(frames, at + 1, at + most):
            further, before = self._records_of(frame), header
            if further is None or frame[start : start + _INTEGER.size] != number:
                break
            header = _plain_header(further, config, now_ms)
            if header is None or not follows(header, before):
                break
            run.heads.append(bytes(frame[_CORRELATION_AT:_CLIENT_AT]))
            run.headers.append(header)
            run.batches.append(further)
        return run

    def _open_partition(self, index: int) -> TopicPartition | None:
        """Where requests may go that nothing can be said against; None where something has to be looked at."""
        door = self.door
        if door.broker.blocked is not None or not door.allows("write", self._topic):
            return None
        if door.refusals and (self._topic, index) in door.refusals:
            return None
        topic = door.broker.topics.get(self._topic)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        partition = topic.partitions[index]
        leadership, log = partition.leadership, partition.log
        if leadership is not None and (leadership.refusal() or leadership.shortage()) is not None:
            return None
        config = log.config
        if config.compacts or config.delays or config.priority_group or config.expires:
            return None
        if config.timestamp_type == "LogAppendTime" or config.compression != "producer" or partition.known is not None:
            return None
        return None if log.error is not None or log.closed or log.truncating else partition

    async def _produce(self, frame: BytesLike, index: int, records: BytesLike, waiting: Waiting) -> None:
        """Append one request by itself, and answer when it is safe or refused."""
        head = bytes(frame[_CORRELATION_AT:_CLIENT_AT])
        try:
            log, base_offset, end, time_ms = await append(
                self.door, self._topic, Entity(index=index, records=records), self._request
            )
        except ENGINE_ERRORS as problem:
            waiting.send(self.refusals([head], index, problem))
            return
        self._wait(_Sent(self, waiting, index, [head], [base_offset], time_ms, log), end)

    def _wait(self, sent: _Sent, end: int) -> None:
        door = self.door
        door.broker.commits.when_committed([(sent.log, end)], sent, sync=self._request.acks == ALL)
        if not sent.ended:
            door.deadlines.add(sent, wait_ms_of(door, self._request))

    def replies(
        self, heads: Sequence[bytes], index: int, offsets: Sequence[int], time_ms: int, start: int
    ) -> bytearray:
        """That batches are there."""
        one = bytearray(self._reply)
        index_at, base_at, time_at, start_at = self._places
        _INTEGER.pack_into(one, index_at, index)
        _OFFSET.pack_into(one, time_at, time_ms)
        if start_at >= 0:
            _OFFSET.pack_into(one, start_at, start)
        size, found, pack_into = len(one), one * len(heads), _OFFSET.pack_into
        at = 0
        for head, base_offset in zip(heads, offsets, strict=True):
            found[at + _CORRELATION_AT : at + _CLIENT_AT] = head
            pack_into(found, at + base_at, base_offset)
            at += size
        return found

    def note_refused(self, index: int, code: ErrorCode) -> None:
        """What was appended is refused: see `Refusals`."""
        self.door.refusals.note(self._topic, index, code)

    def refusals(self, heads: Sequence[bytes], index: int, problem: Exception) -> bytes:
        """That they are not."""
        topic = Entity(name=self._topic, partition_data=[Entity(index=index)])
        request = Entity(acks=self._request.acks, topic_data=[topic])
        replies: list[Entity | None] = []
        Producing(self.door, Call(self.version, None, replies.append), request).refuse(0, problem)
        (reply,) = replies
        assert reply is not None
        return b"".join(_written(self.version, head, reply) for head in heads)


class _Sent:
    """Requests until their batches are committed, or are not."""

    __slots__ = ("_again", "_heads", "_index", "_offsets", "_time_ms", "_waiting", "ended", "log")

    def __init__(
        self,
        again: Again,
        waiting: Waiting,
        index: int,
        heads: Sequence[bytes],
        offsets: Sequence[int],
        time_ms: int,
        log: PartitionLog,
    ) -> None:
        self._again = again
        self._waiting = waiting
        self._index = index
        self._heads = heads
        self._offsets = offsets
        self._time_ms = time_ms
        self.log = log
        self.ended = False

    def __call__(self, problem: StorageUnavailable | None) -> None:
        if self.ended:
            return
        if problem is not None:
            self._refuse(problem)
            return
        self.ended = True
        again = self._again
        again.door.deadlines.remove(self)
        start = self.log.log_start_offset
        self._waiting.send(again.replies(self._heads, self._index, self._offsets, self._time_ms, start))

    def timed_out(self) -> None:
        """See `protocols.deadlines`."""
        if not self.ended:
            self._refuse(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def _refuse(self, problem: Exception) -> None:
        self.ended = True
        self._again.note_refused(self._index, code_of(problem))
        self._again.door.deadlines.remove(self)
        self._waiting.send(self._again.refusals(self._heads, self._index, problem))


def _plain_header(records: BytesLike, config: LogConfig, now_ms: int) -> BatchHeader | None:
    """Of a batch that may be appended as it is; None: somebody has to say why not, or how."""
    try:
        header = validate(records)
        require_a_producers(header)
    except LogError:
        return None
    if header.attributes & _NOT_PLAIN or len(records) > config.message_bytes_max:
        return None
    if header.max_timestamp_ms > now_ms + config.timestamp_after_max_ms:
        return None
    if 0 <= header.base_timestamp_ms < now_ms - config.timestamp_before_max_ms:
        return None
    return header


def _uvarint_bytes(value: int) -> int:
    return max(value.bit_length() + 6, 7) // 7


def _written(version: int, head: bytes, reply: Entity) -> bytes:
    """A whole reply with its length."""
    writer: Write = reply_writer(PRODUCE, version)
    body = b"".join(write_message(writer, head + (b"\0" if PRODUCE.is_flexible(version) else b""), reply))
    return _INTEGER.pack(len(body)) + body


@lru_cache(maxsize=256)
def _sample(version: int, topic: str) -> tuple[bytes, tuple[int, int, int, int]]:
    """A whole reply with its length, and where in it the index, the base offset, the time and the log's start stand."""
    one = Entity(
        index=_SAMPLE_INDEX,
        error_code=ErrorCode.NONE,
        base_offset=_SAMPLE_BASE,
        log_append_time_ms=_SAMPLE_TIME,
        log_start_offset=_SAMPLE_START,
    )
    reply = _written(version, bytes(_INTEGER.size), Entity(responses=[Entity(name=topic, partition_responses=[one])]))
    behind_name = reply.index(topic.encode()) + len(topic.encode())
    index_at, base_at, time_at, start_at = (
        reply.find(sample, behind_name)
        for sample in (_INTEGER.pack(_SAMPLE_INDEX), *map(_OFFSET.pack, (_SAMPLE_BASE, _SAMPLE_TIME, _SAMPLE_START)))
    )
    return reply, (index_at, base_at, time_at, start_at)
