"""Records as the clients see them, and the batches they travel in. Pure: no sockets, no clock.

1. Records are collected as runs of one key and one set of headers, and made a batch in one go, when it is sent.
2. A record without a time of its own carries that of its batch: when the first record was put in.
3. A fetched batch is checked (CRC) and decoded as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from operator import index
from typing import Literal, Protocol

from msgspec import Struct

from core_log.batch_header import NO_PRODUCER, BatchHeader
from core_log.record_batch import (
    BatchBuilder,
    Compression,
    CorruptBatch,
    RecordColumns,
    decode_columns,
    encode_headers,
    parse_header,
    validate,
)
from protocols.buffers import BytesLike
from protocols.native.errors import MillraceError, ProtocolError

Headers = Sequence[tuple[str, bytes | None]]
Acks = Literal["all", 0, 1, -1]

RECORD_OVERHEAD_BYTES = 24
"""What a record takes beyond key, value and headers, at most: seven varints of usual sizes."""
BATCH_OVERHEAD_BYTES = 61
MESSAGE_ID_HEADERS = ("message-id", "millrace.message-id")
"""The second is of what AMQP and MQTT published."""

REQUEST_ENTRIES_MAX = 1000
"""Batches in one request to store some."""
REQUEST_OVERHEAD_BYTES = 2048
"""What such a request has besides them, at most,"""
REQUEST_ENTRY_BYTES = 64
"""and for each besides its topic's name, of whose characters one takes four bytes at most."""


class ConsumerRecord(Struct, frozen=True, gc=False):
    """A record as it was read. `headers` may be shared between records: do not change the list."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RecordMetadata(Struct, frozen=True, gc=False):
    """Where a record was stored; the offset is -1 when nobody was asked (`acks=0`)."""

    partition: int
    offset: int
    timestamp_ms: int


def compression_of(name: str | None) -> Compression:
    """The code of None, "gzip", "snappy", "lz4" or "zstd". Raises ValueError."""
    names = {None: Compression.NONE} | {kind.name.lower(): kind for kind in Compression if kind}
    if name not in names:
        raise ValueError(f"compression is one of {', '.join(map(str, names))}, not {name!r}")
    return names[name]


def acks_of(acks: Acks) -> Literal[-1, 0, 1]:
    """The number of "all", 1 or 0. Raises ValueError."""
    if isinstance(acks, bool) or acks not in ("all", -1, 0, 1):
        raise ValueError(f"acks is 'all', 1 or 0, not {acks!r}")
    return -1 if acks == "all" else acks


def as_bytes(value: object) -> bytes:
    """A key or value as `bytes`. Raises TypeError for anything but bytes, bytearray and memoryview."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"keys and values are bytes, not {type(value).__name__}")


def as_headers(headers: Headers) -> Headers:
    """The headers of a record as they are to be sent. Raises TypeError and ValueError for what cannot be: they would be
    found out with the batch, and take all of its records with them.
    """
    taken = tuple(headers)  # the caller may change the list before it is sent
    for name, content in taken:
        if type(content) is not bytes and content is not None and not isinstance(content, bytearray | memoryview):
            raise TypeError(f"values of headers are bytes, not {type(content).__name__}")
        if not isinstance(name, str):
            raise TypeError(f"names of headers are str, not {type(name).__name__}")
        if not name.isascii():
            name.encode("utf-8", "surrogateescape")
    return taken


def as_time(timestamp_ms: int) -> int:
    """A record's time in ms. Raises TypeError and ValueError for what cannot be one."""
    if not 0 <= index(timestamp_ms) < 1 << 63:
        raise ValueError(f"a timestamp is in ms since 1970, not {timestamp_ms}")
    return index(timestamp_ms)


