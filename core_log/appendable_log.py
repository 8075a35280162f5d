"""How a partition log is appended to; see `partition_log.py`, rule 1.

Batches come one by one (`append`), or several of producers that were read together (`append_run`): what all of them
need is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, cast

from core_log.batch_header import HEADER_BYTES, LENGTH_START, MAGIC, TRANSACTIONAL_BIT, BatchHeader, parse_header
from core_log.errors import BatchTooLarge, CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.flush_job import SegmentWrite
from core_log.log_config import LogConfig
from core_log.segment import Segment
from core_log.tail_cache import TailCache
from core_log.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from core_log.flusher import Flusher
    from core_log.partition_log import PartitionLog

APPEND_FIELDS = Struct(">qiib4xhi8xq")
"""base_offset, length, leader_epoch, magic, attributes, last_offset_delta, max_timestamp_ms of a batch header."""
_PATCHED = Struct(">qii")
"""base_offset, length, leader_epoch: what an append may change, all outside the CRC."""
COPY_BYTES_MAX = 64 << 10
"""Batches up to this size are copied when patched or when a view: a view would pin the buffer it looks into."""


class AppendableLog:
    """See the module; `PartitionLog` says what the fields are."""

    transactions: TransactionIndex | None = None
    """What is known of transactions in it; None: there never was one."""

    directory: str
    config: LogConfig
    wall_clock_ms: Callable[[], int]
    log_end_offset: int
    high_watermark: int
    leader_epoch: int
    error: OSError | None
    closed: bool
    truncating: bool
    size_bytes: int
    _flusher: Flusher
    _active: Segment
    _tail: TailCache
    _pending: list[SegmentWrite]
    _pending_bytes: int

    def roll(self, base_offset: int | None = None) -> Segment:
        """See `PartitionLog`."""
        raise NotImplementedError

    def append(self, batch: BytesLike, *, base_offset: int | None = None, let_in: bool = False) -> int:
        """Append a whole batch at `log_end_offset`, or at `base_offset`, which must not be below it. One that was
        `let_in` before may be larger than the limit is by now.

        Base offset and leader epoch are patched in when they differ. The CRC is not checked: `validate` what came from
        outside. The batch must not be changed afterwards. Returns the base offset.

        Raises LogUnavailable while `error` is set, when closed and while it is truncated, BatchTooLarge, CorruptBatch
        when the length is wrong.
        """
        if self.error is not None or self.closed or self.truncating:
            self._refuse()
        size = len(batch)
        if size > self.config.message_bytes_max and not let_in:
            raise BatchTooLarge(f"a batch of {size} bytes, the limit is {self.config.message_bytes_max}")
        if size < HEADER_BYTES:
            raise CorruptBatch(f"{size} bytes are no batch")
        found_offset, length, epoch, magic, attributes, last_delta, max_timestamp_ms = APPEND_FIELDS.unpack_from(batch)
        if length + LENGTH_START != size or magic != MAGIC or last_delta < 0:
            raise CorruptBatch(f"batch length {length}, magic {magic}, last offset delta {last_delta} in {size} bytes")
        if base_offset is None:
            base_offset = self.log_end_offset
        elif base_offset < self.log_end_offset:
            raise ValueError(f"base offset {base_offset} is below the log end offset {self.log_end_offset}")
        if attributes & TRANSACTIONAL_BIT:
            self._note_transaction(batch, base_offset)
        next_offset = base_offset + last_delta + 1
        segment = self._active
        if segment.is_full(size, next_offset, self.config, self.wall_clock_ms):
            segment = self.roll(base_offset)
        write = self._write_to(segment)
        if found_offset != base_offset or epoch != self.leader_epoch:
            head = _PATCHED.pack(base_offset, length, self.leader_epoch)
            rest = memoryview(batch)[_PATCHED.size :]
            if size > COPY_BYTES_MAX:
                write.buffers += (head, rest)
                self._tail.add((head, rest), size, next_offset)
            else:
                batch = b"".join((head, rest))
                write.buffers.append(batch)
                self._tail.add(batch, size, next_offset)
        else:
            if size <= COPY_BYTES_MAX and type(batch) is not bytes:
                batch = bytes(batch)
            write.buffers.append(batch)
            self._tail.add(batch, size, next_offset)
        segment.note(base_offset, next_offset, size, max_timestamp_ms)
        self._appended(write, size, next_offset)
        return base_offset

    def append_run(self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]) -> list[int]:
        """`append` of validated batches that belong to no transaction, all or none of them; their base offsets."""
        if self.error is not None or self.closed or self.truncating:
            self._refuse()
        sizes = list(map(len, batches))
        size, offset, epoch, segment = sum(sizes), self.log_end_offset, self.leader_epoch, self._active
        if max(sizes) > self.config.message_bytes_max:
            raise BatchTooLarge(f"a batch of {max(sizes)} bytes, the limit is {self.config.message_bytes_max}")
        end = offset + sum(header.last_offset_delta for header in headers) + len(headers)
        if size > COPY_BYTES_MAX or segment.is_full(size, end, self.config, self.wall_clock_ms):
            return [self.append(batch) for batch in batches]
        write = self._write_to(segment)
        buffers, tail, found = write.buffers, self._tail, []
        for header, batch, batch_bytes in zip(headers, batches, sizes, strict=True):
            found.append(offset)
            patched = _PATCHED.pack(offset, header.length, epoch) + batch[_PATCHED.size :]
            next_offset = offset + header.last_offset_delta + 1
            segment.note(offset, next_offset, batch_bytes, header.max_timestamp_ms)
            offset = next_offset
            buffers.append(patched)
            tail.add(patched, batch_bytes, offset)
        self._appended(write, size, end)
        return found

    def _write_to(self, segment: Segment) -> SegmentWrite:
        pending = self._pending
        if not pending or pending[-1].segment is not segment:
            pending.append(SegmentWrite(segment, segment.size))
        return pending[-1]

    def _appended(self, write: SegmentWrite, size: int, next_offset: int) -> None:
        write.size += size
        self.log_end_offset = next_offset
        self.size_bytes += size
        self._pending_bytes += size
        self._flusher.unflushed_bytes += size
        self._flusher.enlist(cast("PartitionLog", self))

    def _note_transaction(self, batch: BytesLike, base_offset: int) -> None:
        if self.transactions is None:
            self.transactions = TransactionIndex(base_offset)
        self.transactions.note(parse_header(batch), base_offset, batch)
        self.transactions.settle(self.high_watermark)  # nobody may ever read here, as on a follower

    def _refuse(self) -> None:
        raise LogUnavailable(f"{self.directory}: {self.error or ('closed' if self.closed else 'being truncated')}")
