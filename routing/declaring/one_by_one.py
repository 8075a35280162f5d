"""What is done for one name at a time: changes that take several steps, and would come between each other's."""

from __future__ import annotations

from weakref import WeakValueDictionary

import trio


class OneByOne:
    """Whoever does something for a name holds `lock(name)`; nothing is kept of names that nobody asks for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def lock(self, name: str) -> trio.Lock:
        """To be held, and kept by who waits for it."""
        found = self._locks.get(name)
        if found is None:
            found = self._locks[name] = trio.Lock()
        return found
