"""The control batch that ends a transaction in one log: COMMIT or ABORT, one record of one producer.

    key    version i16, type i16    0 abort, 1 commit
    value  version i16, coordinator_epoch i32

https://kafka.apache.org/documentation/#controlbatch, KIP-98
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from core_log.batch_header import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_START,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    validate,
)
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.record_batch import NO_HEADERS, iterate_records
from core_log.varint import varint

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1
_VERSION = 0
_UNKNOWN = -1
_NOTHING = _KEY.pack(_VERSION, _UNKNOWN)
"""The key of a record that stands for others: a type that no reader knows, so it is passed over."""


def marker(
    producer_id: int, producer_epoch: int, timestamp_ms: int, coordinator_epoch: int, *, committed: bool
) -> bytes:
    """The batch, with base offset 0."""
    key = _KEY.pack(_VERSION, _COMMIT if committed else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return _control_batch(0, -1, timestamp_ms, producer_id, producer_epoch, 0, key, value)


def is_commit(batch: BytesLike) -> bool | None:
    """What a control batch says of its transaction; None: something else. Raises CorruptBatch."""
    for record in iterate_records(batch):
        if record.key is None or len(record.key) < _KEY.size:
            raise CorruptBatch("a control record without a type")
        version, kind = _KEY.unpack_from(record.key)
        return kind == _COMMIT if version >= _VERSION and kind in (_ABORT, _COMMIT) else None
    return None


def with_bit_put_back(data: BytesLike, offset: int) -> bytes | None:
    """The marker at an offset of which one bit has flipped, as it was written; None: this was none.

    It is so short that each bit can be tried: the CRC is right with one of them, if any.
    """
    for bit in range(len(data) * 8 if len(data) == MARKER_BYTES else 0):
        tried = bytearray(data)
        tried[bit >> 3] ^= 1 << (bit & 7)
        try:
            header = validate(tried)
            if header.base_offset == offset and header.is_control and is_commit(tried) is not None:
                return bytes(tried)
        except CorruptBatch:
            pass
    return None


def coordinator_epoch_of(batch: BytesLike) -> int | None:
    """In which its coordinator led, as a marker says; None: it is none. Raises CorruptBatch."""
    if is_commit(batch) is None:
        return None
    value = next(iter(iterate_records(batch))).value
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch("a marker of no coordinator")
    epoch: int = _VALUE.unpack_from(value)[1]
    return epoch


def stand_in(header: BatchHeader) -> bytes:
    """A control batch that takes the place of a batch that a reader is not to see: the same offsets, nothing in it."""
    return _control_batch(
        header.base_offset,
        header.leader_epoch,
        header.base_timestamp_ms,
        -1,
        -1,
        header.last_offset_delta,
        _NOTHING,
        b"",
        attributes=CONTROL_BIT,
    )


def _control_batch(
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    last_offset_delta: int,
    key: bytes,
    value: bytes,
    *,
    attributes: int = CONTROL_BIT | TRANSACTIONAL_BIT,
) -> bytes:
    fields = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + NO_HEADERS
    record = varint(len(fields)) + fields
    length = HEADER_BYTES - LENGTH_START + len(record)
    stamped = (attributes, last_offset_delta, timestamp_ms, timestamp_ms, producer_id, producer_epoch, -1, 1)
    unchecked = HEADER.pack(base_offset, length, leader_epoch, MAGIC, 0, *stamped) + record
    crc = crc32c(memoryview(unchecked)[CRC_START:])
    return HEADER.pack(base_offset, length, leader_epoch, MAGIC, crc, *stamped) + record


MARKER_BYTES = len(marker(0, 0, 0, 0, committed=True))
"""Of every one."""
