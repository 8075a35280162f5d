"""Operations on a queue that are done by the broker that leads it, or has it, for whichever was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from routing.administration.operations import OPERATIONS, checked
from routing.cluster.clients.remote_queue import RemoteQueue

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

FORWARDED = frozenset(
    {
        "delayed.cancel", "delayed.list", "queues.alter", "queues.bind", "queues.browse", "queues.delete",
        "queues.describe", "queues.ends", "queues.figures", "queues.give_back", "queues.lease", "queues.move",
        "queues.reserve", "queues.reserved", "queues.rewind", "queues.unbind",
    }
)  # fmt: skip
"""Those that another broker may ask for; each names a queue, or several of one home."""
REPEATABLE = FORWARDED - {"delayed.cancel", "queues.delete", "queues.move", "queues.rewind"}
"""To do these twice is to do them once."""


async def run_forwarded(broker: Broker, name: str, arguments: Mapping[str, Any]) -> Any:
    """Run one of these for another broker, which has seen to who may ask for it. Raises as `administer`."""
    found = OPERATIONS[name]
    return await found.run(broker, "", **checked(name, found, arguments))


async def ask_leader(queue: Queue, name: str, arguments: Mapping[str, Any]) -> Any:
    """Have an operation done where a queue is led. Raises what it raises there, and StorageUnavailable."""
    assert isinstance(queue, RemoteQueue)
    return await queue.command(name, arguments, repeat=name in REPEATABLE)
