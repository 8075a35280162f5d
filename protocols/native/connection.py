"""Frames out of a stream of bytes, for brokers and clients alike; the messages in them are the business of `wire`."""

from __future__ import annotations

from collections.abc import Sequence

from protocols import buffers
from protocols.native.errors import ErrorCode
from protocols.native.wire import BadRequest


class FrameReader(buffers.FrameReader):
    """`buffers.FrameReader` with the protocol's own words for a wrong length."""

    @property
    def failure(self) -> BadRequest | None:
        """Why there will be no more frames. Look at it after each `feed`."""
        size = self.wrong_length
        if size is None:
            return None
        if size == 0:
            return BadRequest(ErrorCode.MALFORMED_FRAME, "a frame of no bytes", None, fatal=True)
        message = f"a frame of {size} bytes; the limit is {self.frame_bytes_max}"
        return BadRequest(ErrorCode.REQUEST_TOO_LARGE, message, None, fatal=True)


def split_address(server: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6 address]:port". Raises ValueError."""
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not can_be_name(host):
        raise ValueError(f"{server!r} is not host:port")
    return host.strip("[]") or "localhost", int(port)


def can_be_name(host: str) -> bool:
    """Whether a host, if there is one, can be looked up at all: Python raises another error than OSError if not."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in host


def addresses_of(server: str | Sequence[str]) -> list[tuple[str, int]]:
    """Of one "host:port", several, or several in one text with commas between them. Raises ValueError."""
    names = server.split(",") if isinstance(server, str) else list(server)
    if not names:
        raise ValueError("there is no server to connect to")
    return [split_address(name.strip()) for name in names]
