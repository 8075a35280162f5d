"""What a broker and the others do for each other's clients: both directions, and what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.cluster.forwarding import Forwarding
from routing.cluster.serving import Serving

if TYPE_CHECKING:
    from routing.broker import Broker


class Engine:
    """See the module. It has to be there before the engine's homes are, `serve` once they are."""

    serving: Serving

    def __init__(self, **forwarding: Any) -> None:
        self.forwarding = Forwarding(**forwarding)

    def serve(self, broker: Broker) -> None:
        """The broker has its homes."""
        self.serving = Serving(broker)

    def end_turn(self) -> None:
        """Send what the turn has brought."""
        self.serving.end_turn()
        self.forwarding.end_turn()

    def tick(self) -> None:
        """A moment has passed."""
        self.forwarding.tick()
        for link in tuple(self.forwarding.links.values()):
            link.beat()
        for served in tuple(self.serving.links.values()):
            served.link.beat()
