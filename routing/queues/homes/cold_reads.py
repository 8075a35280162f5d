"""Reads of messages that consumers wait for, and the time that publishers leave them.

To read a message back costs several times what it costs to pass it on from memory, and while that goes on whatever is
published goes to disk as well. So a publisher that outran its consumers for a moment, because the processor was
somebody else's, would outrun them from then on. Therefore who published to a queue whose consumers could take more and
wait for the disk (`wanted`) goes on when a read has ended: of those who published much one for each read, in the order
in which they came, and all others. When no read is needed any more all go on. Slow consumers hold nobody up: they have
enough to do with what was read. Nor does a slow disk, or a long line, for long: there is a limit to the time in which
no read ends, and to each wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import trio

_LARGE_KEPT_S = 1.0
"""For how long a large message that was read is kept for those who may want it as well."""

_MUCH_BYTES = 16 << 10
"""Who published so much in a turn stands in line."""
_LINE_S_MAX = 1.0
"""Nobody stands in line for longer, however many there are."""

Read = Callable[[Any], Coroutine[Any, Any, None]]


class ColdReads:
    """See the module. `spawn` starts tasks, `end_turn` delivers; nobody waits longer than `wait_ms_max` for
    a read to end.
    """

    def __init__(self, spawn: Callable[..., Any], end_turn: Callable[[], None], wait_ms_max: int) -> None:
        self.wanted = False
        """Consumers of a queue that was published to wait for the disk; to be reset before a turn."""
        self.end_turn = end_turn
        self._spawn = spawn
        self._wait_s_max = wait_ms_max / 1000
        self._under_way = 0
        self._ended = 0
        """Reads that have."""
        self._line: deque[trio.Event] = deque()
        self._others = trio.lowlevel.ParkingLot()

    def start(self, read: Read, what: object) -> None:
        """Read, then deliver."""
        self._under_way += 1
        self._spawn(self._run, read, what)

    async def _run(self, read: Read, what: object) -> None:
        try:
            await read(what)
        finally:
            self._under_way -= 1
            self._ended += 1
            self._others.unpark_all()
            if self._line:
                self._line.popleft().set()
        self.end_turn()
        while self._line and not self._under_way:
            self._line.popleft().set()

    def let_go_soon(self, let_go: Callable[[], None]) -> None:
        """A large message was read: call this when those who want it as well have had time to come."""
        self._spawn(_later, let_go)

    async def wait(self, published_bytes: int) -> None:
        """Wait for the end of a read, if one is under way; who published much, for that of its own."""
        if not (self._under_way and self._wait_s_max):
            return
        if published_bytes < _MUCH_BYTES:
            with trio.move_on_after(self._wait_s_max):
                await self._others.park()
            return
        mine = trio.Event()
        self._line.append(mine)
        until_s, ended = trio.current_time() + _LINE_S_MAX, -1
        try:
            while not mine.is_set() and self._ended != ended and trio.current_time() < until_s:
                ended = self._ended
                with trio.move_on_after(self._wait_s_max):
                    await mine.wait()
        finally:
            if not mine.is_set():
                self._line.remove(mine)


async def _later(let_go: Callable[[], None]) -> None:
    await trio.sleep(_LARGE_KEPT_S)
    let_go()
