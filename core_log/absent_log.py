"""What stands for a partition log that is not on this disk: it refuses everything, and there is nothing in it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from core_log.errors import LogUnavailable
from core_log.files import BytesLike
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.wall_clock import wall_clock_ms


class AbsentLog(PartitionLog):
    """See the module. It has `error` set for good, so whoever asks a log before writing to it is told."""

    def __init__(self, what: str, config: LogConfig) -> None:
        self.directory = ""
        self.config = config
        self.wall_clock_ms = wall_clock_ms
        self.error = OSError(errno.EREMOTE, f"{what} is not on this broker")
        self.closed = self.truncating = False
        self.segments = []
        self.listeners: list[Callable[[PartitionLog], None]] = []
        self.leader_epoch = 0
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.durable_start_offset = self.committed_offset = self.flushed_offset = self.written_offset = 0
        self.size_bytes = 0

    def configure(self, config: LogConfig) -> None:
        """For who asks it, and for whatever log takes its place."""
        self.take_config(config)

    def learn(self, log_start: int, high_watermark: int) -> None:
        """What others know of it."""

    def append(self, batch: BytesLike, *, base_offset: int | None = None, let_in: bool = False) -> int:
        """Raises LogUnavailable."""
        raise LogUnavailable(str(self.error))

    def read(self, offset: int, max_bytes: int, *, before: int | None = None) -> list[BytesLike] | None:
        """Nothing."""
        return []

    def read_blocking(
        self, offset: int, max_bytes: int, *, before: int | None = None, unsynced: bool = False
    ) -> list[BytesLike]:
        """Nothing."""
        return []

    def request_sync(self) -> None:
        """Nobody's disk."""

    def reader_waits(self, count: int) -> None:
        """For nothing."""

    def apply_retention(self, now_ms: int, needed_from: int | None = None) -> None:
        """There is nothing to be kept."""

    def delete_prefix(self, before_offset: int) -> None:
        """There is nothing."""

    def close(self, *, keep: bool = True) -> None:
        """There is nothing to be written."""
        self.closed = True
