"""Reading a log on behind what is damaged of it, for who works something out from all of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core_log.batch_header import parse_header
from core_log.errors import CorruptBatch, LogError, OffsetOutOfRange
from core_log.files import BytesLike
from core_log.readable_log import ReadableLog

_READ_BYTES = 1 << 20
ONE_BY_ONE = 512
"""So many offsets behind a damaged one are tried one after the other, before more and more are passed over, and with
them what lies between two damaged places.
"""

Damaged = Callable[[int, int, Exception], None]
"""Told where something cannot be read, from where on it can, and what is wrong; raises to end it."""


def whole_batches(log: ReadableLog, offset: int, damaged: Damaged) -> Iterator[BytesLike]:
    """The written batches from an offset on that can be read, but for what goes meanwhile. Blocks. Raises OSError, and
    what `damaged` raises.
    """
    while offset < log.written_offset:
        try:
            batches = log.read_blocking(offset, _READ_BYTES, unsynced=True)
        except (CorruptBatch, FileNotFoundError) as error:
            behind = readable_behind(log, offset, log.written_offset)
            damaged(offset, behind, error)
            offset = behind
            continue
        except OffsetOutOfRange:
            if log.log_start_offset <= offset:
                raise
            offset = log.log_start_offset
            continue
        if not batches:
            return
        for batch in batches:
            yield batch
            offset = parse_header(batch).next_offset


def readable_behind(log: ReadableLog, offset: int, end: int) -> int:
    """Up to which offset, at most `end`, a log that is damaged at an offset cannot be read. Blocks.

    Raises OSError where the disk refuses now: that says nothing of what is there.
    """
    damaged, whole, step = offset, end, 1
    while damaged + 1 < whole:
        at = min(offset + step, end - 1) if whole == end else (damaged + whole) // 2
        try:
            log.read_blocking(at, 1, unsynced=True)
            whole = at
        except (LogError, FileNotFoundError):
            damaged, step = at, step + 1 if step < ONE_BY_ONE else step * 2
    return whole
