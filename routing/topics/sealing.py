"""Runs of records, as they came in a turn, on their way into a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core_log.batch_header import MAGIC, NO_PRODUCER, TIMESTAMP_TYPE_BIT, encode_batch
from core_log.compression import Compression
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from routing.runs import Run, in_batches

_BATCH_BYTES = 900 << 10


def write(log: PartitionLog, runs: Iterable[Run]) -> None:
    """Append runs of rising offsets. Raises LogUnavailable."""
    most_bytes = log.config.message_bytes_max
    for batch in in_batches(runs, min(_BATCH_BYTES, most_bytes)):
        data = _batch(log, batch, log.config.codec or Compression.NONE)
        if len(data) > most_bytes:  # what cannot be made smaller grows, and was let in by its own size
            data = _batch(log, batch, Compression.NONE)
        log.append(data, base_offset=batch[0].first_offset, let_in=True)


def _batch(log: PartitionLog, runs: Sequence[Run], codec: Compression) -> bytes:
    bits = TIMESTAMP_TYPE_BIT if log.config.timestamp_type == "LogAppendTime" else 0
    first_offset = runs[0].first_offset
    builder = BatchBuilder(first_offset, log.leader_epoch, log.wall_clock_ms(), compression=codec, attributes=bits)
    for run in runs:
        run.add_to(builder)
    return builder.build()


def cover(log: PartitionLog, end: int) -> None:
    """Have a log end there though it lacks the last records, for whoever waits for that. Raises LogUnavailable."""
    base_offset = log.log_end_offset
    if base_offset < end:
        now_ms = log.wall_clock_ms()
        fields = (base_offset, 0, log.leader_epoch, MAGIC, 0, 0, end - 1 - base_offset, now_ms, now_ms, *NO_PRODUCER, 0)
        log.append(encode_batch(fields, b""), base_offset=base_offset)
