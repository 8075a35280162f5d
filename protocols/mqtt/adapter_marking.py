"""Whether publishes have to name their publishers (`raw.py`): that costs each a slab of its own, so it is done only
while a group of shared subscriptions is divided by publishers. (A client with a no-local subscription marks its own.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from protocols.mqtt.adapter_properties import PUBLISHER_HEADER

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.topology.virtual_host import VirtualHost

PREFIX = "$share/"
"""What the names of the groups' queues begin with."""


class Marking:
    """Whether publishes have to name their publishers, because a group of a broker is divided by them."""

    def __init__(self) -> None:
        self.by_publisher = False

    def look(self, vhost: VirtualHost) -> None:
        """Groups have come or go; those that a policy changed count from the next time on."""
        self.by_publisher = any(
            queue.settings.group_by == PUBLISHER_HEADER
            for name, queue in vhost.queues.items()
            if name.startswith(PREFIX)
        )


_marking: WeakKeyDictionary[Broker, dict[str, Marking]] = WeakKeyDictionary()


def marking_of(broker: Broker, vhost: str) -> Marking:
    """That of a virtual host."""
    known = _marking.setdefault(broker, {})
    if vhost not in known:
        known[vhost] = Marking()
        known[vhost].look(broker.topology.vhost(vhost))
    return known[vhost]
