"""The data batches of a home partition: what a turn brought, as one batch, or several with one directory."""

from __future__ import annotations

from collections.abc import Sequence

from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from routing.queues.homes.directory import DIRECTORY_BIT
from routing.runs import Run, in_batches

Built = tuple[int, bytes]
"""Base offset and batch."""


def build_batches(
    runs: Sequence[Run], directory: bytes, bytes_max: int, leader_epoch: int, timestamp_ms: int
) -> list[Built]:
    """Runs of consecutive offsets as batches of at most so many bytes, the directory at the offset before them."""
    built: list[Built] = []
    for batch in in_batches(runs, bytes_max):
        base_offset = batch[0].first_offset
        if directory and not built:
            base_offset -= 1
            builder = BatchBuilder(base_offset, leader_epoch, timestamp_ms, attributes=DIRECTORY_BIT)
            builder.add_first(directory)
        else:
            builder = BatchBuilder(base_offset, leader_epoch, timestamp_ms)
        for run in batch:
            run.add_to(builder)
        built.append((base_offset, builder.build()))
    return built


def keep_together(log: PartitionLog, batches: Sequence[Built]) -> None:
    """Batches that share a directory go into one segment, if one can hold them: they are deleted together."""
    size = sum(len(batch) for _, batch in batches)
    active = log.segments[-1]
    if log.error is None and active.size and active.size + size > log.config.segment_bytes >= size:
        log.roll(batches[0][0])
