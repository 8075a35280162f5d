"""A map from keys to their latest values, kept in a partition log of its own.

1. Each `put` is one record: the key, and the value or none (a tombstone). Opening the store reads the log from its
   start, the last record of a key wins.
2. `put` is in memory and in the log's next job at once, durable when `commit` returns.
3. When more than half of the log is garbage, and more than `GARBAGE_BYTES_MIN`, `commit` rewrites it: the log is
   rolled, all live records are appended again and made durable, and only then goes the prefix before them, oldest
   segment first. A crash at any step leaves records that say the same as before: an old value is never without the
   newer one or the tombstone that follows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, decode_runs

GARBAGE_BYTES_MIN = 1 << 20
_BATCH_BYTES = 256 << 10
_READ_BYTES = 1 << 20


class KeyedStore:
    """See the module. The store is the only writer of its log."""

    def __init__(self, log: PartitionLog) -> None:
        """Reads the whole log; blocks. Raises CorruptBatch, OSError."""
        self.log = log
        self._values: dict[bytes, bytes] = {}
        self._sizes: dict[bytes, int] = {}
        self._live_bytes = 0
        self._rewriting = False
        offset = log.log_start_offset
        while batches := log.read_blocking(offset, _READ_BYTES):
            for batch in batches:
                runs = decode_runs(batch)
                share = len(batch) // sum(run[1] for run in runs)
                for first_offset, count, key, _, values in runs:
                    offset = first_offset + count
                    if key is not None:
                        self._remember(key, values[-1], share)

    def _remember(self, key: bytes, value: bytes | None, size: int) -> None:
        self._live_bytes -= self._sizes.pop(key, 0)
        if value is None:
            self._values.pop(key, None)
            return
        self._values[key] = value
        self._sizes[key] = size
        self._live_bytes += size

    def put(self, key: bytes, value: bytes | None) -> int:
        """Set the value of a key, or remove the key with None. Returns the log end offset to wait for.

        Raises LogUnavailable, BatchTooLarge; then nothing has changed.
        """
        log = self.log
        builder = BatchBuilder(log.log_end_offset, log.leader_epoch, log.wall_clock_ms())
        builder.add(log.log_end_offset, key, value)
        batch = builder.build()
        log.append(batch)
        self._remember(key, value, len(batch))
        return log.log_end_offset

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when it has none."""
        return self._values.get(key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """All keys with their values, in the order in which the keys were first put."""
        return self._values.items()

    async def commit(self) -> None:
        """Wait until everything put so far is durable. Raises LogUnavailable."""
        await self.log.wait_committed(self.log.log_end_offset)
        garbage_bytes = self.log.size_bytes - self._live_bytes
        if garbage_bytes > max(self._live_bytes, GARBAGE_BYTES_MIN) and not self._rewriting:
            self._rewriting = True
            try:
                await self._rewrite()
            finally:
                self._rewriting = False

    async def _rewrite(self) -> None:
        log = self.log
        start = log.log_end_offset
        log.roll()
        builder = self._builder()
        for key, value in self._values.items():
            if builder.count and builder.size_estimate + len(key) + len(value) > _BATCH_BYTES:
                log.append(builder.build())
                builder = self._builder()
            before = builder.size_estimate
            builder.add(log.log_end_offset + builder.count, key, value)
            size = builder.size_estimate - before
            self._live_bytes += size - self._sizes[key]
            self._sizes[key] = size
        if builder.count:
            log.append(builder.build())
        await log.wait_committed(log.log_end_offset)
        log.delete_prefix(start)

    def _builder(self) -> BatchBuilder:
        return BatchBuilder(self.log.log_end_offset, self.log.leader_epoch, self.log.wall_clock_ms())
