"""What both ends of an `engine` link have in common: who dials (`adapter_forwarding.py`) has clients of queues that who
is dialled (`adapter_serving.py`) leads.

1. Both are what `routing.cluster.clients.forwarding` and `routing.cluster.clients.serving` see of the other broker;
   they translate calls to frames and frames to calls, and hold nothing but what a turn has brought.
2. What comes is taken in its order. What the other knows of the metadata and this one does not yet is waited for, a
   moment; meanwhile nothing more is read from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.peer import wire_engine as wire
from protocols.peer.adapter import PeerAdapter
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_engine import AnyEngineFrame

FRAME_BYTES = 32 << 20
"""A frame is sent when it has grown to this, whatever else the turn brings."""
FRAME_ENTRIES = 50_000
"""Or has so many entries, or ranges in them: there are bounds for both, which are larger."""


class EngineAdapter(PeerAdapter):
    """See the module."""

    beats = 2

    def _write(self, frame: AnyEngineFrame) -> None:
        self._said_s = self._clock()
        for piece in wire.encode(frame):
            self._outbox.write(piece)

    def _unexpected(self, frame: object) -> PeerError:
        return PeerError(ErrorCode.UNEXPECTED_FRAME, f"a frame '{type(frame).__name__}' that is not due")


def as_pairs(ranges: Sequence[int]) -> Sequence[int]:
    """Firsts and lasts, as they came. Raises PeerError where they are none."""
    if len(ranges) % 2 or any(first > last for first, last in zip(ranges[::2], ranges[1::2])):
        raise PeerError(ErrorCode.MALFORMED_FRAME, "ranges without an end")
    return ranges
