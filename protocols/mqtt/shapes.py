"""How PUBLISH packets are taken apart: a *shape* for each way they begin.

1. The first bytes of a packet say how long it and its topic are, where its remaining length has one byte or two. So
   what one call of the C library takes out of it (topic, packet id, the rest, and how the next one begins) is the same
   for all that begin alike, and is made ready once: a packet takes 0.22 us so, 0.29 with a slice for each piece, with
   packet ids 0.25 and 0.39 (`python -m benchmarks.mqtt_codec`, as a whole).
2. Shapes say nothing of anybody, so that all connections have them together. When there are too many, those that are
   there stay for a while: what comes then may never come again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from protocols.mqtt.packets import frame
from protocols.mqtt.reasons import MqttProtocolError

DUP = 0x08
SHAPES_MAX = 4096
"""Of each of at most twelve kinds, of which few are common; one takes some 500 bytes."""
_STRANGERS_MAX = 4 * SHAPES_MAX

Take = Callable[[bytes, int], tuple[bytes, ...]]
"""Takes a packet apart that begins there, and `Shapes.bytes` behind it. Raises struct.error where there are less."""
Shape = tuple[Take, int, bool]
"""And how long the packet is, and whether the property block is a piece of its own (see `Shapes`)."""


class Shapes:
    """Those of packets whose first byte is the same, but for DUP.

    `known` has them by the first `bytes` of packets. The pieces are: the topic with its length in front, packet id
    (b"" at QoS 0), with `blocks` the property block, and the payload. An empty topic is b"" with `blocks`, as an alias
    stands for it. How long a block is does not follow from the first bytes, but for that at QoS 0 that stands in for an
    empty topic: a shape is *exact* as long as all blocks it was used for were as long as the first; after that block
    and payload are one piece, and b"" stands in the block's place.
    """

    def __init__(self, first: int, packet_bytes_max: int, *, blocks: bool) -> None:
        self.known: dict[bytes, Shape] = {}
        self._firsts = (first, first ^ DUP) if first & 6 else (first,)
        self.bytes = 6 if blocks and not first & 6 else 5
        self._packet_bytes_max = packet_bytes_max
        self._id_bytes = 2 if first & 6 else 0
        self._blocks = blocks
        self._strangers = 0

    def learn(self, data: bytes, position: int, *, exact: bool = True) -> Shape | None:
        """That of the packet at `position`, which is not known, or not right; None where there is none of ours: it
        begins with another byte, is not in order or not whole, or has a topic that nobody may have.
        """
        end = len(data)
        if position >= end or data[position] not in self._firsts:
            return None
        try:
            body, stop = frame(data, position, end, self._packet_bytes_max)
        except MqttProtocolError:
            return None
        # The upper byte of the topic's length is 0 in all topics that are allowed, the last of the packet's is not, but
        # where more bytes were taken for it than it needs: nobody is sent such a packet as it came (MQTT-1.5.5-1).
        if stop > end or body + 2 > stop or data[body] or not data[body - 1]:
            return None
        skipped, taken, block = body - position, 2 + data[body + 1], ""
        used = skipped + taken + self._id_bytes
        if self._blocks:
            if taken == 2:
                skipped, taken = skipped + 2, 0
            if position + used >= stop:
                return None
            exact = exact and data[position + used] < 128
            block_bytes = 1 + data[position + used] if exact else 0
            block = f"{block_bytes}s"
            used += block_bytes
        rest = stop - position - used
        if rest < 0:
            return None
        pieces = Struct(f"{skipped}x{taken}s{self._id_bytes}s{block}{rest}s{self.bytes}s")
        shape: Shape = pieces.unpack_from, stop - position, exact
        begin = data[position : position + self.bytes]
        if body + 2 <= position + 5 and len(begin) == self.bytes and (begin in self.known or self._has_room()):
            self.known[begin] = shape
        return shape

    def _has_room(self) -> bool:
        if len(self.known) >= SHAPES_MAX:
            self._strangers += 1
            if self._strangers < _STRANGERS_MAX:
                return False
            self._strangers = 0
            self.known.clear()
        return True


_shapes: dict[tuple[int, int, bool], Shapes] = {}


def shapes_of(first: int, packet_bytes_max: int, *, blocks: bool = False) -> Shapes:
    """The shapes of packets that begin with `first`, but for DUP, of connections with this limit."""
    key = first & ~DUP, packet_bytes_max, blocks
    shapes = _shapes.get(key)
    if shapes is None:
        shapes = _shapes[key] = Shapes(*key[:2], blocks=blocks)
    return shapes
