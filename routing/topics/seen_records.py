"""The records of a partition that readers see, one by one, for who looks at few of them.

A batch of 64 MiB takes seconds to be decoded, so this is done in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_log.batch_header import parse_header
from core_log.committed import committed
from core_log.expiry import unexpired
from core_log.files import BytesLike
from core_log.record_batch import Record, iterate_records
from core_log.threads import in_thread
from routing.topics.topic_partition import TopicPartition

_READ_BYTES = 1 << 20


async def record_at(partition: TopicPartition, offset: int) -> Record | None:
    """The first record from an offset on that readers may see. Raises LogError."""
    log = partition.log
    offset = max(offset, log.log_start_offset)
    while offset < log.stable_offset:
        batches = await log.read_cold(offset, _READ_BYTES, before=log.stable_offset)
        if not batches:
            return None
        for batch in unexpired(log, committed(log, batches)):
            found = await in_thread(_first_of, batch, offset)
            if found is not None:
                return found
            offset = max(offset, parse_header(batch).next_offset)
    return None


async def records_between(
    partition: TopicPartition, offset: int, before: int, size_bytes: int
) -> tuple[list[Record], int]:
    """The records of [offset, before) that readers may see, of about so many bytes of batches, and where to go on: at
    the offset itself as long as they may not see it. Raises LogError.
    """
    log = partition.log
    offset, before = max(offset, log.log_start_offset), min(before, log.stable_offset)
    if offset >= before:
        return [], offset
    batches = await log.read_cold(offset, size_bytes, before=log.stable_offset)
    if not batches:
        return [], before
    found = await in_thread(_all_of, unexpired(log, committed(log, batches)), offset, before)
    return found, min(parse_header(batches[-1]).next_offset, before)


def _first_of(batch: BytesLike, offset: int) -> Record | None:
    if parse_header(batch).is_control:
        return None
    return next((record for record in iterate_records(batch) if record.offset >= offset), None)


def _all_of(batches: Sequence[BytesLike], offset: int, before: int) -> list[Record]:
    plain = (batch for batch in batches if not parse_header(batch).is_control)
    return [record for batch in plain for record in iterate_records(batch) if offset <= record.offset < before]
