"""Buffers on their way into a socket, and frames out of what a socket gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from core_log.file_range import FileRange

BytesLike = bytes | bytearray | memoryview
Piece = BytesLike | FileRange
"""What a socket is to send."""
AnyPiece = TypeVar("AnyPiece", BytesLike, Piece)

LARGE_BYTES = 16 << 10
"""From here on a buffer is not copied: a system call for it costs less."""
LENGTH_BYTES = 4
"""Of the big-endian length before each frame."""


def join_small(pieces: Iterable[AnyPiece], large_bytes: int = LARGE_BYTES) -> list[AnyPiece]:
    """The same bytes in fewer buffers: runs of small pieces joined, large ones as they are."""
    buffers: list[AnyPiece] = []
    small: list[Any] = []
    for piece in pieces:
        if len(piece) < large_bytes and not isinstance(piece, FileRange):
            small.append(piece)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(piece)
    if small:
        buffers.append(b"".join(small))
    return buffers


class FrameReader:
    """Cuts a stream into frames of at most `frame_bytes_max`, without the 4 bytes of their length before them.

    1. The announced length is checked before a byte of the frame is kept.
    2. A frame that arrives in pieces is gathered in one buffer; what a codec makes of it are views of that buffer.
    3. Small frames are copied out, so that what is kept of one never pins a read a hundred times its size.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.wrong_length: int | None = None
        """The length that ended it: zero or above the limit. There are no more frames then."""
        self._buffer = bytearray()
        self._needed_bytes = LENGTH_BYTES

    def feed(self, data: BytesLike) -> list[BytesLike]:
        """Take bytes as they came; the frames they complete, up to the first whose length is wrong."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed_bytes:
                return []
            data, self._buffer = self._buffer, bytearray()
        frames: list[BytesLike] = []
        view = memoryview(data)
        position, end = 0, len(view)
        self._needed_bytes = LENGTH_BYTES
        while (start := position + LENGTH_BYTES) <= end:
            size = int.from_bytes(view[position:start], "big")
            if not 0 < size <= self.frame_bytes_max:
                self.wrong_length = size
                return frames
            stop = start + size
            if stop > end:
                self._needed_bytes = LENGTH_BYTES + size
                break
            frames.append(bytes(view[start:stop]) if size < LARGE_BYTES else view[start:stop])
            position = stop
        self._buffer += view[position:]
        return frames
