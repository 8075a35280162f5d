"""What a log knows of the transactions that are written to it: which are open, and which were aborted.

1. A transaction of a producer begins with its first batch that has the transactional bit, and ends with a marker, a
   control batch. What lies between is committed or aborted as the marker says; a producer has one at a time.
2. Readers of committed records see nothing from the *stable offset* on: where the first transaction begins that has no
   marker below the high watermark yet. A marker that may still be cut off ends nothing.
3. Of those that were aborted it is kept where they begin and end, as long as the log has records there: 32 bytes each.
4. All of it can be worked out from the batches. It is written down when the recovery point moves and at a clean stop,
   so that a start reads no more than what came since. The file is there, durably, before the first batch of a
   transaction is written: a log without one never had any.
5. A marker that cannot be read would join its transaction to the producer's next one, or never let it end. One of
   which a single bit has flipped is known all the same.
6. A log that has no transactions has no index: that costs its readers and writers one look.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from core_log import checkpoint
from core_log.batch_header import BatchHeader, parse_header
from core_log.cold_reader import bytes_at
from core_log.errors import CorruptBatch
from core_log.transaction_marker import MARKER_BYTES, is_commit, with_bit_put_back
from core_log.whole_batches import whole_batches

if TYPE_CHECKING:
    from core_log.files import BytesLike, Files
    from core_log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_VERSION = 1
_NAME = "transactions"


class OpenTransaction(NamedTuple):
    """One that has no marker yet."""

    first_offset: int
    producer_epoch: int
    since_ms: int
    """The time of its first batch."""


class AbortedTransaction(NamedTuple):
    """Its records lie between the two; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class _Ending(NamedTuple):
    """One with a marker that may not be committed yet."""

    marker_offset: int
    producer_id: int
    transaction: OpenTransaction
    committed: bool


