"""Runs of records on their way into batches: consecutive offsets, many values.

Keys and header blocks are one for all records of a run, or a list with one for each; they are written with every
record, so they count for every record: a thousand empty values under a long key are a large batch. A run that is too
large for one batch is cut; a single record never is, whoever publishes it has been told before (`record_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from core_log.record_batch import BatchBuilder

RECORD_BYTES = 24
"""Most that lengths, attributes and deltas add to a record's key, value and headers."""
BATCH_HEADER_BYTES = 61


class Run(NamedTuple):
    """`body_bytes` is the sum of the lengths of `bodies`."""

    first_offset: int
    keys: bytes | list[bytes]
    header_blocks: bytes | list[bytes]
    bodies: list[bytes]
    body_bytes: int

    def add_to(self, builder: BatchBuilder) -> None:
        """Add the records to a batch."""
        if isinstance(self.keys, bytes) and isinstance(self.header_blocks, bytes):
            builder.add_run(self.first_offset, self.keys, self.bodies, self.header_blocks)
        else:
            builder.add_varied(self.first_offset, self.keys, self.bodies, self.header_blocks)


def record_bytes(key: bytes, header_block: bytes) -> int:
    """Most that a record takes besides its value."""
    return RECORD_BYTES + len(key) + len(header_block)


def _column_bytes(column: bytes | list[bytes], count: int) -> int:
    return len(column) * count if isinstance(column, bytes) else sum(map(len, column))


def _run_bytes(run: Run) -> int:
    count = len(run.bodies)
    around = _column_bytes(run.keys, count) + _column_bytes(run.header_blocks, count)
    return run.body_bytes + around + count * RECORD_BYTES


def in_batches(runs: Iterable[Run], batch_bytes_max: int) -> Iterator[list[Run]]:
    """Runs grouped into batches of at most `batch_bytes_max`, unless one record alone is larger."""
    batch: list[Run] = []
    room = batch_bytes_max - BATCH_HEADER_BYTES
    for run in runs:
        run_bytes = _run_bytes(run)
        if run_bytes > room:
            if batch:
                yield batch
                batch = []
            room = batch_bytes_max - BATCH_HEADER_BYTES
            if run_bytes > room:
                for piece in _cut(run, room):
                    yield [piece]
                continue
        batch.append(run)
        room -= run_bytes
    if batch:
        yield batch


def _cut(run: Run, room: int) -> Iterator[Run]:
    start, size = 0, 0
    for at, body in enumerate(run.bodies):
        one = len(body) + record_bytes(item(run.keys, at), item(run.header_blocks, at))
        if at > start and size + one > room:
            yield _part(run, start, at)
            start, size = at, 0
        size += one
    yield _part(run, start, len(run.bodies))


def cut_out(run: Run, wanted: Sequence[bool]) -> Iterator[Run]:
    """The stretches of a run whose records are wanted, at their offsets."""
    start, count = 0, len(wanted)
    for at in range(1, count + 1):
        if at == count or wanted[at] != wanted[start]:
            if wanted[start]:
                yield _part(run, start, at)
            start = at


def item(column: bytes | list[bytes], at: int) -> bytes:
    """That of one record."""
    return column if isinstance(column, bytes) else column[at]


def _part(run: Run, start: int, stop: int) -> Run:
    keys = run.keys if isinstance(run.keys, bytes) else run.keys[start:stop]
    blocks = run.header_blocks if isinstance(run.header_blocks, bytes) else run.header_blocks[start:stop]
    bodies = run.bodies[start:stop]
    return Run(run.first_offset + start, keys, blocks, bodies, sum(map(len, bodies)))
