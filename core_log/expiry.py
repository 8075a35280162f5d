"""Records with a time to live, in logs that allow it (`LogConfig.expires`): when it is up readers get nothing of them.

1. A producer says so by a header: `x-ttl`, ms from the time of the record, or `expires-at`, ms since 1970, as digits.
   What other doors call a message's expiration stands in its record as `millrace.expiration-ms`, which is like `x-ttl`.
2. The log keeps such a record where it is, until retention or compaction takes it. Who reads gets its batch without it,
   as compaction would leave it: offsets have a gap, and nobody stands still before a batch of which nothing is left.
3. Only in such logs is a batch looked into, if it is compressed or has the name of such a header.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_log.batch_header import parse_header
from core_log.compaction.rewrite import left_of
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import CorruptBatch, InvalidRecord
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.record_decoder import decode_columns

TTL, EXPIRES_AT, EXPIRATION = "x-ttl", "expires-at", "millrace.expiration-ms"
_HEADERS = (TTL, EXPIRES_AT, EXPIRATION)
_NAMES = tuple(name.encode() for name in _HEADERS)
_NEVER = 1 << 63
_DIGITS_MAX = 15

Headers = Sequence[tuple[str, bytes | None]]


def unexpired(log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
    """These batches of a log without the records whose time is up, which are counted."""
    if not log.config.expires:
        return batches
    now_ms = log.wall_clock_ms()
    return [_left(log, batch, now_ms) for batch in batches]


def require_deadlines(batch: BytesLike) -> None:
    """What a client sends says in numbers how long its records live. Raises InvalidRecord, CorruptBatch."""
    header, data = parse_header(batch), bytes(batch)
    if not header.is_control and _may_expire(header.compression, data):
        _deadlines(data)


def _left(log: PartitionLog, batch: BytesLike, now_ms: int) -> BytesLike:
    header, data = parse_header(batch), bytes(batch)
    if header.is_control or not _may_expire(header.compression, data):
        return batch
    try:
        flags = bytes(deadline_ms > now_ms for deadline_ms in _deadlines(data))
        if 0 not in flags:
            return batch
        left = left_of(header, data, flags, DECOMPRESSED_BYTES_MAX)
        log.expired_left_out += flags.count(0)
        return left
    except (CorruptBatch, InvalidRecord):
        return batch  # another door's: it is theirs to say what is wrong with it


def _may_expire(compression: int, data: bytes) -> bool:
    return bool(compression) or any(name in data for name in _NAMES)


def _deadlines(data: bytes) -> list[int]:
    """When each record's time is up."""
    columns = decode_columns(data)
    known: dict[int, tuple[int, bool]] = {}
    found = []
    for timestamp_ms, headers in zip(columns.timestamps_ms, columns.headers, strict=True):
        said = known.get(id(headers))
        if said is None:
            said = known[id(headers)] = _said(headers)
        value_ms, is_ttl = said
        if is_ttl and timestamp_ms < 0:
            raise InvalidRecord("a record with a time to live has no time from which on that counts")
        found.append(timestamp_ms + value_ms if is_ttl else value_ms)
    return found


def _said(headers: Headers) -> tuple[int, bool]:
    """The first that there is: how long, or until when; and whether it is how long."""
    for name, value in headers:
        if name in _HEADERS:
            text = (value or b"").decode("ascii", "replace")
            if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
                raise InvalidRecord(f"header {name}={text[:_DIGITS_MAX]!r} is not a number of milliseconds")
            return int(text), name != EXPIRES_AT
    return _NEVER, False
