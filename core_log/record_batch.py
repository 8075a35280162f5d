"""Record batches, format v2: building them, and the one place to import their codec from.

A record after the header of its batch (`batch_header.py` draws that):

    length              varint    bytes after this field
    attributes          i8        0
    timestamp_delta     varint    to base_timestamp_ms
    offset_delta        varint    to base_offset
    key length, key     varint    length -1: no key
    value length, value varint    length -1: no value
    header count        varint    } a record's *header block*, the same bytes
    each: name length, name, value length (-1: none), value    } for all records of a run

1. The unit of building is a run: records of one key and one header block. Everything but offset delta and value is then
   one or two ready pieces of bytes, shared by all records of a size; the pieces are interleaved by slice assignment
   and joined once.
2. Offsets rise; gaps are legal. A batch is immutable `bytes` once built.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add

from crc32c import crc32c

from core_log.batch_header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_START,
    MAGIC,
    NO_PRODUCER,
)
from core_log.batch_header import BatchHeader as BatchHeader
from core_log.batch_header import parse_header as parse_header
from core_log.batch_header import validate as validate
from core_log.compression import DECOMPRESSED_BYTES_MAX, compress
from core_log.compression import Compression as Compression
from core_log.errors import CorruptBatch as CorruptBatch
from core_log.header_blocks import decode_header_block as decode_header_block
from core_log.record_decoder import Record as Record
from core_log.record_decoder import RecordColumns as RecordColumns
from core_log.record_decoder import RecordRun as RecordRun
from core_log.record_decoder import decode_columns as decode_columns
from core_log.record_decoder import decode_runs as decode_runs
from core_log.record_decoder import first_value as first_value
from core_log.record_decoder import iterate_records as iterate_records
from core_log.varint import ONE_BYTE_BELOW, TWO_BYTES_BELOW, VARINTS, encode_varint, varint

_NONE = varint(-1)
NO_HEADERS = varint(0)
"""The header block of a record without headers."""


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header block of a record: count, then names and values. Lone surrogates in names become their bytes again."""
    return varint(len(headers)) + encode_entries(headers)


