"""The data batches of a home partition: what a turn brought, as one batch, or several with one directory."""

from __future__ import annotations

from collections.abc import Sequence

from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from routing.message import Slab
from routing.queues.homes.destination_sets import DestinationSet
from routing.queues.homes.directory import DIRECTORY_BIT, encode_directory
from routing.runs import Run, in_batches

BATCH_BYTES = 1 << 20
"""A batch is closed when it reaches this size; one message may be larger."""
_SCATTERED_BATCH_BYTES = 8 << 10
"""The same for delayed messages, which will be wanted one by one."""

Built = tuple[int, bytes]
"""Base offset and batch."""

Placed = tuple[int, Slab, DestinationSet]
"""A slab with its first offset, and where it goes."""


class OpenBatch:
    """What a turn has brought and is not written yet."""

    __slots__ = ("_any_facts", "bytes_max", "slabs")

    def __init__(self) -> None:
        self.slabs: list[Placed] = []
        """Of consecutive offsets."""
        self.clear()

    def clear(self) -> None:
        """All of it is written, or will not be."""
        self.slabs.clear()
        self._any_facts = False
        self.bytes_max = BATCH_BYTES

    def note_facts(self, *, delayed: bool) -> None:
        """What came last asks for something; `delayed`: to wait, so it will be wanted one by one."""
        self._any_facts = True
        if delayed:
            self.bytes_max = _SCATTERED_BATCH_BYTES

    def directory(self) -> bytes:
        """Which queues get how many of the messages, and what these ask for."""
        opened = self.slabs
        entries = [(destinations.definition.id, len(slab.bodies)) for _, slab, destinations in opened]
        facts = [to.columns_of(slab) for _, slab, to in opened] if self._any_facts else None
        numbers = [slab.once for _, slab, _ in opened]
        return encode_directory(entries, facts, numbers=numbers if any(numbers) else ())


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
