"""Whether what a consumer has read is still in the log, once another leader epoch has begun (KIP-320).

Only what was committed is read, and no clean election loses that: a log is cut below a reader when a leader was elected
that lacked it, or when a broker lost power that was not to sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core_log.batch_header import parse_header
from protocols.buffers import BytesLike
from protocols.native.wire import NO_EPOCH


class LastBatch(NamedTuple):
    """Of the batches that were read."""

    epoch: int
    base_offset: int
    next_offset: int


def last_of(batches: Sequence[BytesLike]) -> LastBatch:
    """The last of some."""
    header = parse_header(batches[-1])
    return LastBatch(header.leader_epoch, header.base_offset, header.next_offset)


def cut_at(last: LastBatch, epoch: int, end_offset: int) -> int | None:
    """Where the log was cut, as an entry of `OffsetsForEpochsReply` has it; None: all that was read is there."""
    if NO_EPOCH < epoch < last.epoch:
        return min(end_offset, last.base_offset)  # nothing of the batch's epoch is there any more
    return end_offset if end_offset < last.next_offset else None
