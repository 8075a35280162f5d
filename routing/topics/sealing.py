"""Runs of records, as they came in a turn, on their way into a log."""

from __future__ import annotations

from collections.abc import Iterable

from core_log.batch_header import MAGIC, NO_PRODUCER, TIMESTAMP_TYPE_BIT, encode_batch
from core_log.compression import Compression
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from routing.runs import Run, in_batches

_BATCH_BYTES = 900 << 10


def write(log: PartitionLog, runs: Iterable[Run]) -> None:
    """Append runs of rising offsets. Raises LogUnavailable."""
    for batch in in_batches(runs, min(_BATCH_BYTES, log.config.message_bytes_max)):
        base_offset = batch[0].first_offset
        bits = TIMESTAMP_TYPE_BIT if log.config.timestamp_type == "LogAppendTime" else 0
        codec = log.config.codec or Compression.NONE
        now_ms = log.wall_clock_ms()
        builder = BatchBuilder(base_offset, log.leader_epoch, now_ms, compression=codec, attributes=bits)
        for run in batch:
            run.add_to(builder)
        log.append(builder.build(), base_offset=base_offset)


def cover(log: PartitionLog, end: int) -> None:
    """Have a log end there though it lacks the last records, for whoever waits for that. Raises LogUnavailable."""
    base_offset = log.log_end_offset
    if base_offset < end:
        now_ms = log.wall_clock_ms()
        fields = (base_offset, 0, log.leader_epoch, MAGIC, 0, 0, end - 1 - base_offset, now_ms, now_ms, *NO_PRODUCER, 0)
        log.append(encode_batch(fields, b""), base_offset=base_offset)