def size_of(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    """Bytes a record takes in a batch, at most."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += sum(len(name) * 4 + len(content or b"") + 10 for name, content in headers)
    return size


class Draft(Protocol):
    """What becomes a batch."""

    @property
    def count(self) -> int:
        """How many records."""

    def build(
        self, compression: Compression, producer: tuple[int, int, int] = NO_PRODUCER, attributes: int = 0
    ) -> bytes:
        """The batch, with base offset 0, of a producer's id, epoch and sequence number. Called once."""


class BatchDraft:
    """The records of one batch while it is filled. `size` is an upper bound in bytes, before compression."""

    __slots__ = ("_headers", "_key", "_runs", "_values", "count", "size", "timestamp_ms", "timestamps_ms")

    def __init__(self, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms
        self.timestamps_ms: dict[int, int] = {}
        """Of the records that brought their own, by index."""
        self.count = 0
        self.size = BATCH_OVERHEAD_BYTES
        self._key: bytes | None = None
        self._headers: Headers | None = None
        self._values: list[bytes | None] = []
        self._runs: list[tuple[bytes | None, Headers | None, list[bytes | None]]] = [(None, None, self._values)]

    def add(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, timestamp_ms: int | None, size: int
    ) -> int:
        """Put a record in; its index. `size` is what `size_of` says; of headers and time `as_headers` and `as_time`."""
        number = self.count
        if timestamp_ms is not None:
            self.timestamps_ms[number] = timestamp_ms
            self._start_run(key, headers)
        elif key != self._key or headers != self._headers or self.timestamps_ms:
            self.timestamps_ms.pop(number, None)  # of a record that was interrupted
            self._start_run(key, headers)
        self.count = number + 1
        self.size += size
        self._values.append(value)  # last: a signal may come with it
        return number

    def _start_run(self, key: bytes | None, headers: Headers | None) -> None:
        self._key, self._headers, self._values = key, headers, []
        self._runs.append((key, headers, self._values))

    def timestamp_of(self, index: int) -> int:
        """Time of a record in ms."""
        return self.timestamps_ms.get(index, self.timestamp_ms)

    def build(
        self, compression: Compression, producer: tuple[int, int, int] = NO_PRODUCER, attributes: int = 0
    ) -> bytes:
        """The batch, with base offset 0, of a producer's id, epoch and sequence number. The records are let go: call it
        once.
        """
        builder = BatchBuilder(0, -1, self.timestamp_ms, compression=compression, attributes=attributes)
        first = 0
        for key, headers, values in self._runs:
            if len(values) == 1:
                builder.add(first, key, values[0], headers or (), self.timestamps_ms.get(first))
            elif values:
                builder.add_run(first, key, values, encode_headers(headers or ()))
            first += len(values)
        data = builder.build(producer)
        self._runs, self._values = [], []  # not before: whoever is interrupted up to here builds it again
        return data


class SentBatch(BatchDraft):
    """A draft and what became of it."""

    __slots__ = ("base_offset", "error", "finished")

    def __init__(self, timestamp_ms: int) -> None:
        super().__init__(timestamp_ms)
        self.finished = False
        self.base_offset = -1
        """-1: nobody asked, or it is not known."""
        self.error: MillraceError | None = None

    def finish(self, base_offset: int, error: MillraceError | None) -> None:
        self.finished = True
        self.base_offset = base_offset
        self.error = error

    def metadata(self, partition: int, index: int) -> RecordMetadata:
        """Where a record lies, once it is finished."""
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(partition, offset, self.timestamp_of(index))


def message_id_of(headers: Headers) -> bytes | None:
    """The id that whoever sent a record gave it; None if it has none, or an empty one."""
    found = dict(headers)
    return next((value for name in MESSAGE_ID_HEADERS if (value := found.get(name))), None)


def batch_columns(batch: BytesLike) -> RecordColumns:
    """A fetched batch, checked, as parallel lists; empty lists for a control batch. Raises ProtocolError."""
    header = whole_batch(batch)
    if header.is_control:
        return RecordColumns([], [], [], [], [])
    try:
        return decode_columns(batch)
    except CorruptBatch as error:
        where = f"offsets {header.base_offset} to {header.next_offset - 1}, as its producer made it"
        raise ProtocolError(f"the broker sent a corrupt batch, {where}: {error}") from error


def whole_batch(batch: BytesLike) -> BatchHeader:
    """The header of a fetched batch, which is as it was written. Raises ProtocolError."""
    try:
        return validate(batch, may_be_empty=True)
    except CorruptBatch as error:
        raise ProtocolError(f"the broker sent a corrupt batch: {error}") from error


def batch_records(topic: str, partition: int, batch: BytesLike, from_offset: int) -> list[ConsumerRecord]:
    """The records of a fetched batch from `from_offset` on. Raises ProtocolError."""
    columns = batch_columns(batch)
    records = list(
        map(
            ConsumerRecord,
            repeat(topic),
            repeat(partition),
            columns.offsets,
            columns.timestamps_ms,
            columns.keys,
            columns.values,
            columns.headers,
        )
    )
    start = bisect_left(columns.offsets, from_offset)
    return records[start:] if start else records


def checked_offset(offset: int) -> int:
    """An offset that an application gives, of whatever type of whole numbers (NumPy's), as one that can be sent. Raises
    TypeError for what is no whole number, ValueError for what can be no offset.
    """
    if not 0 <= (number := int(index(offset))) < 1 << 63:
        raise ValueError(f"an offset is a whole number from 0 on, not {offset}")
    return number


def offset_after(batch: BytesLike) -> int:
    """The first offset behind a batch."""
    return parse_header(batch).next_offset


def split_batches(records: memoryview) -> list[memoryview]:
    """Whole record batches, back to back, one by one. Raises ProtocolError when they do not fit."""
    batches = []
    position, end = 0, len(records)
    try:
        while position < end:
            stop = position + parse_header(records, position).size
            if stop > end:
                raise CorruptBatch("a batch is cut short")
            batches.append(records[position:stop])
            position = stop
    except CorruptBatch as error:
        raise ProtocolError(f"the broker sent a corrupt batch: {error}") from error
    return batches