def encode_entries(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """A header block without its count, to be joined with others."""
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (varint(len(encoded)), encoded)
        parts += (_NONE,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def _varints(values: Sequence[int]) -> Iterable[bytes]:
    """The varints of numbers that are not negative, in the same order."""
    return map(VARINTS.__getitem__ if max(values) < TWO_BYTES_BELOW else varint, values)


class BatchBuilder:
    """Collects records and builds one batch. Offsets passed in must rise from `base_offset` on.

    `size_estimate` is the exact size in bytes of the batch when it is not compressed, `count` the number of records.
    """

    __slots__ = (
        "_attributes", "_base_offset", "_compression", "_last_delta", "_leader_epoch", "_max_timestamp_ms", "_parts",
        "_timestamp_ms", "count", "size_estimate",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        leader_epoch: int,
        timestamp_ms: int,
        *,
        control: bool = False,
        compression: Compression = Compression.NONE,
        attributes: int = 0,
    ) -> None:
        """`attributes` are bits of the header that the format does not use."""
        self._base_offset = base_offset
        self._leader_epoch = leader_epoch
        self._timestamp_ms = timestamp_ms
        self._max_timestamp_ms = -1
        self._compression = compression
        self._attributes = attributes | compression | (CONTROL_BIT if control else 0)
        self._parts: list[bytes] = []
        self._last_delta = -1
        self.count = 0
        self.size_estimate = HEADER_BYTES

    def _take(self, first_offset: int, count: int, timestamp_ms: int) -> int:
        """Book `count` offsets from `first_offset`; returns the first delta."""
        delta = first_offset - self._base_offset
        if delta <= self._last_delta:
            raise ValueError(f"offset {first_offset} after {self._base_offset + self._last_delta}")
        self._last_delta = delta + count - 1
        self.count += count
        if timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
        return delta

    def add_run(
        self, first_offset: int, key: bytes | None, values: Sequence[bytes | None], header_block: bytes = NO_HEADERS
    ) -> None:
        """Add records of consecutive offsets, one key and one header block (`encode_headers`), at the batch's time."""
        count = len(values)
        if not count:
            return
        delta = self._take(first_offset, count, self._timestamp_ms)
        key_piece = _NONE if key is None else varint(len(key)) + key
        try:
            sizes = list(map(len, values))  # type: ignore[arg-type]
        except TypeError:  # a tombstone among them
            self._add_mixed(delta, key_piece, values, [-1 if v is None else len(v) for v in values], header_block)
            return
        size = sizes[0]
        if sizes.count(size) == count and delta + count <= TWO_BYTES_BELOW:
            split = min(max(ONE_BYTE_BELOW - delta, 0), count)
            if split:
                self._add_uniform(delta, key_piece, values[:split] if split < count else values, size, header_block)
            if split < count:
                self._add_uniform(delta + split, key_piece, values[split:] if split else values, size, header_block)
        else:
            self._add_mixed(delta, key_piece, values, sizes, header_block)

    def _add_uniform(
        self, delta: int, key_piece: bytes, values: Sequence[bytes | None], size: int, header_block: bytes
    ) -> None:
        """Values of one size at offset deltas whose varints have one size: four pieces a record, two of them shared."""
        count = len(values)
        middle = key_piece + varint(size)
        length = 2 + len(VARINTS[delta]) + len(middle) + size + len(header_block)
        start = varint(length) + b"\0\0"
        between = header_block + start
        pieces: list[bytes] = [between] * (4 * count)
        pieces[0::4] = VARINTS[delta : delta + count]
        pieces[1::4] = [middle] * count
        pieces[2::4] = values  # type: ignore[assignment]
        pieces[-1] = header_block
        parts = self._parts
        parts.append(start)
        parts += pieces
        self.size_estimate += count * (length + len(start) - 2)

    def _add_mixed(
        self, delta: int, key_piece: bytes, values: Sequence[bytes | None], sizes: list[int], header_block: bytes
    ) -> None:
        """Values of any size. The pieces around a value depend on its size and its delta's, and are remembered."""
        memo: dict[int, tuple[bytes, bytes]] = {}
        delta_bytes = 0
        parts = self._parts
        total = 0
        for value, size in zip(values, sizes):
            delta_piece = VARINTS[delta] if delta < TWO_BYTES_BELOW else encode_varint(delta)
            delta += 1
            if len(delta_piece) != delta_bytes:
                delta_bytes = len(delta_piece)
                memo.clear()
            around = memo.get(size)
            if around is None:
                middle = key_piece + varint(size)
                length = 2 + delta_bytes + len(middle) + max(size, 0) + len(header_block)
                around = memo[size] = varint(length) + b"\0\0", middle
            start, middle = around
            total += len(start) + delta_bytes + len(middle) + size
            parts += (start, delta_piece, middle, value or b"", header_block)
        # a missing value counted -1 byte above
        self.size_estimate += total + len(values) * len(header_block) + sizes.count(-1)

    def add_varied(
        self,
        first_offset: int,
        keys: bytes | Sequence[bytes],
        values: Sequence[bytes],
        header_blocks: bytes | Sequence[bytes],
    ) -> None:
        """Add records of consecutive offsets at the batch's time, with a key or a header block for each or one for
        all.
        """
        count = len(values)
        if not count:
            return
        delta = self._take(first_offset, count, self._timestamp_ms)
        key_pieces: Iterable[bytes]
        if isinstance(keys, bytes):
            key_pieces = repeat(varint(len(keys)) + keys)
        else:
            key_pieces = map(add, _varints(list(map(len, keys))), keys)
        blocks = repeat(header_blocks) if isinstance(header_blocks, bytes) else header_blocks
        deltas, sizes = _varints(range(delta, delta + count)), _varints(list(map(len, values)))
        records = list(map(b"".join, zip(repeat(b"\0\0"), deltas, key_pieces, sizes, values, blocks)))
        record_sizes = list(map(len, records))
        lengths = list(_varints(record_sizes))
        pieces = [b""] * (2 * count)
        pieces[0::2] = lengths
        pieces[1::2] = records
        self._parts += pieces
        self.size_estimate += sum(record_sizes) + sum(map(len, lengths))

    def add(
        self,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Add one record, at its own time if one is given."""
        time_ms = self._timestamp_ms if timestamp_ms is None else timestamp_ms
        delta = self._take(offset, 1, time_ms)
        body = b"".join((
            b"\0",
            varint(time_ms - self._timestamp_ms),
            varint(delta),
            _NONE if key is None else varint(len(key)) + key,
            _NONE if value is None else varint(len(value)) + value,
            encode_headers(headers) if headers else NO_HEADERS,
        ))  # fmt: skip
        length = varint(len(body))
        self._parts += (length, body)
        self.size_estimate += len(length) + len(body)

    def add_first(self, value: bytes) -> None:
        """The first record, at the base offset and the batch's time, without key and headers."""
        self._take(self._base_offset, 1, self._timestamp_ms)
        size = varint(len(value))
        length = varint(len(value) + len(size) + 5)
        self._parts += (length, b"\0\0\0\1", size, value, NO_HEADERS)
        self.size_estimate += len(length) + 4 + len(size) + len(value) + 1

    def build(self, producer: tuple[int, int, int] = NO_PRODUCER) -> bytes:
        """The batch, of a producer's id, epoch and first sequence number. The builder must hold a record, and is not
        used afterwards.
        """
        if not self.count:
            raise ValueError("a batch needs a record")
        payload, attributes = b"".join(self._parts), self._attributes
        if self._compression:
            if len(payload) <= DECOMPRESSED_BYTES_MAX:
                payload = compress(self._compression, payload)
            else:  # nobody would decompress that
                attributes &= ~COMPRESSION_MASK
        size = HEADER_BYTES - LENGTH_START + len(payload)
        fields = (
            attributes, self._last_delta, self._timestamp_ms, self._max_timestamp_ms, *producer, self.count,
        )  # fmt: skip
        head = HEADER.pack(self._base_offset, size, self._leader_epoch, MAGIC, 0, *fields)
        crc = crc32c(payload, crc32c(head[CRC_START:]))
        return b"".join((head[: CRC_START - 4], crc.to_bytes(4, "big"), head[CRC_START:], payload))
