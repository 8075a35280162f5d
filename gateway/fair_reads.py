"""How much a connection reads in one turn, and when it lets others go first.

1. Reads grow while they are filled and shrink while they are nearly empty, so that a busy connection gets along with
   few turns and an idle one with little memory.
2. No turn is to last longer than `TURN_S`: a read grows only as far as that allows, and after two that were too
   dear comes half of it. What a byte costs differs a hundredfold, so only the clock can tell. While there are
   connections that read and need little of the broker's time, `SHARED_TURN_S` is the limit: a message of theirs waits
   for half a turn on average, and shorter turns cost who saturates the broker a little.
3. A connection whose last turn was a long one reads after those that are ready at the same time (`gives_way`): who
   sends little waits for at most the turn that is under way, not for that of everyone who saturates the broker. Where
   nobody else reads there is nobody to wait for. Who needs little never does: its turns may be long by what others
   have left to be done at their end, or because the processor was somebody else's.
4. Tasks that the event loop finds ready run in one go, in any order, and what arrives meanwhile is not looked for. So
   the sockets of those who need little are watched (`Neighbours.watch`) in a set of their own, and who needs much asks,
   before each read, whether one of them has something to read: if so they go first.
5. While somebody reads who needs little, those with long turns read one after the other. Since they ask as 4. says, the
   event loop need not look for the small ones before each of their reads: every second one that follows a full one.
   At most `LANE_MAX` wait for that. More, new connections by the hundred for one, would wait for each other for
   seconds, and among them who needs little and is not known yet; they read when the event loop has looked once.
"""

from __future__ import annotations

import math
import select
import socket
import sys
from contextlib import suppress
from time import perf_counter

import trio

READ_BYTES_MIN = 16 << 10
TURN_S = 0.002
SHARED_TURN_S = 0.00045
LONG_TURN_S = 0.00025
LANE_MAX = 32
_WINDOW_S = 0.1
"""What a connection takes of the broker's time is measured over so long."""
_LITTLE = 0.05
"""Of all time."""
_LOOKS_MAX = 2
"""Rounds of the event loop that one with long turns leaves to small ones before a read: in one the order is open."""
_UNLOOKED_MAX = 2
"""How many reads with long turns may follow each other, where nobody waits who needs little."""


class Neighbours:
    """What the connections of a process know of one another."""

    __slots__ = ("_lane", "_lane_taken", "_little_until_s", "_small", "_watched", "reads")

    def __init__(self) -> None:
        self.reads = 0
        """How many there were, of all connections."""
        self._little_until_s = 0.0
        self._lane = trio.lowlevel.ParkingLot()
        self._lane_taken = False
        self._small = select.epoll() if sys.platform == "linux" else None
        """Who needs little, to be asked who of them has something to read."""
        self._watched = 0

    def little(self, now_s: float) -> None:
        """Somebody who needs little has read."""
        self._little_until_s = now_s + _WINDOW_S

    def watch(self, sock: socket.socket) -> None:
        """Who reads from it needs little: what is there to read comes first."""
        if self._small is not None:
            with suppress(OSError):
                self._small.register(sock, select.EPOLLIN)
                self._watched += 1

    def forget(self, sock: socket.socket) -> None:
        """Who reads from it needs much now, or reads no more."""
        if self._small is not None:
            with suppress(OSError):
                self._small.unregister(sock)
                self._watched -= 1

    def small_waits(self) -> bool:
        """Whether there is something to read from somebody who needs little."""
        return self._watched > 0 and self._small is not None and bool(self._small.poll(0, 1))

    def turn_s(self, now_s: float) -> float:
        """How long a turn may last."""
        return SHARED_TURN_S if now_s < self._little_until_s else TURN_S

    async def enter_lane(self, *, look: bool = True) -> bool:
        """Wait until nobody else with long turns reads, nor anybody waits who needs little, unless too many do so;
        whether `leave_lane` has to be called, once that is done. `look`: have the event loop look who else is ready
        in any case.
        """
        if perf_counter() >= self._little_until_s or len(self._lane) >= LANE_MAX:
            await trio.lowlevel.checkpoint()
            return False
        if self._lane_taken:
            await self._lane.park()
        self._lane_taken = True
        try:
            if look or self._small is None:
                await trio.lowlevel.checkpoint()
            for _ in range(_LOOKS_MAX):
                if not self.small_waits():
                    break
                await trio.lowlevel.checkpoint()
        except BaseException:
            self.leave_lane()
            raise
        return True

    def leave_lane(self) -> None:
        """The next one may read, when the event loop has looked who is ready."""
        if not self._lane.unpark():
            self._lane_taken = False


