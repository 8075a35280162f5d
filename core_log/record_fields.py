"""Reading the records of a batch as columns, as fast as that goes whether they repeat or differ in everything.

`record_decoder.py` finds runs of records that repeat; where none do, looking for them costs several times what parsing
does. So a batch whose records are all of one size is read by runs, and any other record by record (`record_walk.py`).
Header blocks may come unchecked: `decode_header_block` checks one that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.record_decoder import Stretch, open_records, stretches
from core_log.record_walk import walk
from core_log.varint import ONE_BYTE_BELOW, read_varint

_RUN_MIN = 16
"""So many records are worth a look whether they repeat."""


class RecordFields(NamedTuple):
    """The records of a batch as parallel lists."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    header_blocks: list[bytes]


def decode_fields(batch: BytesLike, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> RecordFields:
    """The records of a whole batch. Raises CorruptBatch, and no other error, whatever the bytes are."""
    header, data, start = open_records(batch, decompressed_bytes_max)
    count, base_offset = header.record_count, header.base_offset
    try:
        if count >= _RUN_MIN and _is_uniform(data, start, count):
            return _by_runs(base_offset, stretches(data, start, header, True))
        deltas, _, keys, values, blocks = walk(data, start, 0, count, header.last_offset_delta)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    return RecordFields([base_offset + delta for delta in deltas] if base_offset else deltas, keys, values, blocks)


def header_blocks_of(batch: BytesLike, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[bytes]:
    """The header blocks of records that differ in them, unchecked. Raises CorruptBatch."""
    header, data, start = open_records(batch, decompressed_bytes_max)
    try:
        return walk(data, start, 0, header.record_count, header.last_offset_delta).header_blocks
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _is_uniform(data: bytes, start: int, count: int) -> bool:
    """Whether all records take as many bytes as the first, but for their offset deltas."""
    size, body = read_varint(data, start, len(data))
    size += body - start
    return len(data) - start == count * size + max(count - ONE_BYTE_BELOW, 0)


def _by_runs(base_offset: int, runs: Iterable[Stretch]) -> RecordFields:
    offsets, keys, values, blocks = fields = RecordFields([], [], [], [])
    for run in runs:
        first = base_offset + run.delta
        offsets += range(first, first + run.count)
        keys += [run.key] * run.count
        values += run.values
        blocks += [run.header_block] * run.count
    return fields
