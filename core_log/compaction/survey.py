"""What batch headers say of producers and transactions, before anything is compacted.

1. Data of a transaction is committed or aborted by the next control batch of its producer id; what no control batch
   follows is not decided, and nothing from there on is compacted.
2. The last batch of data of a producer is what its next one goes on from, so its header stays though its records go,
   until the producer would be forgotten anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from core_log.batch_header import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader
from core_log.compaction.batches import Pause, read_batches
from core_log.compaction.records import read_keys
from core_log.errors import CorruptBatch

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

_ABORT = 0


class Survey:
    """See the module; made by `survey`."""

    def __init__(self) -> None:
        self.last_data: dict[int, int] = {}
        """By producer id: where its last batch of data begins."""
        self.decided: dict[int, tuple[list[int], list[bool]]] = {}
        """By producer id: offsets of its control batches, and whether they commit."""
        self.undecided: dict[int, int] = {}
        """By producer id: where a transaction begins that no control batch has followed yet."""

    def note(self, header: BatchHeader) -> None:
        """A batch of data with a producer id."""
        self.last_data[header.producer_id] = header.base_offset
        if header.attributes & TRANSACTIONAL_BIT:
            self.undecided.setdefault(header.producer_id, header.base_offset)

    def note_decision(self, header: BatchHeader, batch: bytes) -> None:
        """A control batch. One that is of no kind known decides nothing."""
        try:
            (key, *_), *_ = read_keys(batch, HEADER_BYTES, header)
        except (CorruptBatch, ValueError):
            return
        if key is None or len(key) < 4 or key[3] > 1:
            return
        offsets, commits = self.decided.setdefault(header.producer_id, ([], []))
        offsets.append(header.base_offset)
        commits.append(key[3] != _ABORT)
        self.undecided.pop(header.producer_id, None)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the transaction of a batch of data was aborted."""
        if not header.attributes & TRANSACTIONAL_BIT or header.producer_id not in self.decided:
            return False
        offsets, commits = self.decided[header.producer_id]
        at = bisect_right(offsets, header.base_offset)
        return at < len(commits) and not commits[at]

    def aborts(self, header: BatchHeader) -> bool:
        """Whether a control batch ended a transaction so, or is of no kind known."""
        offsets, commits = self.decided.get(header.producer_id, ([], []))
        at = bisect_right(offsets, header.base_offset) - 1
        return at < 0 or offsets[at] != header.base_offset or not commits[at]


def survey(log: ReadableLog, begin: int, limit: int, pause: Pause) -> Survey:
    """Read the headers of all batches in [begin, limit); blocks. Raises CorruptBatch, OSError."""
    found = Survey()
    for segment in log.segments_from(max(begin, log.log_start_offset)):
        end = segment.written_bytes
        if segment.base_offset >= limit or not end:
            continue
        file = log.files.open(segment.log_path, create=False)
        try:
            for header, _, chunk, at in read_batches(file, segment, end, pause, check_crc=False):
                if header.producer_id < 0:
                    continue
                if header.next_offset > limit:
                    break
                if header.is_control:
                    batch = chunk[at : at + header.size]
                    found.note_decision(header, batch)
                else:
                    found.note(header)
        finally:
            file.close()
    return found
