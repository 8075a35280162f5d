"""How much a connection reads in one turn, and when it lets others go first.

1. Reads grow while they are filled and shrink while they are nearly empty, so that a busy connection gets along with
   few turns and an idle one with little memory.
2. No turn is to last longer than `TURN_S`: a read grows only as far as that allows, and after two that were too
   dear comes half of it. What a byte costs differs a hundredfold, so only the clock can tell.
3. A connection whose last turn was a long one reads after those that are ready at the same time (`gives_way`): who
   sends little waits for at most the turn that is under way, not for that of everyone who saturates the broker. Where
   nobody else reads there is nobody to wait for.
"""

from __future__ import annotations

import math

READ_BYTES_MIN = 16 << 10
TURN_S = 0.002
LONG_TURN_S = 0.00025


class FairReads:
    """The reads of a connection: the next has room for `size` bytes."""

    __slots__ = ("_byte_s", "_bytes_max", "_odd", "full", "gives_way", "size")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._odd = False
        self._byte_s = math.inf
        """What a byte of the last read took."""
        self.size = min(READ_BYTES_MIN, bytes_max)
        self.full = False
        """The last read was filled: there is more, and it need not be waited for."""
        self.gives_way = False
        """Others that are ready come first."""

    def took(self, count: int, seconds: float, *, alone: bool = False) -> None:
        """The turn of a read of `count` bytes has lasted so long. `alone`: nobody else has read since our last."""
        size = self.size
        self.full = count >= size
        self.gives_way = seconds > LONG_TURN_S and (self.full or not alone)
        # What was slow once may have been interrupted.
        byte_s = seconds / max(count, 1)
        seconds = min(byte_s, self._byte_s) * count
        self._byte_s = byte_s
        if seconds > TURN_S:
            size = min(size, count) >> 1
        elif self.full:
            if seconds * 4 <= TURN_S:
                size <<= 2
            elif seconds * 2 <= TURN_S:
                size <<= 1
            # At least every second read is a checkpoint.
            self._odd = not self._odd
            self.gives_way |= self._odd
        elif count < size >> 2:
            size >>= 1
        self.size = min(max(size, READ_BYTES_MIN), self._bytes_max)
