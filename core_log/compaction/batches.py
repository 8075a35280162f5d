"""The batches of a closed segment, one after the other, in bites."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from core_log.batch_header import HEADER, HEADER_BYTES, BatchHeader
from core_log.errors import CorruptBatch
from core_log.files import File
from core_log.segment import Segment, check_batch

_CHUNK_BYTES = 1 << 20

Pause = Callable[[], None]
"""Called often: lets others work, and raises to end it all."""


def read_batches(
    file: File, segment: Segment, end: int, pause: Pause, *, check_crc: bool = True
) -> Iterator[tuple[BatchHeader, int, bytes, int]]:
    """(header, position in the file, chunk, position in the chunk) of the batches in [0, end) of a segment's file. The
    chunk holds all of the batch.

    Raises CorruptBatch with file and position at the first that is damaged; OSError.
    """
    position = 0
    size = _CHUNK_BYTES
    while position < end:
        wanted = min(size, end - position)
        data = file.pread(wanted, position)
        at, stop = 0, len(data)
        try:
            while stop - at >= HEADER_BYTES:
                batch_bytes = check_batch(data, at, stop, check_crc)[0]
                if batch_bytes > stop - at:
                    break
                yield BatchHeader._make(HEADER.unpack_from(data, at)), position + at, data, at
                pause()
                at += batch_bytes
            if not at:
                there = end - position if stop == wanted else stop  # a file that was cut has no more
                batch_bytes = check_batch(data, 0, stop, check_crc)[0] if stop >= HEADER_BYTES else there + 1
                if batch_bytes <= stop or batch_bytes > there:
                    raise CorruptBatch(f"batch of {batch_bytes} bytes in {there}")
        except CorruptBatch as error:
            raise CorruptBatch(f"{segment.log_path} at position {position + at}: {error}") from None
        size = _CHUNK_BYTES if at else batch_bytes
        position += at
