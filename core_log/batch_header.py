"""The 61 bytes before the records of a batch, format v2.

    0   base_offset         i64    patched by the log that appends; outside the CRC
    8   length              i32    bytes after this field
    12  leader_epoch        i32    patched by the log that appends; outside the CRC
    16  magic               i8     2
    17  crc                 u32    CRC-32C of everything from `attributes` on
    21  attributes          i16    bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control
    23  last_offset_delta   i32    the next batch begins at base_offset + last_offset_delta + 1 or above
    27  base_timestamp_ms   i64    record timestamps are relative to it
    35  max_timestamp_ms    i64
    43  producer_id         i64    -1
    51  producer_epoch      i16    -1
    53  base_sequence       i32    -1
    57  record_count        i32

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from core_log.errors import CorruptBatch
from core_log.files import BytesLike

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
CRC_START = 21
"""The CRC covers everything from here."""
LENGTH_START = 12
"""`length` counts from here."""
_PRODUCER_AT = 43
MAGIC = 2
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
NO_PRODUCER = (-1, -1, -1)
"""Id, epoch and first sequence number of a batch that is not an idempotent producer's."""
RECORD_BYTES_MIN = 7
"""Six varints of one byte and the attributes: the least a record takes, so the most a count can claim."""


class BatchHeader(NamedTuple):
    """The fields of the module's drawing."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_START

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """Does the batch hold control records?"""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Does it belong to a transaction, or end one?"""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def compression(self) -> int:
        """Code of the compression of the records; 0 is none."""
        return self.attributes & COMPRESSION_MASK


def size_of(data: BytesLike, position: int = 0) -> int:
    """Bytes of the whole batch at `position`, as its header says; nothing is checked."""
    return int.from_bytes(data[position + 8 : position + LENGTH_START], "big", signed=True) + LENGTH_START


def has_producer(batch: BytesLike) -> bool:
    """Whether a batch, which nobody has looked at but is long enough, says that it is an idempotent producer's."""
    return batch[_PRODUCER_AT] < 0x80  # ids are none or not negative


def parse_header(data: BytesLike, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; `data` need not hold the whole batch.

    Raises CorruptBatch when there are fewer than 61 bytes or a field can never be right.
    """
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(data) - position} bytes cannot hold a batch header")
    header = BatchHeader._make(HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} instead of {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_START:
        raise CorruptBatch(f"batch length {header.length}")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatch("negative offset or record count")
    return header


def with_producer(batch: BytesLike, producer: tuple[int, int, int]) -> bytes:
    """A whole batch as that of another producer's id, epoch and first sequence number."""
    fields = HEADER.unpack_from(batch)
    return encode_batch((*fields[:9], *producer, fields[12]), memoryview(batch)[HEADER_BYTES:])


def encode_batch(fields: Sequence[int], records: BytesLike) -> bytes:
    """A whole batch of the fields of a header and the bytes of the records; length and CRC are worked out."""
    head = HEADER.pack(fields[0], HEADER_BYTES - LENGTH_START + len(records), *fields[2:])
    crc = crc32c(records, crc32c(head[CRC_START:]))
    return b"".join((head[: CRC_START - 4], crc.to_bytes(4, "big"), head[CRC_START:], records))


def validate(batch: BytesLike, *, may_be_empty: bool = False) -> BatchHeader:
    """The header of a whole batch, checked: length, magic, record count against the size, CRC. Only one that comes from
    a log may be empty, which compaction leaves of some.

    Raises CorruptBatch.
    """
    if len(batch) >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(batch))
        base_offset, length, _, magic, crc, attributes, last_delta, _, _, _, _, _, count = header
        if (
            magic == MAGIC
            and length + LENGTH_START == len(batch)
            and 0 < count <= last_delta + 1
            and base_offset >= 0
            and (attributes & COMPRESSION_MASK or count * RECORD_BYTES_MIN <= length + LENGTH_START - HEADER_BYTES)
            and crc32c(memoryview(batch)[CRC_START:]) == crc
        ):
            return header
    return _validate(batch, may_be_empty=may_be_empty)


def _validate(batch: BytesLike, *, may_be_empty: bool) -> BatchHeader:
    """`validate`, one thing after the other, to say what is wrong."""
    header = parse_header(batch)
    if header.size != len(batch):
        raise CorruptBatch(f"batch length {header.length} in {len(batch)} bytes")
    count = header.record_count
    if not (count > 0 or may_be_empty) or count > header.last_offset_delta + 1:
        raise CorruptBatch(f"{count} records in {header.last_offset_delta + 1} offsets")
    if not header.compression and count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        raise CorruptBatch(f"{count} records in {header.size - HEADER_BYTES} bytes")
    crc = crc32c(memoryview(batch)[CRC_START:])
    if crc != header.crc:
        raise CorruptBatch(f"CRC {crc:#010x} instead of {header.crc:#010x}")
    return header
