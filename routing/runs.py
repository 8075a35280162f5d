"""Runs of records on their way into batches: consecutive offsets, one key, one header block, many values.

Key and headers are written with every record, so they count for every record: a thousand empty values under a long key
are a large batch. A run that is too large for one batch is cut; a single record never is, whoever publishes it has
been told before (`record_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

RECORD_BYTES = 24
"""Most that lengths, attributes and deltas add to a record's key, value and headers."""
BATCH_HEADER_BYTES = 61


class Run(NamedTuple):
    """`body_bytes` is the sum of the lengths of `bodies`."""

    first_offset: int
    key: bytes
    header_block: bytes
    bodies: list[bytes]
    body_bytes: int


def record_bytes(key: bytes, header_block: bytes) -> int:
    """Most that a record takes besides its value."""
    return RECORD_BYTES + len(key) + len(header_block)


def in_batches(runs: Iterable[Run], batch_bytes_max: int) -> Iterator[list[Run]]:
    """Runs grouped into batches of at most `batch_bytes_max`, unless one record alone is larger."""
    batch: list[Run] = []
    room = batch_bytes_max - BATCH_HEADER_BYTES
    for run in runs:
        run_bytes = run.body_bytes + len(run.bodies) * record_bytes(run.key, run.header_block)
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
    around = record_bytes(run.key, run.header_block)
    start, size = 0, 0
    for at, body in enumerate(run.bodies):
        if at > start and size + len(body) + around > room:
            yield _part(run, start, at)
            start, size = at, 0
        size += len(body) + around
    yield _part(run, start, len(run.bodies))


def _part(run: Run, start: int, stop: int) -> Run:
    bodies = run.bodies[start:stop]
    return Run(run.first_offset + start, run.key, run.header_block, bodies, sum(map(len, bodies)))