class FairReads:
    """The reads of a connection: the next has room for `size` bytes."""

    __slots__ = (
        "_busy_s", "_byte_s", "_bytes_max", "_gives_way", "_in_lane", "_last", "_much", "_neighbours", "_odd",
        "_since_s", "_socket", "_unlooked", "full", "size",
    )  # fmt: skip

    def __init__(self, bytes_max: int, neighbours: Neighbours, sock: socket.socket | None = None) -> None:
        self._bytes_max = bytes_max
        self._neighbours = neighbours
        self._socket = sock
        self._last = -1
        """The number of our last read."""
        self._since_s = math.inf
        """When the window began."""
        self._busy_s = 0.0
        """How long our turns in it lasted."""
        self._much = True
        """We needed more than little in the window before, or nothing is known yet."""
        self._odd = False
        self._unlooked = 0
        """How many reads were filled, and the next one came without a look who else is ready."""
        self._in_lane = False
        self._byte_s = math.inf
        """What a byte of the last read took."""
        self.size = min(READ_BYTES_MIN, bytes_max)
        self.full = False
        """The last read was filled: there is more, and it need not be waited for."""
        self._gives_way = False
        """Others that are ready come first."""

    @property
    def alone(self) -> bool:
        """Nobody else has read since our last turn."""
        return self._neighbours.reads == self._last

    @property
    def gives_way(self) -> bool:
        """Whether others that are ready come first."""
        return self._gives_way or (self._much and self._neighbours.small_waits())

    async def give_way(self) -> None:
        """Let others read; `has_read` comes next."""
        look = self._unlooked >= _UNLOOKED_MAX
        if look:
            self._unlooked = 0
        self._in_lane = await self._neighbours.enter_lane(look=look)

    def has_read(self) -> None:
        """The socket was read, or could not be; the turn begins."""
        if self._in_lane:
            self._in_lane = False
            self._neighbours.leave_lane()

    def took(self, count: int, began_s: float, ended_s: float) -> None:
        """The turn of a read of `count` bytes has lasted from then till then."""
        neighbours = self._neighbours
        alone = self.alone
        self._last = neighbours.reads = neighbours.reads + 1
        size, seconds = self.size, ended_s - began_s
        self.full = count >= size
        self._unlooked = self._unlooked + 1 if self.full else 0
        self._since_s = min(self._since_s, began_s)
        self._busy_s += seconds
        much = self._much or self._busy_s >= _LITTLE * _WINDOW_S
        if ended_s - self._since_s > _WINDOW_S:
            self._judge(much=self._busy_s >= _LITTLE * (ended_s - self._since_s))
            if seconds <= LONG_TURN_S and not self._much:
                neighbours.little(ended_s)
            self._since_s, self._busy_s = ended_s, 0.0
        # What was slow once may have been interrupted.
        byte_s = seconds / max(count, 1)
        seconds = min(byte_s, self._byte_s) * count
        self._byte_s = byte_s
        self._gives_way = seconds > LONG_TURN_S and much and (self.full or not alone)
        turn_s = neighbours.turn_s(ended_s)
        if seconds > turn_s:
            size = min(size, count) >> 1
        elif self.full:
            if seconds * 4 <= turn_s:
                size <<= 2
            elif seconds * 2 <= turn_s:
                size <<= 1
            # At least every second read is a checkpoint.
            self._odd = not self._odd
            self._gives_way |= self._odd
        elif count < size >> 2:
            size >>= 1
        self.size = min(max(size, READ_BYTES_MIN), self._bytes_max)

    def _judge(self, *, much: bool) -> None:
        """Whether we needed much in the window that is over."""
        if much != self._much and self._socket is not None:
            if much:
                self._neighbours.forget(self._socket)
            else:
                self._neighbours.watch(self._socket)
        self._much = much
