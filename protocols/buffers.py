"""Buffers on their way into a socket."""

from __future__ import annotations

from collections.abc import Iterable

BytesLike = bytes | bytearray | memoryview

LARGE_BYTES = 16 << 10
"""From here on a buffer is not copied: a system call for it costs less."""


def join_small(pieces: Iterable[BytesLike], large_bytes: int = LARGE_BYTES) -> list[BytesLike]:
    """The same bytes in fewer buffers: runs of small pieces joined, large ones as they are."""
    buffers: list[BytesLike] = []
    small: list[BytesLike] = []
    for piece in pieces:
        if len(piece) < large_bytes:
            small.append(piece)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(piece)
    if small:
        buffers.append(b"".join(small))
    return buffers
