"""What is done for one name at a time: changes that take several steps, and would come between each other's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import trio


class OneByOne:
    """Whoever does something for a name is `alone` with it; nothing is kept of names that nobody asks for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Wait for whoever is there. Who is the first does not wait for anything, not even for the event loop."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = trio.Lock()
        try:
            lock.acquire_nowait()
        except trio.WouldBlock:
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()
