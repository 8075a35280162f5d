"""Produce requests that begin with the same bytes as the one before: what most producers send.

Such requests to one topic differ in their correlation id, the partition and their records alone, and their replies in
the correlation id, the partition, two offsets and a time. They are not read field by field, and their replies are the
first one's with other numbers: 23 us a request instead of 40, five in a read (`python -m benchmarks.kafka_requests`).
Whatever else a request holds takes the way of all requests (`adapter_00_produce.py`), which also words refusals.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error
from typing import TYPE_CHECKING

from core_log.batch_header import HEADER_BYTES, size_of
from core_log.partition_log import PartitionLog
from protocols.buffers import BytesLike
from protocols.kafka.adapter_00_produce import ALL, NONE, Producing, append, wait_ms_of
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity, Malformed, Write, reply_writer, uvarint, write_message
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import PRODUCE
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from protocols.kafka.adapter import Waiting

_INTEGER, _OFFSET = Struct(">i"), Struct(">q")
_CORRELATION_AT, _CLIENT_AT = 4, 8
_SAMPLE_INDEX, _SAMPLE_BASE, _SAMPLE_TIME, _SAMPLE_START = 0x51525354, *(0x6162636465666768 + i for i in range(3))
_NO_TAGS = b"\0\0\0"
"""Behind the records of a flexible version: those of the partition, of the topic and of the request."""


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

    def records_of(self, frame: BytesLike) -> BytesLike | None:
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

    async def produce(self, frame: BytesLike, records: BytesLike, waiting: Waiting) -> None:
        """Append, and answer when it is safe or refused."""
        (index,) = _INTEGER.unpack_from(frame, self._index_at)
        try:
            log, base_offset, end, time_ms = await append(
                self.door, self._topic, Entity(index=index, records=records), self._request
            )
        except ENGINE_ERRORS as problem:
            self.refuse(waiting, index, code_of(problem), str(problem) or None)
            return
        sent = _Sent(self, waiting, index, base_offset, time_ms, log)
        self.door.broker.commits.when_committed([(log, end)], sent, sync=self._request.acks == ALL)
        if not sent.ended:
            self.door.deadlines.add(sent, wait_ms_of(self.door, self._request))

    def reply(self, head: bytes, index: int, base_offset: int, time_ms: int, log: PartitionLog) -> bytearray:
        """That a batch is there."""
        found = bytearray(self._reply)
        found[_CORRELATION_AT:_CLIENT_AT] = head
        index_at, base_at, time_at, start_at = self._places
        _INTEGER.pack_into(found, index_at, index)
        _OFFSET.pack_into(found, base_at, base_offset)
        _OFFSET.pack_into(found, time_at, time_ms)
        if start_at >= 0:
            _OFFSET.pack_into(found, start_at, log.log_start_offset)
        return found

    def refuse(self, waiting: Waiting, index: int, code: ErrorCode, why: str | None) -> None:
        """That it is not."""
        topic = Entity(name=self._topic, partition_data=[Entity(index=index)])
        request = Entity(acks=self._request.acks, topic_data=[topic])
        Producing(self.door, Call(self.version, None, waiting.answer), request).settle(0, code, why=why)


class _Sent:
    """A request until its batch is committed, or is not."""

    __slots__ = ("_again", "_base_offset", "_index", "_log", "_time_ms", "_waiting", "ended")

    def __init__(
        self, again: Again, waiting: Waiting, index: int, base_offset: int, time_ms: int, log: PartitionLog
    ) -> None:
        self._again = again
        self._waiting = waiting
        self._index = index
        self._base_offset = base_offset
        self._time_ms = time_ms
        self._log = log
        self.ended = False

    def __call__(self, problem: StorageUnavailable | None) -> None:
        if self.ended:
            return
        self.ended = True
        again = self._again
        again.door.deadlines.remove(self)
        if problem is None:
            reply = again.reply(self._waiting.head, self._index, self._base_offset, self._time_ms, self._log)
            self._waiting.send(reply)
        else:
            again.refuse(self._waiting, self._index, code_of(problem), str(problem))

    def timed_out(self) -> None:
        """See `protocols.deadlines`."""
        if not self.ended:
            self.ended = True
            self._again.refuse(self._waiting, self._index, ErrorCode.REQUEST_TIMED_OUT, None)


def _uvarint_bytes(value: int) -> int:
    return max(value.bit_length() + 6, 7) // 7


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
    head = bytes(_INTEGER.size) + (b"\0" if PRODUCE.is_flexible(version) else b"")
    writer: Write = reply_writer(PRODUCE, version)
    body = b"".join(write_message(writer, head, Entity(responses=[Entity(name=topic, partition_responses=[one])])))
    reply = _INTEGER.pack(len(body)) + body
    behind_name = reply.index(topic.encode()) + len(topic.encode())
    index_at, base_at, time_at, start_at = (
        reply.find(sample, behind_name)
        for sample in (_INTEGER.pack(_SAMPLE_INDEX), *map(_OFFSET.pack, (_SAMPLE_BASE, _SAMPLE_TIME, _SAMPLE_START)))
    )
    return reply, (index_at, base_at, time_at, start_at)
