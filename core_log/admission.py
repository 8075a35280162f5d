"""What a topic's settings say of a batch that a client sends, before it is appended.

1. On a topic that is compacted each record needs a key. Batches are looked into for that, and for what 3 says.
2. A producer's times may be so far from the broker's. Records have the times of the batch's first one and later, so its
   first and its largest are held against the limits.
3. Where records may have a time to live it has to be a number (`expiry.py`).
4. With `timestamp_type` "LogAppendTime" the largest time of the batch is the broker's, and says by a bit that it is the
   time of all its records. Both lie under the CRC, which is made anew.
5. With a `compression` but "producer" a batch that comes with another one is compressed anew, as a whole: its records
   are not looked at. What is large stays as it came.
6. A compression that nobody knows is refused: whoever reads the batch could go no further. So are more or fewer offsets
   than there are records, and times that claim to be the broker's, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core_log.batch_header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    encode_batch,
    parse_header,
)
from core_log.compaction.records import payload, read_keys
from core_log.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from core_log.errors import InvalidRecord, InvalidTimestamp
from core_log.expiry import require_deadlines
from core_log.files import BytesLike
from core_log.log_config import LogConfig

_LAST_COMPRESSION = int(max(Compression))
_COMPRESSED_ANEW_BYTES_MAX = 4 << 20
"""What is larger stays as it came: gzip takes 20 ms for a mebibyte of what does not compress, and others wait."""


class Admitted(NamedTuple):
    """Batches as they are to be appended, and the time that they have got; -1: their own."""

    headers: Sequence[BatchHeader]
    batches: Sequence[BytesLike]
    time_ms: int


def admit(config: LogConfig, headers: Sequence[BatchHeader], batches: Sequence[BytesLike], now_ms: int) -> Admitted:
    """What is to be appended of validated batches. Raises InvalidRecord, InvalidTimestamp, CorruptBatch."""
    for header in headers:
        require_a_producers(header)
    if config.compacts:
        for header, batch in zip(headers, batches, strict=True):
            _require_keys(header, bytes(batch))
    if config.expires:
        for batch in batches:
            require_deadlines(batch)
    stamps = config.timestamp_type == "LogAppendTime"
    if not stamps:
        _require_times(config, headers, now_ms)
    codec = config.codec
    if codec is not None and any(header.compression != codec for header in headers):
        batches = [_compressed(header, batch, codec) for header, batch in zip(headers, batches, strict=True)]
        headers = [parse_header(batch) for batch in batches]
    if stamps:
        batches = [_stamped(header, batch, now_ms) for header, batch in zip(headers, batches, strict=True)]
    return Admitted(headers, batches, now_ms if stamps else -1)


def require_a_producers(header: BatchHeader) -> None:
    """Rule 6. Raises InvalidRecord, InvalidTimestamp."""
    if header.compression > _LAST_COMPRESSION:
        raise InvalidRecord(f"unknown compression {header.compression}")
    if header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(f"{header.record_count} records and {header.last_offset_delta + 1} offsets")
    if header.attributes & TIMESTAMP_TYPE_BIT:
        raise InvalidTimestamp("times are a producer's; the topic says whether they become the broker's")


def _require_times(config: LogConfig, headers: Sequence[BatchHeader], now_ms: int) -> None:
    latest_ms, earliest_ms = now_ms + config.timestamp_after_max_ms, now_ms - config.timestamp_before_max_ms
    for header in headers:
        if header.max_timestamp_ms > latest_ms or 0 <= header.base_timestamp_ms < earliest_ms:
            text = f"times of {header.base_timestamp_ms} to {header.max_timestamp_ms} ms, at {now_ms} ms here; "
            limits = f"{config.timestamp_before_max_ms} ms before that and {config.timestamp_after_max_ms} ms after"
            raise InvalidTimestamp(f"{text}the topic takes {limits}")


def _compressed(header: BatchHeader, batch: BytesLike, codec: Compression) -> BytesLike:
    if header.compression == codec or len(batch) > _COMPRESSED_ANEW_BYTES_MAX:
        return batch
    records = decompress(header.compression, bytes(batch[HEADER_BYTES:]), DECOMPRESSED_BYTES_MAX)
    if len(records) > _COMPRESSED_ANEW_BYTES_MAX:
        return batch
    changed = header._replace(attributes=header.attributes & ~COMPRESSION_MASK | codec)
    return encode_batch(changed, compress(codec, records))


def _require_keys(header: BatchHeader, batch: bytes) -> None:
    keys = read_keys(*payload(batch, header, DECOMPRESSED_BYTES_MAX), header).keys
    if None in keys:
        bare = [at for at, key in enumerate(keys) if key is None]
        which = f"record {bare[0]} has" if len(bare) == 1 else f"{len(bare)} records, from record {bare[0]} on, have"
        raise InvalidRecord(f"{which} no key, and the topic is compacted: of each key the last record is kept", bare)


def _stamped(header: BatchHeader, batch: BytesLike, now_ms: int) -> bytes:
    stamped = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp_ms=now_ms)
    return encode_batch(stamped, memoryview(batch)[HEADER_BYTES:])
