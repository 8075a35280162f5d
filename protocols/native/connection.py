"""Frames out of a stream of bytes, for brokers and clients alike. Sans-IO; the messages in them are `wire`'s business.

1. The announced length is checked before a byte of the frame is kept.
2. A frame that arrives in pieces is gathered in one buffer; what the codec makes of it are views of that buffer.
3. Small frames are copied out, so that a stored batch never pins a read a hundred times its size.
"""

from __future__ import annotations

from protocols.buffers import BytesLike
from protocols.native.errors import ErrorCode
from protocols.native.wire import LENGTH_BYTES, BadRequest

_COPY_BELOW_BYTES = 16 << 10


class FrameReader:
    """Cuts what a socket gives into frames of at most `frame_bytes_max`, without their lengths."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._needed_bytes = LENGTH_BYTES
        self.failure: BadRequest | None = None
        """Why there will be no more frames: a length of zero or above the limit. Look at it after each `feed`."""

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
            if not 0 < size <= self._frame_bytes_max:
                self.failure = self._refusal(size)
                return frames
            stop = start + size
            if stop > end:
                self._needed_bytes = LENGTH_BYTES + size
                break
            frames.append(bytes(view[start:stop]) if size < _COPY_BELOW_BYTES else view[start:stop])
            position = stop
        self._buffer += view[position:]
        return frames

    def _refusal(self, size: int) -> BadRequest:
        if size == 0:
            return BadRequest(ErrorCode.MALFORMED_FRAME, "a frame of no bytes", None, fatal=True)
        message = f"a frame of {size} bytes; the limit is {self._frame_bytes_max}"
        return BadRequest(ErrorCode.REQUEST_TOO_LARGE, message, None, fatal=True)


def split_address(server: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6 address]:port". Raises ValueError."""
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{server!r} is not host:port")
    return host.strip("[]") or "localhost", int(port)
