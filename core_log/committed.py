"""What readers see who know nothing of transactions: committed records, in whole batches.

A reader asks for what is below `PartitionLog.stable_offset`, and passes what it gets through `committed`. Batches of
transactions that were aborted come out as control batches that stand in their place (`transaction_marker.stand_in`),
which all readers pass over, as they do with markers: so nobody stands still before them, and nobody is told more.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_log.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT, parse_header
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.transaction_marker import stand_in

_ATTRIBUTES = 22
"""The byte of a header that has all the bits in use."""


def committed(log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
    """These batches of a log, from below its stable offset; those that were aborted replaced."""
    index = log.transactions
    if index is None or not batches or not index.has_aborted:
        return batches
    first, last = parse_header(batches[0]), parse_header(batches[-1])
    gone: dict[int, list[tuple[int, int]]] = {}
    for one in index.aborted_between(first.base_offset, last.next_offset):
        gone.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    return [_seen(batch, gone) for batch in batches] if gone else batches


def _seen(batch: BytesLike, gone: dict[int, list[tuple[int, int]]]) -> BytesLike:
    if batch[_ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT) != TRANSACTIONAL_BIT:
        return batch
    header = parse_header(batch)
    offset = header.base_offset
    is_gone = any(first <= offset < last for first, last in gone.get(header.producer_id, ()))
    return stand_in(header) if is_gone else batch
