"""A partition of a topic that another broker leads, for messages that exchanges route there, and for who cannot read
his own replica.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from routing.cluster.clients.remote_log import LogLeaders
from routing.cluster.clients.streams import Records, Stream
from routing.commits import storage_error
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from core_log.partition_log import PartitionLog


class RemoteTopicPartition:
    """See the module; implements `topics.leadership.Forward`."""

    __slots__ = ("_leaders", "_stream", "ends")

    def __init__(self, stream: Stream, leaders: LogLeaders, ends: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`ends` is as in `Forward`."""
        self._stream = stream
        self._leaders = leaders
        self.ends = ends

    def error(self) -> StorageUnavailable | None:
        """See `Forward`."""
        return None if self._stream.error is None else storage_error(self._stream)

    def append_records(
        self, keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes], body_bytes: int
    ) -> tuple[PartitionLog, int]:
        """See `Forward`."""
        end = self._stream.take(len(bodies), body_bytes, Records(keys, header_blocks, bodies))
        # What a confirm asks of a log is all that a stream answers.
        return cast("PartitionLog", self._stream), end

    def drop(self) -> PartitionLog:
        """See `Forward`."""
        self._stream.drop()
        return cast("PartitionLog", self._stream)

    @property
    def has_waiting(self) -> bool:
        """See `Forward`."""
        return not self._stream.all_taken

    async def read(self, offset: int, before: int, size_bytes: int) -> list[BytesLike]:
        """See `Forward`."""
        log = self._stream.name
        part = await self._leaders.read(log, offset, before, size_bytes)
        if not part.batches and (offset < part.log_start or part.high_watermark < before):
            raise StorageUnavailable(f"{log}: its leader has nothing at offset {offset} now")
        return part.batches

    async def committed(self, offset: int) -> int:
        """See `Forward`."""
        return await self._leaders.committed(self._stream.name, offset)
