"""A map from keys to their latest values, kept in a partition log of its own.

1. Each `put` is one record: the key, and the value or none (a tombstone). Opening the store reads the log from its
   start, the last record of a key wins.
2. `put` is in memory and in the log's next job at once, durable when `commit` returns.
3. When more than half of the log is garbage, and more than `GARBAGE_BYTES_MIN`, `commit` rewrites it: the log is
   rolled, all live records are appended again, some at a time, and made durable, and only then goes the prefix before
   them, oldest segment first. A crash at any step leaves records that say the same as before: an old value is never
   without the newer one or the tombstone that follows it.
4. `change` is for whoever must not be told a half truth: it returns when all its puts are durable, and if the log
   refuses them they are taken back, in memory at once and in the log as soon as it takes writes again (what it refused
   it may have written all the same).
5. In place of a producer's sequence number a batch says how many offsets before it were not durable when it was
   appended: by that a start tells what a loss of power has left out from damage (`damage.py`).
6. There may be millions of keys: nothing is kept of one but key and value, and of short values that many have, one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from core_log.batch_header import NO_PRODUCER
from core_log.errors import BatchTooLarge, LogUnavailable
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, decode_runs

GARBAGE_BYTES_MIN = 1 << 20
_BATCH_BYTES = 256 << 10
_READ_BYTES = 1 << 20
_REWRITTEN_AT_ONCE_BYTES = 4 << 20
_RECORD_BYTES = 10
"""Of a record in a large batch, besides key and value."""
_SHARED_BYTES_MAX = 64
_SHARED_MAX = 4096


class KeyedStore:
    """See the module. The store is the only writer of its log, until `end`."""

    def __init__(self, log: PartitionLog) -> None:
        """Reads the whole log; blocks. Raises CorruptBatch, OSError."""
        self.log = log
        self._values: dict[bytes, bytes] = {}
        self._shared: dict[bytes, bytes] = {}
        self._live_bytes = 0
        self._rewriting = False
        self._taken_back: dict[bytes, bytes | None] = {}
        """What keys were before puts that the log refused; written as soon as it takes writes again."""
        self._ended = False
        offset = log.log_start_offset
        while batches := log.read_blocking(offset, _READ_BYTES):
            for batch in batches:
                runs = decode_runs(batch)
                for first_offset, count, key, _, values in runs:
                    offset = first_offset + count
                    if key is not None:
                        self._remember(key, values[-1])

    def _remember(self, key: bytes, value: bytes | None) -> None:
        before = self._values.get(key)
        if before is not None:
            self._live_bytes -= len(key) + len(before) + _RECORD_BYTES
        if value is None:
            self._values.pop(key, None)
            return
        if len(value) <= _SHARED_BYTES_MAX:
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            value = self._shared.setdefault(value, value)
        self._values[key] = value
        self._live_bytes += len(key) + len(value) + _RECORD_BYTES

    def put(self, key: bytes, value: bytes | None) -> int:
        """Set the value of a key, or remove the key with None. Returns the log end offset to wait for.

        Raises LogUnavailable, BatchTooLarge; then nothing has changed.
        """
        return self.put_all([(key, value)])

    def put_all(self, puts: Sequence[tuple[bytes, bytes | None]], *, together: bool = False) -> int:
        """`put` for several keys. A crash leaves all of them or none as long as they fit in one batch (256 KiB), else
        the first batches. `together`: they are one batch, as far as the log takes one of their size.

        Raises LogUnavailable, BatchTooLarge; then nothing has changed.
        """
        log = self.log
        self._require_ours()
        if self._taken_back:
            again = dict(puts)
            puts = [*(item for item in self._taken_back.items() if item[0] not in again), *puts]
        batches: list[tuple[bytes, int]] = []
        first = log.log_end_offset
        builder = self._builder(first)
        for offset, (key, value) in enumerate(puts, first):
            is_full = builder.size_estimate + len(key) + len(value or b"") > _BATCH_BYTES
            if builder.count and is_full and not together:
                batches.append((self._built(builder, first), builder.count))
                builder, first = self._builder(offset), offset
            builder.add(offset, key, value)
        if builder.count:
            batches.append((self._built(builder, first), builder.count))
        largest = max((len(batch) for batch, _ in batches), default=0)
        if largest > log.config.message_bytes_max:
            raise BatchTooLarge(f"a batch of {largest} bytes, the limit is {log.config.message_bytes_max}")
        at = 0
        for batch, count in batches:
            log.append(batch)
            for key, value in puts[at : at + count]:
                self._remember(key, value)
            at += count
        self._forget_taken_back()
        return log.log_end_offset

    async def change(
        self, puts: Sequence[tuple[bytes, bytes | None]], *, together: bool = False
    ) -> dict[bytes, bytes | None]:
        """Set several keys and wait until that is durable, see rule 4; what they were before. `together` as in
        `put_all`.

        Raises LogUnavailable, BatchTooLarge; then nothing has changed.
        """
        before = {key: self._values.get(key) for key, _ in puts}
        end = self.put_all(puts, together=together)
        try:
            await self.log.wait_committed(end)
        except LogUnavailable:
            for key, value in before.items():
                self._remember(key, value)
            self._take_back(before)
            raise
        with suppress(LogUnavailable):
            await self._drop_garbage()
        return before

    def end(self) -> None:
        """Others write the log from now on: this store does no more, nor what it was refused before."""
        self._ended = True
        self._forget_taken_back()

    def _require_ours(self) -> None:
        if self._ended:
            raise LogUnavailable(f"{self.log.directory}: others write it now")

    def _take_back(self, before: dict[bytes, bytes | None]) -> None:
        if before and not self._ended:
            if not self._taken_back:
                self.log.listeners.append(self._log_advanced)
            self._taken_back |= before

    def _forget_taken_back(self) -> None:
        if self._taken_back:
            self._taken_back.clear()
            self.log.listeners.remove(self._log_advanced)

    def _log_advanced(self, log: PartitionLog) -> None:
        if self._taken_back and log.error is None:
            with suppress(LogUnavailable):
                self.put_all([])

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when it has none."""
        return self._values.get(key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """All keys with their values, in the order in which the keys were first put."""
        return self._values.items()

    async def commit(self) -> None:
        """Wait until everything put so far is durable. Raises LogUnavailable."""
        await self.log.wait_committed(self.log.log_end_offset)
        await self._drop_garbage()

    @property
    def has_garbage(self) -> bool:
        """Whether `commit` is about to rewrite the log, see rule 3."""
        garbage_bytes = self.log.size_bytes - self._live_bytes
        return garbage_bytes > max(self._live_bytes, GARBAGE_BYTES_MIN) and not self._rewriting

    async def _drop_garbage(self) -> None:
        if self.has_garbage:
            self._rewriting = True
            try:
                await self._rewrite()
            finally:
                self._rewriting = False

    async def _rewrite(self) -> None:
        self._require_ours()
        log = self.log
        start = log.log_end_offset
        log.roll()
        builder = self._builder(start)
        appended_bytes = 0
        for key in list(self._values):
            size = len(key) + len(self._values.get(key, b""))
            if builder.count and builder.size_estimate + size > _BATCH_BYTES:
                appended_bytes += builder.size_estimate
                log.append(self._built(builder, log.log_end_offset), let_in=True)
                if appended_bytes >= _REWRITTEN_AT_ONCE_BYTES:
                    await log.wait_committed(log.log_end_offset)
                    self._require_ours()
                    appended_bytes = 0
                builder = self._builder(log.log_end_offset)
            value = self._values.get(key)
            if value is None:
                continue  # it went while an earlier part was written: the tombstone is behind that
            builder.add(log.log_end_offset + builder.count, key, value)
        if builder.count:
            log.append(self._built(builder, log.log_end_offset), let_in=True)
        await log.wait_committed(log.log_end_offset)
        self._require_ours()
        log.delete_prefix(start)

    def _builder(self, first: int) -> BatchBuilder:
        return BatchBuilder(first, self.log.leader_epoch, self.log.wall_clock_ms())

    def _built(self, builder: BatchBuilder, first: int) -> bytes:
        """The batch that begins at offset `first`: rule 5."""
        producer_id, producer_epoch, _ = NO_PRODUCER
        return builder.build((producer_id, producer_epoch, first - self.log.flushed_offset))
