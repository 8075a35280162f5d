"""Decoded stretches of streams, shared by all consumers that read near the same place.

A chunk holds every slab of [first, end) of one log. Chunks of a log do not overlap; of all logs together, those that
were not asked for longest go first when there are too many bytes.
"""

from __future__ import annotations

from bisect import bisect_right

from routing.topics.stream_records import StreamSlab

_MESSAGE_OVERHEAD_BYTES = 256
"""What a message costs besides its body: objects for body, key and properties, and the forms adapters keep."""
_CHUNK_OVERHEAD_BYTES = 1024


class Chunk:
    """See the module. `read_ahead` says that what follows was asked for."""

    __slots__ = ("bytes", "end", "ends", "first", "log_chunks", "read_ahead", "slabs")

    def __init__(self, first: int, end: int, slabs: list[StreamSlab]) -> None:
        self.first = first
        self.end = end
        self.slabs = slabs
        self.ends = [slab.end_offset for slab in slabs]
        self.bytes = _CHUNK_OVERHEAD_BYTES
        for slab in slabs:
            properties_bytes = sum(map(len, slab.raws or ()))
            self.bytes += slab.size + 2 * properties_bytes + _MESSAGE_OVERHEAD_BYTES * len(slab.bodies)
        self.read_ahead = False
        self.log_chunks: LogChunks | None = None

    def slab_at(self, offset: int) -> StreamSlab | None:
        """The slab that holds `offset` or, in a gap, the next one; None when there is none here."""
        index = bisect_right(self.ends, offset)
        return self.slabs[index] if index < len(self.slabs) else None


class StreamCache:
    """What all streams of a broker have decoded; see the module."""

    __slots__ = ("_bytes_max", "_used", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used: dict[Chunk, None] = {}
        self.bytes = 0

    def add(self, chunk: Chunk) -> None:
        """Count a new chunk, and make room."""
        self._used[chunk] = None
        self.bytes += chunk.bytes
        self._make_room()

    def limit(self, bytes_max: int) -> None:
        """Hold no more from now on, but for the newest chunk."""
        self._bytes_max = bytes_max
        self._make_room()

    def _make_room(self) -> None:
        while self.bytes > self._bytes_max and len(self._used) > 1:
            oldest = next(iter(self._used))
            assert oldest.log_chunks is not None
            oldest.log_chunks.remove(oldest)

    def touch(self, chunk: Chunk) -> None:
        """It was asked for just now."""
        del self._used[chunk]
        self._used[chunk] = None

    def forget(self, chunk: Chunk) -> None:
        """It is gone."""
        del self._used[chunk]
        self.bytes -= chunk.bytes


class LogChunks:
    """The chunks of one log."""

    __slots__ = ("_cache", "_chunks", "_firsts")

    def __init__(self, cache: StreamCache) -> None:
        self._cache = cache
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []

    def find(self, offset: int) -> Chunk | None:
        """The chunk that holds `offset`."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset >= self._chunks[index].end:
            return None
        chunk = self._chunks[index]
        self._cache.touch(chunk)
        return chunk

    def first_after(self, offset: int) -> int | None:
        """Where the next chunk behind an offset begins."""
        index = bisect_right(self._firsts, offset)
        return self._firsts[index] if index < len(self._firsts) else None

    def add(self, chunk: Chunk) -> None:
        """Enter a chunk; what of it others hold already (reads under way at the same time) is left to them."""
        index = bisect_right(self._firsts, chunk.first)
        if index:
            chunk.first = max(chunk.first, self._chunks[index - 1].end)
        if index < len(self._firsts):
            chunk.end = min(chunk.end, self._firsts[index])
        if chunk.first >= chunk.end:
            return
        self._firsts.insert(index, chunk.first)
        self._chunks.insert(index, chunk)
        chunk.log_chunks = self
        self._cache.add(chunk)

    def remove(self, chunk: Chunk) -> None:
        """Forget a chunk."""
        index = bisect_right(self._firsts, chunk.first) - 1
        del self._firsts[index], self._chunks[index]
        self._cache.forget(chunk)

    def clear(self) -> None:
        """Forget all."""
        for chunk in list(self._chunks):
            self.remove(chunk)
