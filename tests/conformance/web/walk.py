"""What a task has at hand: the page in a browser, the broker, clients that are connected to it, and a way to ask the
broker without the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace import BlockingClient
from tests.conformance.web.clients import HOST
from tests.conformance.web.page import Page
from tests.support import BrokerProcess

ADMINISTRATOR, PASSWORD = "ada", "right: a long one"
QUEUE, TOPIC, GROUP = "jobs", "orders", "board"


@dataclass(slots=True)
class Walk:
    """See the module."""

    page: Page
    broker: BrokerProcess
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self) -> BlockingClient:
        """A client of the native door."""
        return BlockingClient(f"{HOST}:{self.broker.native_port}")

    def asked(self, operation: str, **arguments: Any) -> Any:
        """What the broker says of itself without the page."""
        with self.client() as client:
            return client.administer(operation, **arguments)

    def waiting(self, queue: str) -> int:
        """How many messages wait in a queue."""
        return int(self.asked("queues.describe", name=queue)["ready"])

    def rows(self, operation: str, **arguments: Any) -> list[dict[str, Any]]:
        """The rows of a list."""
        found = self.asked(operation, **arguments)
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
