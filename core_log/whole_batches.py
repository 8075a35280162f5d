"""Reading a log on behind what is damaged of it, for who works something out from all of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core_log.batch_header import parse_header
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.readable_log import ReadableLog

_READ_BYTES = 1 << 20

Damaged = Callable[[int, int, Exception], None]
"""Told where something cannot be read, from where on it can, and what is wrong; raises to end it."""


def whole_batches(log: ReadableLog, offset: int, damaged: Damaged) -> Iterator[BytesLike]:
    """The written batches from an offset on that can be read. Blocks. Raises OSError, and what `damaged` raises."""
    while offset < log.written_offset:
        try:
            batches = log.read_blocking(offset, _READ_BYTES, unsynced=True)
        except (CorruptBatch, FileNotFoundError) as error:
            behind = _behind(log, offset)
            damaged(offset, behind, error)
            offset = behind
            continue
        if not batches:
            return
        for batch in batches:
            yield batch
            offset = parse_header(batch).next_offset


def _behind(log: ReadableLog, offset: int) -> int:
    """From where on the log can be read again: not the first such offset, but one that few reads find."""
    step = 1
    while offset + step < log.written_offset:
        try:
            log.read_blocking(offset + step, 1, unsynced=True)
        except (CorruptBatch, FileNotFoundError):
            step *= 2
        else:
            return offset + step
    return log.written_offset
