"""What a topic's settings say of a batch that a client sends, before it is appended.

1. On a topic that is compacted each record needs a key. Batches are looked into for that, and for what 3 says.
2. A producer's times may be so far from the broker's. Records have the times of the batch's first one and later, so its
   first and its largest are held against the limits.
3. Where records may have a time to live it has to be a number (`expiry.py`).
4. With `timestamp_type` "LogAppendTime" the largest time of the batch is the broker's, and says by a bit that it is the
   time of all its records. Both lie under the CRC, which is made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_log.batch_header import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, encode_batch
from core_log.compaction.records import payload, read_keys
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import InvalidRecord, InvalidTimestamp
from core_log.expiry import require_deadlines
from core_log.files import BytesLike
from core_log.log_config import LogConfig


def admit(
    config: LogConfig, headers: Sequence[BatchHeader], batches: Sequence[BytesLike], now_ms: int
) -> tuple[Sequence[BytesLike], int]:
    """Validated batches as they are to be appended, and the time that they have got; -1: their own.

    Raises InvalidRecord, InvalidTimestamp, CorruptBatch.
    """
    if config.compacts:
        for header, batch in zip(headers, batches, strict=True):
            _require_keys(header, bytes(batch))
    if config.expires:
        for batch in batches:
            require_deadlines(batch)
    if config.timestamp_type == "LogAppendTime":
        return [_stamped(header, batch, now_ms) for header, batch in zip(headers, batches, strict=True)], now_ms
    latest_ms, earliest_ms = now_ms + config.timestamp_after_max_ms, now_ms - config.timestamp_before_max_ms
    for header in headers:
        if header.max_timestamp_ms > latest_ms or 0 <= header.base_timestamp_ms < earliest_ms:
            text = f"times of {header.base_timestamp_ms} to {header.max_timestamp_ms} ms, at {now_ms} ms here; "
            limits = f"{config.timestamp_before_max_ms} ms before that and {config.timestamp_after_max_ms} ms after"
            raise InvalidTimestamp(f"{text}the topic takes {limits}")
    return batches, -1


def _require_keys(header: BatchHeader, batch: bytes) -> None:
    keys = read_keys(*payload(batch, header, DECOMPRESSED_BYTES_MAX), header).keys
    if None in keys:
        at = keys.index(None)
        raise InvalidRecord(f"record {at} has no key, and the topic is compacted: of each key the last record is kept")


def _stamped(header: BatchHeader, batch: BytesLike, now_ms: int) -> bytes:
    stamped = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp_ms=now_ms)
    return encode_batch(stamped, memoryview(batch)[HEADER_BYTES:])