class TransactionIndex:
    """See the module. `offset` is up to where it was worked out, `began_at` where the log's first transaction began."""

    def __init__(self, offset: int) -> None:
        self.offset = self.began_at = offset
        self.is_saved = False
        """The file is there."""
        self.markers = 0
        """How many were noted since it was made: who looks twice sees whether there was another."""
        self.open: dict[int, OpenTransaction] = {}
        """By producer id, in the order of their offsets."""
        self._ending: list[_Ending] = []
        self._floor = offset
        """Below this endings are not remembered."""
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stable = array("q")
        """The stable offset once the marker was counted: no later entry begins below."""

    @property
    def has_aborted(self) -> bool:
        """There is something to be passed over."""
        return bool(self._lasts)

    # ---- writing

    def note(self, header: BatchHeader, base_offset: int, batch: BytesLike) -> None:
        """A transactional batch, or a marker, is about to be in the log. Raises CorruptBatch; then nothing changes."""
        if header.producer_id < 0:
            raise CorruptBatch("a batch of a transaction, and of no producer")
        if header.is_control:
            committed = is_commit(batch)
            found = self.open.pop(header.producer_id, None) if committed is not None else None
            if found is not None and committed is not None:
                self._ending.append(_Ending(base_offset, header.producer_id, found, committed))
            self.markers += 1
        elif header.producer_id not in self.open:
            begun = OpenTransaction(base_offset, header.producer_epoch, header.max_timestamp_ms)
            self.open[header.producer_id] = begun
        self.offset = base_offset + header.last_offset_delta + 1

    def cut(self, end_offset: int) -> bool:
        """The log ends here now. False: it has to be read again, more is gone than is remembered."""
        if end_offset < self._floor:
            return False
        found = [(key, one) for key, one in self.open.items() if one.first_offset < end_offset]
        for ending in self._ending:
            if ending.marker_offset >= end_offset > ending.transaction.first_offset:
                found.append((ending.producer_id, ending.transaction))
        self._ending = [one for one in self._ending if one.marker_offset < end_offset]
        # A producer has one at a time: of two that are open again the later one's batches went with its beginning.
        self.open = dict(sorted(found, key=lambda item: item[1].first_offset))
        self.offset = end_offset
        self.markers += 1
        return True

    # ---- reading

    def stable_offset(self, high_watermark: int) -> int:
        """Rule 2."""
        self.settle(high_watermark)
        return self._first_unstable(high_watermark)

    def _first_unstable(self, otherwise: int) -> int:
        first = min(next(iter(self.open.values())).first_offset, otherwise) if self.open else otherwise
        return min((first, *(one.transaction.first_offset for one in self._ending)))

    def settle(self, high_watermark: int) -> None:
        """Whatever ended below the high watermark stays as it is (rule 2)."""
        if not self._ending or self._ending[0].marker_offset >= high_watermark:
            return
        count = bisect_left(self._ending, high_watermark, key=lambda one: one.marker_offset)
        ended, self._ending = self._ending[:count], self._ending[count:]
        self._floor = ended[-1].marker_offset + 1
        firsts = [one.transaction.first_offset for one in ended[1:]]
        unstable = accumulate(reversed(firsts), min, initial=self._first_unstable(self._floor))
        for one, first in zip(ended, reversed(list(unstable)), strict=True):
            if not one.committed:
                self._producers.append(one.producer_id)
                self._firsts.append(one.transaction.first_offset)
                self._lasts.append(one.marker_offset)
                self._stable.append(min(first, one.marker_offset + 1))

    def aborted_between(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """Those with records in [start, end), below a stable offset that was asked for before."""
        for at in range(bisect_left(self._lasts, start_offset), len(self._lasts)):
            if self._firsts[at] < end_offset:
                yield AbortedTransaction(self._producers[at], self._firsts[at], self._lasts[at])
            if self._stable[at] >= end_offset:
                return

    # ---- files

    def begun(self, epoch: int) -> bytes:
        """What is written before the first batch of a transaction is, if it was not yet."""
        return _encoded(TransactionIndex(self.began_at), self.began_at, epoch)

    def encode(self, log: PartitionLog) -> bytes:
        """The content of the file, for a log that is written up to its end."""
        gone = bisect_left(self._lasts, log.log_start_offset)
        for column in (self._producers, self._firsts, self._lasts, self._stable):
            del column[:gone]
        return _encoded(self, log.log_end_offset, log.epochs.latest)

    @classmethod
    def recover(cls, log: PartitionLog) -> TransactionIndex | None:
        """What the log of a directory knows; None: it never had a transaction. Blocks. Raises OSError."""
        content = checkpoint.load(log.files, _path(log.directory))
        if content is None and not log.files.exists(_path(log.directory)):
            return None
        return cls.read(log, None if content is None else _believed(log, content))

    @classmethod
    def read(cls, log: PartitionLog, known: TransactionIndex | None = None) -> TransactionIndex:
        """What the batches say, behind what is known. Blocks. Raises OSError."""
        index = known or cls(log.log_start_offset)
        index.is_saved = True

        def damaged(offset: int, behind: int, error: Exception) -> None:
            while offset < behind and (ending := with_bit_put_back(bytes_at(log, offset, MARKER_BYTES), offset)):
                logger.warning("%s: a transaction ended at offset %d, though %s", log.directory, offset, error)
                index.note(parse_header(ending), offset, ending)
                offset += 1
            if offset >= behind:
                return
            text = "%s: transactions that began or ended from offset %d up to %d are not known: %s"
            logger.error(text, log.directory, offset, behind, error)

        for batch in whole_batches(log, index.offset, damaged):
            header = parse_header(batch)
            if header.is_transactional:
                try:
                    index.note(header, header.base_offset, batch)
                except CorruptBatch as error:
                    damaged(header.base_offset, header.next_offset, error)
        return index


def save(files: Files, directory: str, content: bytes, *, sync_name: bool) -> None:
    """Write what `begun` or `encode` made. Raises OSError."""
    checkpoint.save(files, _path(directory), content, sync_name=sync_name)


def _path(directory: str) -> str:
    return f"{directory}/{_NAME}"


def _encoded(index: TransactionIndex, offset: int, epoch: int) -> bytes:
    columns = [column.tobytes() for column in (index._producers, index._firsts, index._lasts, index._stable)]
    ending = [(one.marker_offset, one.producer_id, tuple(one.transaction), one.committed) for one in index._ending]
    opened = [(key, tuple(one)) for key, one in index.open.items()]
    return msgpack.packb((_VERSION, offset, epoch, index._floor, opened, ending, columns))  # type: ignore[no-any-return]


def _believed(log: PartitionLog, content: bytes) -> TransactionIndex | None:
    """What a file says, unless it speaks of what was cut off since, or of less than is gone."""
    try:
        fields: Any = msgpack.unpackb(content)
        version, offset, epoch, floor, opened, ending, columns = fields
        if version != _VERSION:
            raise ValueError(f"version {version}")
        index = TransactionIndex(offset)
        index._floor = floor
        index.open = {key: OpenTransaction(*one) for key, one in opened}
        index._ending = [_Ending(at, key, OpenTransaction(*one), committed) for at, key, one, committed in ending]
        for column, data in zip((index._producers, index._firsts, index._lasts, index._stable), columns, strict=True):
            column.frombytes(data)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        logger.warning("%s is not understood, the log is read: %s", _path(log.directory), error)
        return None
    found = log.epochs.end_of(epoch, log.log_end_offset)
    is_true = found is not None and found[0] == epoch and log.log_start_offset <= offset <= found[1]
    return index if is_true else None
