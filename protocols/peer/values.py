"""Plain values between brokers as msgpack: the arguments of operations, and what these answer."""

from __future__ import annotations

from typing import Any

import msgpack

from protocols.peer.columns import NAMES
from protocols.peer.wire import ErrorCode, PeerError

_TIMESTAMPS_AS_DATETIME = 3


def pack_value(value: Any) -> bytes:
    """A value; what msgpack does not know goes as text."""
    packed: bytes = msgpack.packb(value, default=str, datetime=True, unicode_errors=NAMES)
    return packed


def unpack_value(data: bytes) -> Any:
    """What `pack_value` made. Raises PeerError."""
    try:
        return msgpack.unpackb(data, unicode_errors=NAMES, timestamp=_TIMESTAMPS_AS_DATETIME)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise PeerError(ErrorCode.MALFORMED_FRAME, f"a value that cannot be read: {error}") from None
