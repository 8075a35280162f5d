"""Messages with a name, by which queues that end with their process have them once, though two brokers publish them.

Homes know what they have taken by numbers that are released (`queues/publish_numbers.py`). What is in no log needs
nothing that outlives the process: it remembers the names that came to such queues, the last `NAMES_MAX` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from secrets import token_bytes
from typing import TYPE_CHECKING

from routing.message import Slab

if TYPE_CHECKING:
    from routing.queues.queue import Queue

NAMES_MAX = 1 << 16
DIED = b"died:"
"""So begin the names, used once, of what is not to come to queues that it died in (`died`)."""


def died() -> bytes:
    """A name of dead letters; a broker of a version before takes it for that of a message which is new."""
    return DIED + token_bytes(16)


class Names:
    """See the module; of one process."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, str], None] = OrderedDict()  # a dict is slow to find its first again

    def is_new(self, name: bytes, queue: str = "") -> bool:
        """Whether no message of this name came to the queues here before, or to the one that is named; from now on one
        has.
        """
        if (name, queue) in self._known:
            return False
        if len(self._known) >= NAMES_MAX:
            self._known.popitem(last=False)
        self._known[name, queue] = None
        return True


class NamedSlab(Slab):
    """One message, and the names that this process knows."""

    __slots__ = ("_names", "name")

    def __init__(self, slab: Slab, name: bytes, names: Names) -> None:
        super().__init__(slab.exchange, slab.routing_key, slab.properties, slab.bodies, slab.size)
        self.name = name
        self._names = names

    def had_by(self, queues: Sequence[Queue]) -> frozenset[Queue]:
        """Which of the queues have it, or are not to have it again; the others are given it now."""
        fleeting = [queue for queue in queues if not queue.partition.durable]
        if not fleeting or self._names.is_new(self.name):
            return frozenset()
        return frozenset(fleeting)
